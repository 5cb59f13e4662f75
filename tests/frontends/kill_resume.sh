#!/usr/bin/env bash
# Kills a training run at random moments and lets it go on each time: kill_resume.sh FOLDER DATA KILLS
#
# Parameters, moments and losses must end in the bits of a run that nobody disturbed.
# SINTER_TEST_KILLS in the environment replaces KILLS; SINTER_TEST_DEVICE replaces cpu.
set -euo pipefail
folder=$1 data=$2 kills=${SINTER_TEST_KILLS:-$3} device=${SINTER_TEST_DEVICE:-cpu}
shift 3
rm -rf "$folder"
mkdir -p "$folder"

model=(--layers 1 --heads 2 --width 16 --context 32 --batch 4 --dropout 0.1 --schedule cosine
  --warmup 5 --steps 60 "$@")
# In a subshell, which the program takes the place of, so that a kill meets the program.
run() { # run OUT ARGUMENTS...
  local out=$1
  shift
  exec train_gpt --data "$data" "--device=$device" --sample 0 --save-every 7 --eval-every 20 \
    --out "$out" "$@"
}

now() { date +%s%N; }
(run "$folder/whole" "${model[@]}") >"$folder/whole.txt" 2>"$folder/log"
# Once more, with warm caches, for the time that a run takes.
begin=$(now)
(run "$folder/timed" "${model[@]}") >/dev/null 2>>"$folder/log"
length=$(($(now) - begin))

RANDOM=${SINTER_TEST_SEED:-1}
resume=()
for ((i = 0; i < kills; ++i)); do
  (run "$folder/broken" "${model[@]}" "${resume[@]}") >/dev/null 2>>"$folder/log" &
  writer=$!
  # Mostly within the steps, now and then before them or after.
  nanoseconds=$(((RANDOM * 32768 + RANDOM) % length))
  sleep "$((nanoseconds / 1000000000)).$(printf %09d $((nanoseconds % 1000000000)))"
  kill -9 "$writer" 2>/dev/null || true
  wait "$writer" 2>/dev/null || true
  [[ ! -e $folder/broken/metrics.jsonl ]] || resume=(--resume)
done
(run "$folder/broken" "${model[@]}" "${resume[@]}") >"$folder/broken.txt" 2>>"$folder/log"

cmp "$folder/whole.txt" "$folder/broken.txt"
for file in model optimizer; do
  cmp "$folder/whole/step-60/$file.safetensors" "$folder/broken/step-60/$file.safetensors"
done
# All but the time that steps took.
for name in whole broken; do
  sed 's/,"tokens_per_s".*//' "$folder/$name/metrics.jsonl" >"$folder/$name.metrics"
done
cmp "$folder/whole.metrics" "$folder/broken.metrics"
# Nothing half written is left.
[[ -z $(find "$folder/broken" -name '.*' ! -path "$folder/broken" -print) ]]
