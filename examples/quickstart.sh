#!/usr/bin/env bash
# Builds sinter and trains a small GPT on sinter's own sources: examples/quickstart.sh [ARGUMENTS]
#
# Installs what is missing first (see cmake/setup.sh). The arguments go to train_gpt; `train_gpt
# --help` lists them. The model lands in build/quickstart unless --out says otherwise.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/cmake/setup.sh"
setup_install build

log=$root/build/quickstart.log
mkdir -p "$root/build"
echo "building (log: $log)"
if ! (cd "$root" && cmake --preset release && cmake --build --preset release --target train_gpt -j "$(nproc)") >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  exit 1
fi

out=(--out "$root/build/quickstart")
for argument in "$@"; do
  case $argument in
    --out | --out=* | --help | -h) out=() ;;
  esac
done
exec "$root/build/release/bin/train_gpt" "${out[@]}" "$@"
