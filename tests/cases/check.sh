#!/usr/bin/env bash
# Runs a module everywhere and compares what it prints with the values written in it:
#   check.sh [--prefix=NAME] [--devices='D…'] FILE [options of sinter-run]
#
# In FILE, each line `// EXPECT: OUTPUT = V, V, …` (or with NAME in place of EXPECT) gives the values
# of an output, row-major, brackets free. Forms of OUTPUT: `y`, `sum(y)`, `sumabs(y)`. A list that
# ends in `...` gives the first values only. The value `finite` stands for any finite number. A line
# may end in `within RTOL ATOL`; without it a value is right within 1e-5 relative or 1e-6 absolute.
#
# Devices: reference, interpreter, cpu and cuda; one that this machine lacks (exit status 3) is left
# out, the reference never. On each, the bits must be the same with fuse, cse, layout or plan-memory
# off.
set -euo pipefail

prefix=EXPECT
devices="reference interpreter cpu cuda"
while [[ $1 == --* ]]; do
  case $1 in
    --prefix=*) prefix=${1#*=} ;;
    --devices=*) devices=${1#*=} ;;
    *) echo "check.sh: unknown option $1" >&2; exit 1 ;;
  esac
  shift
done
file=$1
shift

expected=$(sed -n "s,^// *$prefix: *,,p" "$file")
if [[ -z $expected ]]; then
  echo "$file: no line '// $prefix:'" >&2
  exit 1
fi
outputs=$(sed -E 's/ *=.*//; s/^sum(abs)?\((.*)\)$/\2/' <<<"$expected" | sort -u | paste -sd,)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

compare() {
  awk -v device="$1" -v file="$file" '
    function number(text) {
      gsub(/["\[\]{} ]/, "", text)
      return tolower(text)
    }
    # NaN, infinities and true are compared as text.
    function class(v) {
      if (v ~ /nan/) return "nan"
      if (v ~ /inf/) return v ~ /^-/ ? "-inf" : "inf"
      if (v == "true") return "true"
      if (v == "false") return "false"
      return ""
    }
    function fail(what) {
      printf "%s: %s: %s\n", file, device, what > "/dev/stderr"
      failed = 1
    }
    FNR == NR { json = json $0; next }
    {
      line = $0; rtol = 1e-5; atol = 1e-6
      if (match(line, / within .*$/)) {
        split(substr(line, RSTART + 8), t, " ")
        rtol = t[1] + 0; atol = t[2] + 0
        line = substr(line, 1, RSTART - 1)
      }
      split(line, side, / *= */)
      name = side[1]; form = ""
      if (match(name, /^sum(abs)?\(/)) {
        form = substr(name, 1, RLENGTH - 1)
        name = substr(name, RLENGTH + 1, length(name) - RLENGTH - 1)
      }
      at = match(json, "\"" name "\" *: *\\{ *\"type\"")
      if (!at) { fail("no output " name); next }
      rest = substr(json, at)
      rest = substr(json, at)
      rest = substr(rest, index(rest, "\"data\"") + 6)
      sub(/^ *: */, "", rest)
      sub(/\}.*$/, "", rest)
      n = split(rest, got, ",")
      if (form != "") {
        total = 0
        for (i = 1; i <= n; i++) {
          v = number(got[i])
          if (class(v) ~ /nan|inf/) total = "nan"
          if (total != "nan") total += (form == "sumabs" && v < 0) ? -v : v
        }
        n = 1; got[1] = total == "nan" ? total : sprintf("%.17g", total)
      }
      m = split(side[2], want, ",")
      if (number(want[m]) == "...") m--
      else if (m != n) { fail(name ": " n " values, expected " m); next }
      for (i = 1; i <= m; i++) {
        g = number(got[i]); w = number(want[i])
        if (w == "finite") {
          if (class(g) != "") fail(name "[" i - 1 "] is " g ", expected a finite number")
        } else if (class(g) != "" || class(w) != "") {
          if (class(g) != class(w)) fail(name "[" i - 1 "] is " g ", expected " w)
        } else {
          error = g - w; if (error < 0) error = -error
          size = w + 0; if (size < 0) size = -size
          if (error > atol && error > rtol * size)
            fail(name "[" i - 1 "] is " g ", expected " w ", error " error)
        }
      }
    }
    END { exit failed }' "$scratch/json" <(printf '%s\n' "$expected")
}

for device in $devices; do
  status=0
  sinter-run "$file" "$@" --device="$device" --print="$outputs" --format=json >"$scratch/json" || status=$?
  if [[ $status == 3 && $device != reference ]]; then
    echo "no $device here"
    continue
  fi
  [[ $status == 0 ]] || { echo "$file: $device: exit status $status" >&2; exit 1; }
  compare "$device"
  [[ $device != reference ]] || continue
  sinter-run "$file" "$@" --device="$device" --print="$outputs" --format=hex >"$scratch/hex"
  for pass in fuse cse layout plan-memory; do
    sinter-run "$file" "$@" --device="$device" --print="$outputs" --format=hex --disable="$pass" \
      >"$scratch/hex.$pass"
    cmp "$scratch/hex" "$scratch/hex.$pass" ||
      { echo "$file: $device: other bits without $pass" >&2; exit 1; }
  done
done
