#!/usr/bin/env bash
# The rule of the layers: a source sees the headers of its own layer and of those above it, and a
# header of a layer below it does not compile. layers.sh CXX LIST, where LIST has a line
# `LAYER INCLUDE_DIRECTORY…` for each layer, top layer first.
set -euo pipefail
cxx=$1
list=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

layers=()
declare -A directories
while read -r layer rest; do
  [[ -n $layer ]] || continue
  layers+=("$layer")
  directories[$layer]=$rest
done <"$list"
[[ ${#layers[@]} -ge 5 ]] || { echo "only ${#layers[@]} layers in $list"; exit 1; }

# compiles FROM TO: whether a source of FROM can include a file of TO.
compiles() {
  local flags=() directory file
  for directory in ${directories[$1]}; do flags+=("-I$directory"); done
  # Any file will do to see whether the path resolves; one that has no content of its own.
  file=$(cd "$root/$2" && ls ./*.h ./*/*.h ./*.cpp 2>/dev/null | head -1)
  printf '#if !__has_include(<sinter/%s/%s>)\n#error not visible\n#endif\n' "$2" "${file#./}" |
    "$cxx" -std=c++20 -fsyntax-only "${flags[@]}" -x c++ - 2>/dev/null
}

failures=0
for from in "${!layers[@]}"; do
  for to in "${!layers[@]}"; do
    source=${layers[$from]}
    target=${layers[$to]}
    if ((to <= from)); then
      compiles "$source" "$target" || { echo "$source/ cannot include $target/"; failures=1; }
    elif compiles "$source" "$target"; then
      echo "$source/ can include $target/, which is a layer below it"
      failures=1
    fi
  done
done

# The same in the way a person would break the rule: an #include, and the compiler's own message.
if printf '#include <sinter/passes/any.h>\n' |
    "$cxx" -std=c++20 -fsyntax-only ${directories[ir]/#/-I} -x c++ - 2>"${list%.txt}.log"; then
  echo "ir/ can include a header of passes/"
  failures=1
fi
grep -qE "No such file|file not found" "${list%.txt}.log" || { cat "${list%.txt}.log"; failures=1; }
exit $failures
