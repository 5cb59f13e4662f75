# Included by ctest, once per doctest program (see tests.cmake): registers each of its cases.

if(NOT EXISTS ${SINTER_TEST_PROGRAM})
  add_test(${SINTER_TEST_FOLDER}/not_built ${SINTER_TEST_PROGRAM})
  return()
endif()

execute_process(COMMAND ${SINTER_TEST_PROGRAM} --list-test-cases --no-colors
  OUTPUT_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  add_test(${SINTER_TEST_FOLDER}/not_listed ${SINTER_TEST_PROGRAM} --list-test-cases)
  return()
endif()

# Brackets and semicolons mean something in a CMake list; they come back below.
string(ASCII 1 open)
string(ASCII 2 close)
string(ASCII 3 semicolon)
string(REPLACE "[doctest]" "@doctest" output "${output}")
string(REPLACE "[" "${open}" output "${output}")
string(REPLACE "]" "${close}" output "${output}")
string(REPLACE ";" "${semicolon}" output "${output}")
string(REPLACE "\n" ";" output "${output}")
foreach(name IN LISTS output)
  if(name STREQUAL "" OR name MATCHES "^@doctest" OR name MATCHES "^===+$")
    continue()
  endif()
  string(REPLACE "${open}" "[" name "${name}")
  string(REPLACE "${close}" "]" name "${name}")
  string(REPLACE "${semicolon}" ";" name "${name}")
  # A comma separates filters.
  string(REPLACE "," "\\," filter "${name}")
  set(test "${SINTER_TEST_FOLDER}/${name}")
  set(environment "${SINTER_TEST_ENVIRONMENT}")
  # The leak check stops the threads that NVRTC leaves behind, and sometimes crashes over them.
  if(name MATCHES "^(nvrtc|cuda|generated CUDA|the CUDA libraries|Hopper attention compiles)")
    string(REPLACE "protect_shadow_gap=0" "protect_shadow_gap=0:detect_leaks=0" environment
      "${environment}")
  endif()
  add_test("${test}" ${SINTER_TEST_PROGRAM} "--test-case=${filter}")
  set_tests_properties("${test}" PROPERTIES
    LABELS "${SINTER_TEST_LABEL}" SKIP_RETURN_CODE 77 TIMEOUT 1200
    ENVIRONMENT "${environment}" WORKING_DIRECTORY "${SINTER_TEST_WORKING_DIRECTORY}")
endforeach()
