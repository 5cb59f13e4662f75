#!/usr/bin/env bash
# The cache as programs meet it, for host kernels and, where NVRTC is there, for cubins:
# cache.sh BUILD CASE ROUNDS
#
#   CC-02  8 processes start together on an empty cache, ROUNDS times; half of the rounds remove the
#          folder while they run
#   CC-04  no home; a folder that is read-only, or of another user; a full disk
#   CC-11  the second start runs no compiler
set -euo pipefail
build=$(realpath "$1")
case=$2
rounds=${3:-3}
scratch=$build/tests/cache_$case
rm -rf "$scratch"
mkdir -p "$scratch"
cd "$scratch"
chmod 755 .
export PATH=$build/bin:$PATH SINTER_CACHE=$scratch/cache
unset SINTER_LOG XDG_CACHE_HOME

cat >graph.sir <<'SIR'
graph @f(%x: f32[64,32]) -> (f32[64,32], f32[32]) {
  %y = softmax %x : f32[64,32]
  %s = sum %y {axes = [0]} : f32[32]
  %t = tanh %s : f32[32]
  return %y, %t
}
SIR
fail() { echo "$case: $1"; exit 1; }

# host OUT, cuda OUT: the result of a process goes to OUT, its messages to OUT.err.
host() { sinter-run graph.sir --input x=fill:1 --device=cpu --format=hex --timing >"$1" 2>"$1.err"; }
cuda() { sinter-opt graph.sir --emit=cubin --target=sm_90a --timing >"$1" 2>"$1.err"; }

kinds=()
status=0
host probe || status=$?
[[ $status == 0 ]] && kinds+=(host)
[[ $status == 0 || $status == 3 ]] || { cat probe.err; fail "the host run ends with $status"; }
if cuda probe.cuda; then
  kinds+=(cuda)
elif ! grep -qE 'NVRTC not found|without the CUDA backend|built without' probe.cuda.err; then
  cat probe.cuda.err
  fail "no cubin"
fi
if [[ ${#kinds[@]} == 0 ]]; then
  echo "skipped: neither a C++ compiler nor NVRTC"
  exit 77
fi
rm -rf cache

warnings() { grep -c 'warning' "$1" || true; }

together() {
  local kind=$1 removed=$2 pids=() i pid
  rm -rf cache
  for i in 1 2 3 4 5 6 7 8; do
    "$kind" "out.$i" &
    pids+=($!)
  done
  for i in 1 2 3 4 5; do
    if [[ $removed ]]; then
      sleep 0.1
      rm -rf cache 2>/dev/null || true
    fi
  done
  for pid in "${pids[@]}"; do wait "$pid" || { cat out.*.err; fail "a process of $kind failed"; }; done
  for i in 2 3 4 5 6 7 8; do cmp out.1 "out.$i"; done
  if [[ ! $removed ]]; then
    [[ -z $(find cache -name '.*.tmp') ]] || fail "a temporary file stays"
    [[ $(cat out.*.err | grep -c warning) == 0 ]] || { cat out.*.err; fail "a warning"; }
  fi
}

# refused KIND [PREFIX...]: runs with the prefix, gives the right result and one warning.
refused() {
  local kind=$1
  shift
  "$@" bash -c "$(declare -f host cuda); $kind limited" || { cat limited.err; fail "$kind failed"; }
  cmp "right.$kind" limited
  [[ $(warnings limited.err) == 1 ]] || { cat limited.err; fail "not one warning"; }
  grep -q 'set SINTER_CACHE to a folder that can be written' limited.err ||
    { cat limited.err; fail "the warning does not name SINTER_CACHE"; }
}

case $case in
  CC-02)
    for kind in "${kinds[@]}"; do
      for ((round = 0; round < rounds; ++round)); do together "$kind" ''; done
      for ((round = 0; round < rounds; ++round)); do together "$kind" removed; done
    done
    ;;
  CC-04)
    for kind in "${kinds[@]}"; do
      "$kind" "right.$kind"
      refused "$kind" env -u HOME -u SINTER_CACHE
      # A disk that is full, and a quota of nothing, say so when a file is opened or written.
      refused "$kind" env SINTER_CACHE=/dev/full/cache
      refused "$kind" env SINTER_CACHE=/proc/sinter
      mkdir -p locked
      chmod 500 locked
      if [[ $(id -u) != 0 ]]; then
        refused "$kind" env SINTER_CACHE="$scratch/locked"
      elif mkdir -p small && mount -t tmpfs -o size=4k tmpfs small 2>/dev/null; then
        trap 'umount "$scratch/small"' EXIT
        head -c 8192 /dev/zero >small/full 2>/dev/null || true
        refused "$kind" env SINTER_CACHE="$scratch/small"
        trap - EXIT
        umount small
      fi
      chmod 700 locked
    done
    ;;
  CC-11)
    # A compiler that writes down when it is called.
    printf '#!/bin/sh\necho called >>"%s/calls"\nexec %s "$@"\n' "$scratch" \
      "$(command -v "${SINTER_CXX:-c++}")" >cxx
    chmod +x cxx
    for kind in "${kinds[@]}"; do
      [[ $kind == cuda ]] || export SINTER_CXX=$scratch/cxx
      "$kind" first
      [[ $kind == cuda || -s calls ]] || fail "the compiler of SINTER_CXX was not called"
      rm -f calls
      "$kind" second
      cmp first second
      [[ ! -e calls ]] || fail "the second start calls the host compiler"
      if [[ $kind == host ]]; then
        grep -qE '[1-9][0-9]* compiled, 0 from the cache' first.err || { cat first.err; fail first; }
        grep -qE ' 0 compiled, [1-9][0-9]* from the cache' second.err ||
          { cat second.err; fail "the second start compiles"; }
      else
        grep -qE 'NVRTC: [1-9][0-9]* kernels compiled, 0 from' first.err ||
          { cat first.err; fail first; }
        grep -qE 'NVRTC: 0 kernels compiled, [1-9][0-9]* from the cache' second.err ||
          { cat second.err; fail "the second start calls NVRTC"; }
      fi
    done
    ;;
  *) fail "no such case" ;;
esac
echo "$case holds for ${kinds[*]}"
