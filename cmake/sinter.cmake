# Build rules that every layer shares.
#
# sinter_library(NAME [DEPENDS targets...] [PRIVATE targets...])
#   Makes the library sinter_NAME (alias sinter::NAME) from all .cpp files below NAME/ and exports
#   <build>/include/NAME as its only include directory. That directory holds one link,
#   sinter/NAME -> the source folder, so `#include <sinter/ir/graph.h>` works while a header of a
#   layer that is not a dependency does not compile.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)

add_library(sinter_options INTERFACE)
target_compile_options(sinter_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  -ffp-contract=off)

function(sinter_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;PRIVATE" ${ARGN})
  set(root ${CMAKE_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${root}/sinter)
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${name} ${root}/sinter/${name} SYMBOLIC)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/frontends/cli/sinter_[a-z]+\\.cpp$")
  add_library(sinter_${name} STATIC ${sources})
  add_library(sinter::${name} ALIAS sinter_${name})
  target_include_directories(sinter_${name} PUBLIC $<BUILD_INTERFACE:${root}>)
  target_compile_features(sinter_${name} PUBLIC cxx_std_20)
  target_link_libraries(sinter_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE}
    $<BUILD_INTERFACE:sinter_options>)
endfunction()
