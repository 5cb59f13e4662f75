#!/usr/bin/env bash
# Each pass has a FileCheck test named after it: pass_tests.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t passes < <("$1/bin/sinter-opt" --list-passes | sed -nE 's/^([a-z][a-z-]*) .*/\1/p')
[[ ${#passes[@]} -gt 5 ]] || { echo "sinter-opt lists ${#passes[@]} passes"; exit 1; }
failures=0
for pass in "${passes[@]}"; do
  stem=passes/${pass//-/_}
  if ! compgen -G "$here/${stem}.sir" >/dev/null && ! compgen -G "$here/${stem}_*.sir" >/dev/null; then
    echo "pass '$pass' has no tests/$stem.sir"
    failures=1
  fi
done
exit $failures
