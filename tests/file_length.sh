#!/usr/bin/env bash
# No source file has more than 800 lines: past that it holds two things.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
limit=800
patterns=('*.h' '*.cpp' '*.cuh' '*.sh' '*.cmake' '*.sir' '*.py')
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- "${patterns[@]}")
else
  mapfile -t files < <(find ir passes codegen runtime frontends tests examples cmake -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.sh' -o -name '*.sir' \))
fi
[[ ${#files[@]} -gt 10 ]] || { echo "found only ${#files[@]} files"; exit 1; }
failures=0
for file in "${files[@]}"; do
  [[ -f $file ]] || continue
  lines=$(wc -l <"$file")
  if ((lines > limit)); then
    echo "$file: $lines lines, $limit allowed"
    failures=1
  fi
done
exit $failures
