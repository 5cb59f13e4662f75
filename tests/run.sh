#!/usr/bin/env bash
# Builds sinter and runs its tests: tests/run.sh [--all]
#
# Installs what is missing first (see cmake/setup.sh). --all adds the build without CUDA, the
# sanitizer builds, the clang build, the layout of the code and clang-tidy on the sources that a
# change touches. The last line counts everything:
# `N passed, N failed, N skipped`; the exit status is 0 if nothing failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. cmake/setup.sh

all=
level=test
case ${1:-} in
  '') ;;
  --all) all=1 level=all ;;
  *) echo "usage: tests/run.sh [--all]" >&2; exit 1 ;;
esac
setup_install $level

jobs=$(nproc)
passed=0
failed=0
skipped=0
# What failed, to be told again at the end: the log of all presets is long.
failures=

heading() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

# one STATUS PRESET: NAME [LOG]: counts a check that is not a ctest entry; LOG is what it printed.
one() {
  if [[ $1 == 0 ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+="FAILED: $2"$'\n'
    if [[ -s ${3:-} ]]; then failures+=$(told "$3")$'\n'; fi
    echo "FAILED: $2"
  fi
}

# told LOG: the first lines that speak of an error, else the last ones.
told() {
  local lines
  lines=$(grep -m 4 -A3 -E '(error|warning|FAILED):|undefined reference|CMake Error' "$1") ||
    lines=$(tail -n 8 "$1")
  head -n 12 <<<"$lines" | cut -c1-200 | sed 's/^/    /'
}

# build PRESET [TARGET...]: configures and builds; a failure counts as one failed test.
build() {
  heading "build $1"
  local targets=("${@:2}")
  mkdir -p "build/$1"
  if cmake --preset "$1" >"build/$1/configure.log" 2>&1 &&
      cmake --build --preset "$1" -j "$jobs" ${targets[0]:+--target "${targets[@]}"} 2>&1 | tee "build/$1/build.log" | summary; then
    return 0
  fi
  grep -A5 'CMake Error' "build/$1/configure.log" || true
  local log=build/$1/build.log
  if grep -q 'CMake Error' "build/$1/configure.log"; then log=build/$1/configure.log; fi
  one 1 "$1: build" "$log"
  return 1
}

# Of a build's output what a person wants to see: not the thousand lines that went well.
summary() { grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Creating|Re-checking)' || true; }

# run_tests PRESET [ARGUMENT...]: runs its tests, those that ctest's arguments choose, and adds up
# what ctest reports.
run_tests() {
  heading "tests $1"
  local report=$PWD/build/$1/tests.xml status=0
  rm -f "$report"
  ctest --preset "$1" -j "$jobs" --output-junit "$report" "${@:2}" || status=$?
  if [[ ! -s $report ]]; then
    one 1 "$1: no test ran"
    return
  fi
  # A test that could not run is a failure; one that said so itself (exit 77) is skipped.
  local total ok skip
  total=$(grep -c '<testcase ' "$report") || true
  ok=$(grep -c '<testcase .*status="run"' "$report") || true
  skip=$(grep -c '<skipped message="SKIP_RETURN_CODE' "$report") || true
  passed=$((passed + ok))
  skipped=$((skipped + skip))
  failed=$((failed + total - ok - skip))
  if [[ $((total - ok - skip)) -gt 0 ]]; then failures+=$(tests/failures.sh "$1" "$report")$'\n'; fi
  if [[ $status != 0 && $((total - ok - skip)) == 0 ]]; then one 1 "$1: ctest ended with $status"; fi
}

build release && run_tests release

if [[ $all ]]; then
  heading "warnings of g++"
  one "$(grep -q 'warning:' build/release/build.log && echo 1 || echo 0)" "release: g++ warns" \
    build/release/build.log

  heading "layout of the code"
  if format=$(setup_clang_format); then
    mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cuh')
    status=0
    "$format" --dry-run -Werror "${files[@]}" 2>&1 | tee build/format.log || status=$?
    one $status "all: clang-format" build/format.log
  else
    echo "skipped: no clang-format 14"
    skipped=$((skipped + 1))
  fi

  heading "clang-tidy"
  if command -v clang-tidy >/dev/null; then
    status=0
    tests/tidy.sh build/release | tee build/tidy.log || status=$?
    one $status "all: clang-tidy" build/tidy.log
  else
    echo "skipped: no clang-tidy"
    skipped=$((skipped + 1))
  fi

  build cpu && run_tests cpu -R '^rules/install$'
  build clang && run_tests clang
  build asan && run_tests asan
  # What threads share: the compile, the cache, the pool.
  build tsan test_runtime test_cases && run_tests tsan -R 'CC-13|/cache: |threads|thread pool'
fi

printf '\n%s' "$failures"
printf '\n%d passed, %d failed, %d skipped\n' $passed $failed $skipped
[[ $failed == 0 ]]
