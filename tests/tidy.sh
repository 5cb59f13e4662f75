#!/usr/bin/env bash
# clang-tidy on the sources that a change touches: tidy.sh BUILD [FILE...]
#
# Without files: those of the last commit, or of all since SINTER_TIDY_BASE, a commit. BUILD holds
# compile_commands.json. A file takes some seconds, so that all of them would take an hour.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
files=("${@:2}")
if [[ ${#files[@]} == 0 ]]; then
  base=${SINTER_TIDY_BASE:-$(git rev-parse -q --verify HEAD~1 || true)}
  [[ -n $base ]] || { echo "there is no earlier commit to compare with"; exit 0; }
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- '*.cpp')
fi
# What the build does not compile, as the CUDA backend where there are no headers, has no command.
known=()
for file in ${files[0]:+"${files[@]}"}; do
  if grep -q "\"file\": \".*/$file\"" "$build/compile_commands.json"; then known+=("$file"); fi
done
[[ ${#known[@]} -gt 0 ]] || { echo "no source to look at"; exit 0; }
printf '%s\n' "${known[@]}" |
  xargs -P "$(nproc)" -n 2 clang-tidy -p "$build" --quiet --header-filter='^$' \
    --warnings-as-errors='*' 2>/dev/null
echo "${#known[@]} sources are tidy"
