#!/usr/bin/env bash
# docs/ops.md is what sinter-opt says of the ops: ops_doc.sh BUILD
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if ! "$1/bin/sinter-opt" --list-ops --format=markdown | diff -u "$root/docs/ops.md" -; then
  echo "docs/ops.md is out of date: sinter-opt --list-ops --format=markdown > docs/ops.md"
  exit 1
fi
