#!/usr/bin/env bash
# Installs BUILD into a scratch folder and builds, far from the source tree, a program that includes
# every installed header and links every installed library whole, and an example as a user would:
# install.sh BUILD CXX
set -euo pipefail
build=$(realpath "$1")
cxx=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$build/tests/install
rm -rf "$scratch"
mkdir -p "$scratch/program"
cmake --install "$build" --prefix "$scratch/prefix" >"$scratch/install.log"

cd "$scratch/prefix/include"
mapfile -t headers < <(find sinter -name '*.h' | LC_ALL=C sort)
[[ ${#headers[@]} -gt 1 ]] || { echo "no headers installed"; exit 1; }
cd "$scratch/program"
{
  printf '#include <%s>\n' "${headers[@]}"
  cat <<'CPP'
int main() {
  return sinter::parse_tensor_type("f32[2,3]").value().elements() == 6 ? 0 : 1;
}
CPP
} >main.cpp
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(program CXX)
find_package(sinter 0.1 REQUIRED)
add_executable(program main.cpp)
target_link_libraries(program PRIVATE
  -Wl,--whole-archive sinter::ir sinter::passes sinter::codegen sinter::runtime
  -Wl,--no-whole-archive sinter::frontends)
target_compile_options(program PRIVATE -Wall -Wextra -Werror)
add_executable(sine sine.cpp)
target_link_libraries(sine PRIVATE sinter::sinter)
CMAKE
cp "$root/examples/sine.cpp" .
cmake -G Ninja -S . -B build -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$scratch/prefix" \
  >configure.log || { cat configure.log; exit 1; }
cmake --build build >build.log || { cat build.log; exit 1; }
build/program
build/sine >sine.log || { cat sine.log; exit 1; }
