#!/usr/bin/env bash
# Checks that two outputs of one module have the same bits, on every device that is here:
#   same_bits.sh OUTPUT OTHER FILE [options of sinter-run]
# and that they are not all alike, since equal constants would prove nothing.
set -euo pipefail

first=$1
second=$2
file=$3
shift 3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The value of one output alone.
values() {
  sinter-run "$file" "$@" --format=json | sed 's/.*"data"//' | tr -d ' \n}'
}
for device in reference interpreter cpu cuda; do
  status=0
  sinter-run "$file" "$@" --device="$device" --print="$first" >/dev/null 2>"$scratch/log" || status=$?
  if [[ $status == 3 && $device != reference ]]; then
    echo "no $device here"
    continue
  fi
  [[ $status == 0 ]] || { cat "$scratch/log" >&2; exit 1; }
  values "$@" --device="$device" --print="$first" >"$scratch/first"
  values "$@" --device="$device" --print="$second" >"$scratch/second"
  cmp "$scratch/first" "$scratch/second"
  [[ $(tr -d '[]:' <"$scratch/first" | tr ',' '\n' | sort -u | wc -l) -gt 1 ]] ||
    { echo "$file: $device: $first is one value everywhere" >&2; exit 1; }
done
