#!/usr/bin/env bash
# Runs what a document shows: docs.sh BUILD DOCUMENT
#
# Each fenced block says what it holds:
#   sh               commands, run together in a scratch folder; they must succeed
#   console          `$ command` lines, each followed by what it prints, standard error included; a
#                    line `…` stands for any lines
#   sir, cpp, …      with `file=NAME`, a file that later commands find; sir without it must parse
#   text             anything else
# `sh gpu` needs a GPU and `sh minutes` runs for minutes: those are counted as skipped. A block
# without a word is refused, so that no command goes unseen. In the scratch folder build/release/bin
# is that of BUILD, whose programs are on PATH too. Exit status 77: every command was skipped.
set -euo pipefail
build=$(realpath "$1")
document=$(realpath "$2")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$build/tests/docs/$(basename "$document" .md)
rm -rf "$scratch"
mkdir -p "$scratch/build/release"
ln -s "$build/bin" "$scratch/build/release/bin"
for name in examples docs tests; do ln -s "$root/$name" "$scratch/$name"; done
export PATH=$build/bin:$PATH SINTER_CACHE=$build/tests/cache
cd "$scratch"

ran=0 skipped=0 failed=0
fail() {
  failed=$((failed + 1))
  printf '%s:%d: %s\n' "${document#"$root"/}" "$line_of_block" "$1"
}

# matches OUTPUT EXPECTED: equal, but for what `…` lines stand for.
matches() {
  local rest=$1 expected=$2 piece first=1
  while true; do
    piece=${expected%%$'…\n'*}
    if [[ $piece == "$expected" ]]; then
      # The last piece: all that is left, or the end after something left out.
      if [[ $first ]]; then [[ $rest == "$piece" ]]; else [[ $rest == *"$piece" ]]; fi
      return
    fi
    if [[ $first ]]; then
      [[ $rest == "$piece"* ]] || return 1
    else
      [[ $rest == *"$piece"* ]] || return 1
    fi
    rest=${rest#*"$piece"}
    expected=${expected#*$'…\n'}
    first=
  done
}

# One `$` command of a console block and what should come out.
show() {
  local output
  ran=$((ran + 1))
  output=$(bash -uo pipefail -c "$1" 2>&1; echo .)
  output=${output%.}
  matches "$output" "$2" && return
  fail "\`$1\` prints something else:"
  diff <(printf '%s' "$2") <(printf "%s" "$output") | head -n 20 || true
}

run_console() {
  local command='' expected='' text
  while IFS= read -r text; do
    if [[ $text == '$ '* ]]; then
      if [[ $command ]]; then show "$command" "$expected"; fi
      command=${text#'$ '} expected=''
    else
      expected+=$text$'\n'
    fi
  done <<<"${1%$'\n'}"
  show "$command" "$expected"
}

handle() {
  local info=$1 body=$2 word
  word=${info%% *}
  case $info in
    '') fail 'a block that does not say what it holds' ;;
    *file=*) printf '%s' "$body" >"${info#*file=}" ;;
    'sh gpu' | 'sh minutes')
      skipped=$((skipped + 1))
      echo "skipped (${info#sh }): ${body%%$'\n'*}"
      ;;
    sh)
      ran=$((ran + 1))
      bash -euo pipefail -c "$body" >log 2>&1 || { fail 'the commands fail:'; tail -n 20 log; }
      ;;
    console) run_console "$body" ;;
    sir) printf '%s' "$body" >block.sir
      ran=$((ran + 1))
      sinter-opt block.sir >log 2>&1 || { fail 'the module does not parse:'; tail -n 5 log; } ;;
    text | cpp | cmake) ;;
    *) fail "an unknown kind of block, '$word'" ;;
  esac
}

number=0 inside='' info='' body='' line_of_block=0
while IFS= read -r text || [[ $text ]]; do
  number=$((number + 1))
  if [[ $text == '```'* ]]; then
    if [[ $inside ]]; then
      handle "$info" "$body"
      inside=''
    else
      inside=1 info=${text#'```'} body='' line_of_block=$number
    fi
  elif [[ $inside ]]; then
    body+=$text$'\n'
  fi
done <"$document"

echo "$(basename "$document"): $ran run, $skipped skipped, $failed failed"
[[ $failed == 0 ]] || exit 1
[[ $ran -gt 0 || $skipped == 0 ]] || exit 77
