# sinter_embed(LIBRARY FUNCTION FILES...)
#   Compiles the texts FILES into the library sinter_LIBRARY, which gets
#   `std::string_view sinter::FUNCTION(std::string_view name)`: the text of the file of that name
#   (without its folder), empty where there is none. Declare it in a header of the layer.

function(sinter_embed library function)
  set(output ${CMAKE_BINARY_DIR}/generated/${library}/${function}.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DOUTPUT=${output}" "-DFUNCTION=${function}" "-DFILES=${ARGN}"
      -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    COMMENT "Embedding texts for ${library}" VERBATIM)
  target_sources(sinter_${library} PRIVATE ${output})
endfunction()

# As a script, run by the command above.
if(CMAKE_SCRIPT_MODE_FILE)
  set(cases "")
  foreach(file IN LISTS FILES)
    get_filename_component(name ${file} NAME)
    file(READ ${file} text)
    string(APPEND cases "  if (name == \"${name}\") {\n    return R\"embedded(${text})embedded\";\n  }\n")
  endforeach()
  file(WRITE ${OUTPUT} "// Written by cmake/embed.cmake.
#include <string_view>

namespace sinter {
std::string_view ${FUNCTION}(std::string_view name);
std::string_view ${FUNCTION}(std::string_view name) {
${cases}  return {};
}
}  // namespace sinter
")
endif()
