# The libraries that sinter builds on, each as sinter::NAME, shared or (with
# SINTER_STATIC_DEPENDENCIES) static.
#
# sinter::cuda carries the toolkit's headers and SINTER_HAVE_CUDA=1 where they are found, else
# nothing. No CUDA library is ever linked: libcuda, NVRTC and cuBLASLt are opened at run time.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

# Debian ships neither fmt nor spdlog as archives, so a static build compiles their headers in.
add_library(sinter_fmt INTERFACE)
add_library(sinter_spdlog INTERFACE)
if(SINTER_STATIC_DEPENDENCIES)
  target_link_libraries(sinter_fmt INTERFACE fmt::fmt-header-only)
  get_target_property(spdlog_include spdlog::spdlog INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(sinter_spdlog SYSTEM INTERFACE ${spdlog_include})
  target_compile_definitions(sinter_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(sinter_spdlog INTERFACE sinter_fmt Threads::Threads)
else()
  target_link_libraries(sinter_fmt INTERFACE fmt::fmt)
  target_link_libraries(sinter_spdlog INTERFACE spdlog::spdlog)
endif()
add_library(sinter::fmt ALIAS sinter_fmt)
add_library(sinter::spdlog ALIAS sinter_spdlog)
add_library(sinter::json ALIAS nlohmann_json::nlohmann_json)

# Finds the library NAME as VAR, the archive alone in a static build.
macro(sinter_find_library var name)
  if(SINTER_STATIC_DEPENDENCIES)
    find_library(${var} NAMES lib${name}.a PATH_SUFFIXES openblas-pthread REQUIRED)
  else()
    find_library(${var} NAMES ${name} PATH_SUFFIXES openblas-pthread REQUIRED)
  endif()
  mark_as_advanced(${var})
endmacro()

find_path(SINTER_XXHASH_INCLUDE xxhash.h REQUIRED)
sinter_find_library(SINTER_XXHASH_LIBRARY xxhash)
add_library(sinter_xxhash INTERFACE)
target_include_directories(sinter_xxhash SYSTEM INTERFACE ${SINTER_XXHASH_INCLUDE})
target_link_libraries(sinter_xxhash INTERFACE ${SINTER_XXHASH_LIBRARY})
add_library(sinter::xxhash ALIAS sinter_xxhash)

find_path(SINTER_ZLIB_INCLUDE zlib.h REQUIRED)
sinter_find_library(SINTER_ZLIB_LIBRARY z)
add_library(sinter_zlib INTERFACE)
target_include_directories(sinter_zlib SYSTEM INTERFACE ${SINTER_ZLIB_INCLUDE})
target_link_libraries(sinter_zlib INTERFACE ${SINTER_ZLIB_LIBRARY})
add_library(sinter::zlib ALIAS sinter_zlib)

find_path(SINTER_CBLAS_INCLUDE cblas.h
  PATH_SUFFIXES openblas-pthread ${CMAKE_LIBRARY_ARCHITECTURE}
    ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread openblas REQUIRED)
sinter_find_library(SINTER_OPENBLAS_LIBRARY openblas)
add_library(sinter_blas INTERFACE)
target_include_directories(sinter_blas SYSTEM INTERFACE ${SINTER_CBLAS_INCLUDE})
target_link_libraries(sinter_blas INTERFACE ${SINTER_OPENBLAS_LIBRARY})
if(SINTER_STATIC_DEPENDENCIES)
  # The archive's LAPACK half is Fortran. Its run-time libraries come from the compiler's folder.
  foreach(name gfortran quadmath)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=lib${name}.a
      OUTPUT_VARIABLE archive OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(IS_ABSOLUTE ${archive})
      target_link_libraries(sinter_blas INTERFACE ${archive})
    elseif(name STREQUAL gfortran)
      target_link_libraries(sinter_blas INTERFACE -lgfortran)
    endif()
  endforeach()
  target_link_libraries(sinter_blas INTERFACE Threads::Threads m)
endif()
add_library(sinter::blas ALIAS sinter_blas)

add_library(sinter_cuda INTERFACE)
add_library(sinter::cuda ALIAS sinter_cuda)
set(SINTER_HAVE_CUDA OFF)
if(SINTER_CUDA)
  find_path(SINTER_CUDA_INCLUDE cuda.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda /opt/cuda
    PATH_SUFFIXES include)
  mark_as_advanced(SINTER_CUDA_INCLUDE)
  if(SINTER_CUDA_INCLUDE AND EXISTS ${SINTER_CUDA_INCLUDE}/nvrtc.h
     AND EXISTS ${SINTER_CUDA_INCLUDE}/cublasLt.h)
    set(SINTER_HAVE_CUDA ON)
    target_include_directories(sinter_cuda SYSTEM INTERFACE ${SINTER_CUDA_INCLUDE})
    target_compile_definitions(sinter_cuda INTERFACE SINTER_HAVE_CUDA=1)
    message(STATUS "CUDA backend: on, headers in ${SINTER_CUDA_INCLUDE}")
  else()
    message(STATUS "CUDA backend: off, no cuda.h, nvrtc.h and cublasLt.h")
  endif()
endif()
mark_as_advanced(SINTER_XXHASH_INCLUDE SINTER_ZLIB_INCLUDE SINTER_CBLAS_INCLUDE)
