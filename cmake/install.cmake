# `cmake --install BUILD --prefix DIR`: the libraries, their headers as <sinter/LAYER/…>, the tools
# and a package, so that a program says find_package(sinter) and links sinter::sinter.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(SINTER_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sinter)

# sinter_install(LAYERS layers... HELPERS targets...)
#   HELPERS are the interface targets that the layers link.
function(sinter_install)
  cmake_parse_arguments(ARG "" "" "LAYERS;HELPERS" ${ARGN})
  set(targets ${ARG_HELPERS})
  foreach(layer IN LISTS ARG_LAYERS)
    list(APPEND targets sinter_${layer})
    target_include_directories(sinter_${layer}
      PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/${layer}/
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sinter/${layer}
      FILES_MATCHING PATTERN "*.h" PATTERN "detail" EXCLUDE PATTERN "cli" EXCLUDE
      PATTERN "templates" EXCLUDE)
  endforeach()
  install(FILES ${CMAKE_SOURCE_DIR}/frontends/sinter.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sinter)
  foreach(target IN LISTS targets)
    string(REGEX REPLACE "^sinter_" "" name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  endforeach()
  install(TARGETS ${targets} EXPORT sinter ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  foreach(tool sinter-opt sinter-run)
    if(TARGET ${tool})
      install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
  endforeach()
  install(EXPORT sinter NAMESPACE sinter:: FILE sinterTargets.cmake
    DESTINATION ${SINTER_PACKAGE_DIR})
  file(WRITE ${CMAKE_BINARY_DIR}/sinterConfig.cmake "include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(spdlog)
find_dependency(nlohmann_json)
find_dependency(CLI11)
include(\${CMAKE_CURRENT_LIST_DIR}/sinterTargets.cmake)
")
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/sinterConfigVersion.cmake
    VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/sinterConfig.cmake ${CMAKE_BINARY_DIR}/sinterConfigVersion.cmake
    DESTINATION ${SINTER_PACKAGE_DIR})
endfunction()
