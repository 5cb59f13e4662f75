#pragma once
// A new, empty folder that goes away with all that is in it.

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace sinter::test {

struct TemporaryFolder {
  // mkdtemp replaces the six letters by what makes the name new.
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "sinter-XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), name);
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    // A test may have taken the rights away.
    std::filesystem::permissions(path, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  // Writes a file in it, with the folders above; its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return path / name;
  }

  std::filesystem::path path;
};

}  // namespace sinter::test
