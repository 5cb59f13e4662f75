#!/usr/bin/env bash
# The classifier of examples/fashion_mnist.cpp on its real images: it learns, and says what is
# missing: fashion_mnist.sh BUILD
set -euo pipefail
program=$1/bin/fashion_mnist
scratch=$1/tests/fashion_mnist
rm -rf "$scratch"
mkdir -p "$scratch"

# Without the data: what to install, and nothing written.
if [[ ! -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]]; then
  ! "$program" --out "$scratch/out" 2>"$scratch/error" || { echo "trained on nothing"; exit 1; }
  grep -q "install Debian's package dataset-fashion-mnist" "$scratch/error" ||
    { cat "$scratch/error"; exit 1; }
  [[ ! -e $scratch/out ]]
  echo "skipped: Debian's package dataset-fashion-mnist is not installed"
  exit 77
fi
! "$program" --data "$scratch" 2>"$scratch/error" || { echo "trained on nothing"; exit 1; }
grep -q 'has no train-images-idx3-ubyte' "$scratch/error" || { cat "$scratch/error"; exit 1; }

# An epoch and a half.
"$program" --steps 700 --out "$scratch/out" >"$scratch/log" 2>"$scratch/progress" ||
  { cat "$scratch/progress"; exit 1; }
grep -qE '^\[=+\] 700/700  loss [0-9.]+  [0-9.k]+ images/s  0s left$' "$scratch/progress" ||
  { cat "$scratch/progress"; exit 1; }
accuracy=$(sed -n 's/^test accuracy //p' "$scratch/log")
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.83) }' || { echo "accuracy '$accuracy'"; exit 1; }
metrics=$scratch/out/metrics.jsonl
[[ $(grep -c '"images_per_s"' "$metrics") == 700 && $(grep -c '"test_accuracy"' "$metrics") == 2 ]] ||
  { tail -n 3 "$metrics"; exit 1; }

# The convolutional network, a fifth of an epoch.
"$program" --model conv --batch 64 --steps 200 >"$scratch/log" 2>"$scratch/progress" ||
  { cat "$scratch/progress"; exit 1; }
accuracy=$(sed -n 's/^test accuracy //p' "$scratch/log")
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.75) }' || { echo "conv: accuracy '$accuracy'"; exit 1; }
