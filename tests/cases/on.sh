#!/usr/bin/env bash
# Runs a module on DEVICE, or on the reference where this machine lacks it (exit status 3):
#   on.sh [--fails] DEVICE FILE [options of sinter-run]
# With --fails, it must be refused with exit status 1.
set -euo pipefail

want=0
if [[ $1 == --fails ]]; then
  want=1
  shift
fi
device=$1
shift
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
sinter-run "$@" --device="$device" >"$output" 2>&1 || status=$?
if [[ $status == 3 ]]; then
  status=0
  sinter-run "$@" --device=reference >"$output" 2>&1 || status=$?
fi
cat "$output"
[[ $status == "$want" ]] || { echo "exit status $status, expected $want" >&2; exit 1; }
