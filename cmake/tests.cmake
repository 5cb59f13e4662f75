# The tests.
#
# sinter_tests()
#   tests/FOLDER/*.cpp  one doctest program per folder, bin/test_FOLDER, linked to the layer of that
#                       name, or to all of sinter where no layer has it. ctest sees each case as
#                       FOLDER/CASE. The folder `gpu` carries the label gpu and counts as skipped
#                       where there is no GPU. The folder `templates` runs the kernel templates on
#                       the device emulator of tests/emulator/ and carries the label codegen.
#   tests/**/*.sir      one ctest entry per text, run by tests/filecheck.sh.
#   The rules of the tree: what a layer may include, how long a file may be, what is installed, and
#                       that the commands of the documents do what they say.
#
# Exit status 77 counts as skipped everywhere.

find_package(doctest REQUIRED)
find_program(SINTER_FILECHECK NAMES FileCheck FileCheck-20 FileCheck-19 FileCheck-18 FileCheck-17
  FileCheck-16 FileCheck-15 FileCheck-14
  HINTS /usr/lib/llvm-20/bin /usr/lib/llvm-19/bin /usr/lib/llvm-18/bin /usr/lib/llvm-17/bin
        /usr/lib/llvm-16/bin /usr/lib/llvm-15/bin /usr/lib/llvm-14/bin)
mark_as_advanced(SINTER_FILECHECK)

set(SINTER_LAYERS ir passes codegen runtime frontends)
set(SINTER_TEST_ENVIRONMENT
  "SINTER_CACHE=${CMAKE_BINARY_DIR}/tests/cache"
  "FILECHECK_OPTS=--enable-var-scope"
  "UBSAN_OPTIONS=print_stacktrace=1"
  # The CUDA driver maps memory where the address sanitizer keeps its shadow gap.
  "ASAN_OPTIONS=protect_shadow_gap=0")

# add_test with what all tests share; ARGN: COMMAND …
function(sinter_add_test name)
  add_test(NAME ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200
    ENVIRONMENT "${SINTER_TEST_ENVIRONMENT}")
endfunction()

function(sinter_doctest folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cpp)
  set(target test_${folder})
  add_executable(${target} ${sources} $<TARGET_OBJECTS:sinter_test_main>)
  if(folder IN_LIST SINTER_LAYERS)
    target_link_libraries(${target} PRIVATE sinter::${folder})
  else()
    target_link_libraries(${target} PRIVATE sinter::frontends)
  endif()
  target_link_libraries(${target} PRIVATE sinter_test_support sinter::json sinter::spdlog
    sinter::cuda sinter_options)
  if(folder MATCHES "^(fuzz|gpu)$")
    target_link_libraries(${target} PRIVATE sinter_fuzz)
  endif()
  if(folder STREQUAL "gpu")
    target_link_libraries(${target} PRIVATE sinter_emulator)
  endif()
  set(label ${folder})
  if(folder STREQUAL "templates")
    set(label codegen)
    target_link_libraries(${target} PRIVATE sinter_emulator)
    # Kernels by the thread are slow enough; `#pragma unroll` is for NVRTC.
    target_compile_options(${target} PRIVATE -O2 -Wno-unknown-pragmas $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
  endif()
  set(environment ${SINTER_TEST_ENVIRONMENT})
  if(folder STREQUAL gpu)
    list(APPEND environment SINTER_TEST_NEEDS_GPU=1)
  endif()

  # ctest includes this file, which asks the program for its cases each time: building costs
  # nothing, and no list goes stale.
  set(include ${CMAKE_BINARY_DIR}/tests/${target}.cmake)
  file(WRITE ${include} "set(SINTER_TEST_FOLDER [==[${folder}]==])
set(SINTER_TEST_LABEL [==[${label}]==])
set(SINTER_TEST_PROGRAM [==[${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${target}]==])
set(SINTER_TEST_ENVIRONMENT [==[${environment}]==])
set(SINTER_TEST_WORKING_DIRECTORY [==[${CMAKE_BINARY_DIR}/tests]==])
include([==[${CMAKE_SOURCE_DIR}/cmake/discover.cmake]==])
")
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()

function(sinter_filecheck_tests)
  set(tools ${CMAKE_BINARY_DIR}/tests/tools)
  file(MAKE_DIRECTORY ${tools})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/tests/tools/not ${tools}/not SYMBOLIC)
  file(REMOVE ${tools}/FileCheck)
  if(SINTER_FILECHECK)
    file(CREATE_LINK ${SINTER_FILECHECK} ${tools}/FileCheck SYMBOLIC)
  endif()
  # What `// REQUIRES:` may rely on in this build.
  set(features "")
  if(SINTER_HAVE_CUDA)
    string(APPEND features "cuda\n")
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/tests/features.txt "${features}")
  file(GLOB_RECURSE texts CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/tests
    ${CMAKE_SOURCE_DIR}/tests/*.sir)
  foreach(text IN LISTS texts)
    sinter_add_test(${text} COMMAND ${CMAKE_SOURCE_DIR}/tests/filecheck.sh
      ${CMAKE_SOURCE_DIR}/tests/${text} ${CMAKE_BINARY_DIR})
    set_property(TEST ${text} PROPERTY LABELS filecheck)
  endforeach()
endfunction()

# Each layer's include directories, as its own sources see them, for tests/layers.sh.
function(sinter_rule_tests)
  set(lines "")
  foreach(layer IN LISTS SINTER_LAYERS)
    string(APPEND lines
      "${layer} $<JOIN:$<TARGET_PROPERTY:sinter_${layer},INCLUDE_DIRECTORIES>, >\n")
  endforeach()
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/tests/layers.txt CONTENT "${lines}")
  sinter_add_test(rules/layers COMMAND ${CMAKE_SOURCE_DIR}/tests/layers.sh
    ${CMAKE_CXX_COMPILER} ${CMAKE_BINARY_DIR}/tests/layers.txt)
  sinter_add_test(codegen/cubins COMMAND ${CMAKE_SOURCE_DIR}/tests/codegen/cubins.sh
    ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}/tests/codegen)
  sinter_add_test(rules/file_length COMMAND ${CMAKE_SOURCE_DIR}/tests/file_length.sh)
  sinter_add_test(rules/filecheck_runner COMMAND ${CMAKE_SOURCE_DIR}/tests/filecheck_runner.sh
    ${CMAKE_BINARY_DIR})
  sinter_add_test(rules/failures_runner COMMAND ${CMAKE_SOURCE_DIR}/tests/failures_runner.sh)
  sinter_add_test(rules/setup COMMAND ${CMAKE_SOURCE_DIR}/tests/setup.sh)
  if(TARGET sinter-run AND NOT SINTER_SANITIZE)
    foreach(case CC-02 CC-04 CC-11)
      sinter_add_test(cases/${case}_cache COMMAND ${CMAKE_SOURCE_DIR}/tests/cases/cache.sh
        ${CMAKE_BINARY_DIR} ${case} 2)
    endforeach()
  endif()
  if(TARGET sinter-run AND TARGET sine)
    file(GLOB documents CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
      ${CMAKE_SOURCE_DIR}/*.md ${CMAKE_SOURCE_DIR}/docs/*.md)
    foreach(document IN LISTS documents)
      get_filename_component(name ${document} NAME)
      sinter_add_test(docs/${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/docs.sh ${CMAKE_BINARY_DIR}
        ${CMAKE_SOURCE_DIR}/${document})
    endforeach()
  endif()
  if(TARGET fashion_mnist)
    sinter_add_test(examples/fashion_mnist COMMAND ${CMAKE_SOURCE_DIR}/tests/fashion_mnist.sh
      ${CMAKE_BINARY_DIR})
  endif()
  if(TARGET sinter-opt)
    sinter_add_test(rules/pass_tests COMMAND ${CMAKE_SOURCE_DIR}/tests/pass_tests.sh
      ${CMAKE_BINARY_DIR})
    sinter_add_test(rules/ops_doc COMMAND ${CMAKE_SOURCE_DIR}/tests/ops_doc.sh ${CMAKE_BINARY_DIR})
  endif()
  if(NOT SINTER_SANITIZE)
    sinter_add_test(rules/install COMMAND ${CMAKE_SOURCE_DIR}/tests/install.sh ${CMAKE_BINARY_DIR}
      ${CMAKE_CXX_COMPILER})
  endif()
endfunction()

function(sinter_tests)
  set(root ${CMAKE_BINARY_DIR}/include/tests)
  sinter_include_link(${root} tests ${CMAKE_SOURCE_DIR}/tests)
  add_library(sinter_test_support INTERFACE)
  target_include_directories(sinter_test_support INTERFACE ${root})
  target_link_libraries(sinter_test_support INTERFACE doctest::doctest)
  add_library(sinter_test_main OBJECT ${CMAKE_SOURCE_DIR}/tests/main.cpp)
  target_link_libraries(sinter_test_main PRIVATE sinter_test_support sinter_options)
  target_compile_definitions(sinter_test_main PRIVATE SINTER_TEST_DATA="${CMAKE_SOURCE_DIR}/tests")

  # Random graphs, for several tests and for the program `fuzz`.
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/lib/*.cpp)
  add_library(sinter_fuzz STATIC ${sources} ${CMAKE_SOURCE_DIR}/tests/ops/samples.cpp)
  target_link_libraries(sinter_fuzz PUBLIC sinter::runtime sinter_test_support
    PRIVATE sinter_options)
  add_executable(fuzz ${CMAKE_SOURCE_DIR}/tests/fuzz/program/fuzz.cpp)
  target_link_libraries(fuzz PRIVATE sinter_fuzz CLI11::CLI11 sinter_options)

  # Runs kernel templates on the host.
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulator/*.cpp)
  add_library(sinter_emulator STATIC ${sources})
  target_link_libraries(sinter_emulator PUBLIC sinter::runtime sinter_test_support Threads::Threads
    PRIVATE sinter_options)
  target_compile_options(sinter_emulator PRIVATE -O2 -Wno-unknown-pragmas $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)

  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/tests/emulator/")
  set(folders "")
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    list(APPEND folders ${folder})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    sinter_doctest(${folder})
  endforeach()
  sinter_filecheck_tests()
  sinter_rule_tests()
endfunction()
