#pragma once
// What all doctest programs share.
//
// SINTER_SKIP(reason) ends the running case as skipped: ctest counts it so unless something in the
// case failed. Use it where a device, a compiler or a library that the case needs is missing.
//
// data_path("golden/x.safetensors") is that file of tests/, or of the folder that the environment
// variable SINTER_TEST_DATA names: a program carried to another machine finds its data there.

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

namespace sinter::test {

// The stack on which deep graphs must fit: 512 KiB, and as much more under a sanitizer as its
// larger frames take.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr size_t kSmallStack = 4 * 512 * 1024;
#else
inline constexpr size_t kSmallStack = 512 * 1024;
#endif

// Notes that the running case was skipped, and prints why.
void note_skip(const char* file, int line, const char* reason);

std::string data_path(const std::string& name);

}  // namespace sinter::test

#define SINTER_SKIP(reason)                                  \
  do {                                                       \
    ::sinter::test::note_skip(__FILE__, __LINE__, (reason)); \
    return;                                                  \
  } while (false)
