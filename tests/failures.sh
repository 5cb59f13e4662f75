#!/usr/bin/env bash
# The tests that a report of ctest says failed: failures.sh PRESET REPORT
#
# For each of them `FAILED: PRESET: NAME`, the first lines of what it printed, and those further
# down that speak of an error. REPORT is what `ctest --output-junit` wrote. A test that said itself
# that it cannot run here (SKIP_RETURN_CODE) has not failed; one that could not be started has.
set -euo pipefail
awk -v preset="$1" '
  function decoded(text) {
    gsub(/&lt;/, "<", text)
    gsub(/&gt;/, ">", text)
    gsub(/&quot;/, "\"", text)
    gsub(/&apos;/, "\047", text)
    gsub(/&amp;/, "\\&", text)
    return text
  }
  # A line of the output of a failed test; a runner says nothing of its own.
  function told(line) {
    line = decoded(line)
    if (line ~ /^[ \t]*$/ || line ~ /^\[doctest\]/ || line ~ /^=+$/) return
    if (++lines > 8 && !(line ~ /ERROR|error:|FAILED|fault|Sanitizer/ && ++later <= 4)) return
    print "    " substr(line, 1, 200)
  }
  /<testcase / {
    name = $0
    sub(/^.*<testcase name="/, "", name)
    sub(/" classname=.*$/, "", name)
    failed = /status="fail"/
    unrun = /status="(notrun|disabled)"/
  }
  unrun && /<skipped message="SKIP_RETURN_CODE/ { unrun = 0 }
  (failed || unrun) && /<system-out>/ {
    print "FAILED: " preset ": " decoded(name)
    lines = later = 0
    inside = 1
    sub(/^.*<system-out>/, "")
  }
  inside && /<\/system-out>/ {
    sub(/<\/system-out>.*$/, "")
    told($0)
    if (!lines) print "    no output: killed, or out of time"
    inside = failed = unrun = 0
  }
  inside { told($0) }
' "$2"
