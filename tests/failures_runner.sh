#!/usr/bin/env bash
# A test of tests/failures.sh: a report of ctest with one test of each end.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

{
  echo '<?xml version="1.0" encoding="UTF-8"?>'
  echo '<testsuite name="(empty)" tests="6" failures="2" skipped="3" time="1">'
  echo '<testcase name="good" classname="good" time="0.1" status="run">'
  echo '<system-out>ERROR: of no importance</system-out>'
  echo '</testcase>'
  echo '<testcase name="a &amp; b &lt;3&gt;" classname="a" time="0.1" status="fail">'
  echo '<failure message=""/>'
  echo '<system-out>[doctest] doctest version is &quot;2.4.9&quot;'
  echo '==============================================='
  echo 'file.cpp:7:'
  for i in 1 2 3 4 5 6 7 8 9; do echo "line $i"; done
  echo 'file.cpp:9: ERROR: CHECK( x &lt; 1 ) is NOT correct!'
  echo 'line 10'
  echo '</system-out>'
  echo '</testcase>'
  echo '<testcase name="skips" classname="skips" time="0.1" status="notrun">'
  echo '<skipped message="SKIP_RETURN_CODE=77"/>'
  echo '<system-out>no GPU</system-out>'
  echo '</testcase>'
  echo '<testcase name="absent" classname="absent" time="0" status="notrun">'
  echo '<skipped message="Unable to find executable"/>'
  echo '<system-out>Unable to find executable: /x</system-out>'
  echo '</testcase>'
  echo '<testcase name="slow" classname="slow" time="9" status="fail">'
  echo '<failure message=""/>'
  echo '<system-out></system-out>'
  echo '</testcase>'
  echo '</testsuite>'
} >"$folder/report.xml"

{
  echo 'FAILED: asan: a & b <3>'
  echo '    file.cpp:7:'
  for i in 1 2 3 4 5 6 7; do echo "    line $i"; done
  echo '    file.cpp:9: ERROR: CHECK( x < 1 ) is NOT correct!'
  echo 'FAILED: asan: absent'
  echo '    Unable to find executable: /x'
  echo 'FAILED: asan: slow'
  echo '    no output: killed, or out of time'
} >"$folder/expected"
"$root/tests/failures.sh" asan "$folder/report.xml" | diff -u "$folder/expected" -
