#!/usr/bin/env bash
# Runs the FileCheck test FILE with the programs of BUILD: filecheck.sh FILE BUILD
#
# Every line `// RUN: COMMAND` is run by bash with pipefail, in a folder of its own; all must
# succeed. A line that ends in `\` goes on in the next RUN line. In a command %s is the test file,
# %S its folder, %t a scratch path, %% a percent sign. `// REQUIRES: NAME…` skips the test (exit 77)
# unless each is there: nvrtc, cxx (a host compiler), gpu.
set -euo pipefail

file=$(realpath "$1")
build=$(realpath "$2")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [[ ! -e $build/tests/tools/FileCheck ]]; then
  echo "skipped: no FileCheck"
  exit 77
fi

# True if a shared library of this name is in one of the places where sinter looks for it.
have_library() {
  local folder
  for folder in ${LD_LIBRARY_PATH//:/ } "${CUDA_HOME:-}/lib64" "${CUDA_PATH:-}/lib64" \
      /usr/local/cuda/lib64; do
    compgen -G "$folder/$1.so*" >/dev/null && return 0
  done
  { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true; } | grep -q "$1\.so"
}

built_with() { grep -qx "$1" "$build/tests/features.txt"; }

have() {
  case $1 in
    nvrtc) built_with cuda && { [[ -n ${SINTER_NVRTC:-} ]] || have_library libnvrtc; } ;;
    cxx) command -v "${SINTER_CXX:-c++}" >/dev/null ;;
    gpu) built_with cuda && [[ -e /dev/nvidiactl ]] && have_library libcuda ;;
    *) echo "$file: error: unknown requirement '$1'" >&2; exit 1 ;;
  esac
}

for name in $(sed -n 's,^.*// REQUIRES: *,,p' "$file" | tr ',' ' '); do
  if ! have "$name"; then
    echo "skipped: no $name"
    exit 77
  fi
done

scratch=$build/tests/scratch/${file#"$here"/}
rm -rf "$scratch"
mkdir -p "$scratch"
cd "$scratch"
export PATH=$build/tests/tools:$build/bin:$PATH
export FILECHECK_OPTS=${FILECHECK_OPTS:---enable-var-scope}

ran=0
command=
while IFS= read -r line; do
  command+=$line
  if [[ $command == *\\ ]]; then
    command=${command%\\}
    continue
  fi
  command=${command//%%/$'\x01'}
  command=${command//%s/$file}
  command=${command//%S/$(dirname "$file")}
  command=${command//%t/$scratch/tmp}
  command=${command//$'\x01'/%}
  status=0
  bash -o pipefail -c "$command" || status=$?
  if [[ $status != 0 ]]; then
    printf '%s: RUN line failed with status %d:\n  %s\n' "$file" "$status" "$command" >&2
    exit 1
  fi
  ran=$((ran + 1))
  command=
done < <(sed -n 's,^.*// RUN: *,,p' "$file")

if [[ -n $command ]]; then
  echo "$file: error: the last RUN line ends in a backslash" >&2
  exit 1
fi
if [[ $ran == 0 ]]; then
  echo "$file: error: no RUN line" >&2
  exit 1
fi
