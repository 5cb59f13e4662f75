# Build rules that every layer shares.
#
# sinter_library(NAME [DEPENDS targets...] [PRIVATE targets...])
#   Makes the library sinter_NAME (alias sinter::NAME) from all .cpp files below NAME/ and exports
#   <build>/include/NAME as its only include directory. That directory holds one link,
#   sinter/NAME -> the source folder, so `#include <sinter/ir/graph.h>` works while a header of a
#   layer that is not a dependency does not compile.
# sinter_tools(PATTERN)
#   Makes one program of each matching file, named after it with '-' for '_'.
# sinter_benchmarks(FOLDER)
#   Makes the program bench_NAME of each FOLDER/NAME.cpp.
# sinter_examples(FOLDER)
#   Makes one program of each FOLDER/NAME.cpp and of the .cpp files below FOLDER/NAME/.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O2: -O3 compiles a third slower and gains nothing, since the hot loops are generated code.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# Source places read `ir/graph.cpp:12`, whatever folder the checkout is in.
set(SINTER_PREFIX_MAP ${CMAKE_SOURCE_DIR})
find_program(SINTER_CCACHE ccache)
mark_as_advanced(SINTER_CCACHE)
if(SINTER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    ${SINTER_CCACHE})
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  # ccache passes paths relative to the build folder, so that checkouts share what they compiled.
  file(RELATIVE_PATH SINTER_PREFIX_MAP ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
  string(REGEX REPLACE "/$" "" SINTER_PREFIX_MAP ${SINTER_PREFIX_MAP})
endif()
add_compile_options(-fmacro-prefix-map=${SINTER_PREFIX_MAP}/=)

add_library(sinter_options INTERFACE)
target_compile_options(sinter_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  -ffp-contract=off $<$<BOOL:${SINTER_WERROR}>:-Werror>)
if(SINTER_SANITIZE)
  target_compile_options(sinter_options INTERFACE
    -fsanitize=${SINTER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(sinter_options INTERFACE -fsanitize=${SINTER_SANITIZE})
endif()
if(SINTER_STATIC_DEPENDENCIES)
  target_link_options(sinter_options INTERFACE -static-libgcc -static-libstdc++)
endif()

# Puts ROOT/sinter/NAME -> the source folder FOLDER in place.
function(sinter_include_link root name folder)
  file(MAKE_DIRECTORY ${root}/sinter)
  file(CREATE_LINK ${folder} ${root}/sinter/${name} SYMBOLIC)
endfunction()

function(sinter_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;PRIVATE" ${ARGN})
  set(root ${CMAKE_BINARY_DIR}/include/${name})
  sinter_include_link(${root} ${name} ${CMAKE_SOURCE_DIR}/${name})
  # The header for users, <sinter/sinter.h>.
  if(EXISTS ${CMAKE_SOURCE_DIR}/${name}/sinter.h)
    sinter_include_link(${root} sinter.h ${CMAKE_SOURCE_DIR}/${name}/sinter.h)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/frontends/cli/sinter_[a-z]+\\.cpp$")
  add_library(sinter_${name} STATIC ${sources})
  add_library(sinter::${name} ALIAS sinter_${name})
  target_include_directories(sinter_${name} PUBLIC $<BUILD_INTERFACE:${root}>)
  target_compile_features(sinter_${name} PUBLIC cxx_std_20)
  target_link_libraries(sinter_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE}
    $<BUILD_INTERFACE:sinter_options>)
endfunction()

function(sinter_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE sinter::frontends CLI11::CLI11 sinter::json sinter_options)
endfunction()

function(sinter_tools pattern)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${pattern})
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE "_" "-" name ${name})
    sinter_program(${name} ${source})
  endforeach()
endfunction()

function(sinter_benchmarks folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    sinter_program(bench_${name} ${source})
    target_link_libraries(bench_${name} PRIVATE sinter::cuda)
  endforeach()
endfunction()

function(sinter_examples folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    file(GLOB_RECURSE parts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/${name}/*.cpp)
    sinter_program(${name} ${source} ${parts})
  endforeach()
endfunction()
