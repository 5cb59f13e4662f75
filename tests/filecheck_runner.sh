#!/usr/bin/env bash
# A test of tests/filecheck.sh itself: each way in which a text must fail, fails.
set -euo pipefail
build=$(realpath "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -e $build/tests/tools/FileCheck ]] || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# expect STATUS TEXT
expect() {
  printf '%b\n' "$2" >"$folder/case.sir"
  local status=0
  "$here/filecheck.sh" "$folder/case.sir" "$build" >"$folder/log" 2>&1 || status=$?
  if [[ $status != "$1" ]]; then
    printf 'expected status %s, got %s from:\n%b\n' "$1" "$status" "$2"
    cat "$folder/log"
    exit 1
  fi
}

expect 0 '// RUN: cat %s | FileCheck %s\n// CHECK: some text\nsome text'
expect 1 '// RUN: cat %s | FileCheck %s --check-prefix=A\n// A-NOT: other\n// A-NOT: text\nother'
expect 1 '// RUN: cat %s | FileCheck %s\nno check line'
expect 1 '// CHECK: never run'
expect 1 '// RUN: false | cat'
expect 1 '// RUN: true\n// RUN: false'
expect 1 '// RUN: true \\'
expect 0 '// RUN: echo a >%t && \\\n// RUN: grep -q a %t'
expect 0 '// RUN: not false'
expect 1 '// RUN: not true'
expect 1 '// RUN: not sh -c "kill -SEGV \\$\\$"'
expect 1 '// RUN: not no-such-program'
expect 0 '// RUN: [ %%s = %%""s ] && [ -d %S ]'
expect 1 '// REQUIRES: something\n// RUN: true'
expect 0 '// REQUIRES: cxx\n// RUN: true'
SINTER_CXX=no-such-compiler expect 77 '// REQUIRES: cxx\n// RUN: true'
SINTER_NVRTC=/ expect "$(grep -qx cuda "$build/tests/features.txt" && echo 0 || echo 77)" \
  '// REQUIRES: nvrtc\n// RUN: true'
rm -rf "$build/tests/scratch/$folder"
