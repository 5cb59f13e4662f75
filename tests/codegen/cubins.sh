#!/usr/bin/env bash
# Compiles the CUDA kernels of the FileCheck tests of a folder for every target, without a GPU:
#   cubins.sh BUILD FOLDER…
# sinter-opt fails when a kernel needs more shared memory or registers than the target has; a spill
# fails here. A target that the installed NVRTC lacks is skipped; exit 77 when all are.
set -euo pipefail
# The leak check of a sanitizer build stops the threads that NVRTC leaves behind, and sometimes
# crashes over them.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
opt=$1/bin/sinter-opt
shift
compiled=0 failed=0
for target in sm_80 sm_89 sm_90a sm_120; do
  for file in "${@/%//*.sir}"; do
    for test in $file; do
      # A test of a refusal has no kernels.
      if grep -q 'RUN: *not ' "$test"; then continue; fi
      if ! out=$("$opt" "$test" --emit=cubin --target="$target" 2>&1); then
        if grep -qiE 'NVRTC.*(does not support|lacks|not found)|libnvrtc' <<<"$out"; then
          echo "skipped: $target: $(head -1 <<<"$out")"
          continue 3
        fi
        echo "$test for $target: $out"
        failed=$((failed + 1))
        continue
      fi
      if grep -vE ' 0 bytes spilled' <<<"$out" | grep -q spilled; then
        echo "$test for $target spills: $out"
        failed=$((failed + 1))
      fi
      compiled=$((compiled + $(grep -c registers <<<"$out" || true)))
    done
  done
done
echo "$compiled kernels compiled, $failed tests failed"
[[ $failed == 0 ]] || exit 1
[[ $compiled != 0 ]] || exit 77
