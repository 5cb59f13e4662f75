#!/usr/bin/env bash
# A test of cmake/setup.sh on machines made of a folder of links: what is missing is found, asked
# for once and by its right name, and nothing is asked for where nothing is missing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
export LOG=$machine/log SETUP_LLVM_ROOT=$machine SETUP_DATA_ROOT=$machine
mkdir -p "$machine/share/datasets/fashion-mnist"
images=$machine/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
touch "$images"

# A machine with the named programs beside the basic ones; apt-get and sudo are ours.
fresh() {
  rm -rf "$machine/bin" "$LOG"
  mkdir -p "$machine/bin"
  local program
  for program in bash cat env grep sort head sed id uname "$@"; do
    ln -s "$(command -v "$program")" "$machine/bin/$program"
  done
  touch "$LOG"
}

# fake NAME BODY: a program of the machine.
fake() {
  rm -f "$machine/bin/$1"
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$machine/bin/$1"
  chmod +x "$machine/bin/$1"
}

# expect STATUS PATTERN LEVEL: setup_install ends so and prints a line that matches.
expect() {
  local status=0
  PATH=$machine/bin bash -euo pipefail -c ". '$root/cmake/setup.sh'; setup_install $3" \
    >"$machine/out" 2>&1 || status=$?
  if [[ $status != "$1" ]] || ! { [[ -z $2 ]] || grep -qE -- "$2" "$machine/out"; }; then
    echo "line ${BASH_LINENO[0]}: expected status $1 and /$2/, got $status and:"
    cat "$machine/out"
    exit 1
  fi
}

logged() {
  grep -qE -- "$1" "$LOG" || { echo "line ${BASH_LINENO[0]}: no /$1/ in:"; cat "$LOG"; exit 1; }
}

# Each package "installed" by apt-get brings the program of its name.
apt='echo "apt-get $*" >>"$LOG"
for word in "$@"; do
  case $word in
    cmake | ccache) printf "#!/bin/sh\n" >"'$machine'/bin/$word" ;;
    ninja-build) printf "#!/bin/sh\n" >"'$machine'/bin/ninja" ;;
    llvm-14-tools) printf "#!/bin/sh\n" >"'$machine'/bin/FileCheck-14" ;;
  esac
done
chmod +x "'$machine'"/bin/*'
# A compiler that finds every header.
compiler='sed -n "s/^found/found/p"'
cache='printf "llvm-18-tools\nllvm-14-tools\nllvm-14-dev\ndataset-fashion-mnist\n"'
tools=(chmod rm)

fresh "${tools[@]}"
fake uname 'case $1 in -s) echo Darwin ;; -m) echo arm64 ;; esac'
expect 1 '^sinter builds on Linux on x86-64 and aarch64 only, not on Darwin on arm64$' build
fake uname 'case $1 in -s) echo Linux ;; -m) echo riscv64 ;; esac'
expect 1 'not on Linux on riscv64$' build

# Nothing missing: no apt-get, no root.
fresh "${tools[@]}"
for program in cmake ninja ccache git FileCheck; do fake "$program" :; done
fake c++ "$compiler"
fake apt-get "$apt"
fake sudo 'echo sudo >>"$LOG"'
fake id 'echo 1000'
expect 0 '' test
[[ ! -s $LOG ]] || { echo "asked for something on a complete machine"; cat "$LOG"; exit 1; }

# As root: one update, one install of just what is missing.
rm "$machine/bin/cmake" "$machine/bin/ninja" "$machine/bin/FileCheck"
fake id 'echo 0'
fake apt-cache "$cache"
expect 0 '^installing cmake ninja-build llvm-14-tools$' test
logged '^apt-get -qq update$'
logged '^apt-get -qq install -y --no-install-recommends cmake ninja-build llvm-14-tools$'
[[ $(wc -l <"$LOG") == 2 ]] || { cat "$LOG"; exit 1; }

# As a user with a password-free sudo, and as one without.
rm "$machine/bin/cmake"
fake id 'echo 1000'
fake sudo '[[ $1 == -n ]] || exit 9; shift; echo "sudo $*" >>"$LOG"; "$@"'
expect 0 'installing cmake$' build
logged '^sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install .* cmake$'
rm "$machine/bin/cmake" "$machine/bin/sudo"
expect 1 '^sudo apt-get install -y --no-install-recommends cmake$' build
[[ $(wc -l <"$machine/out") == 1 ]] || { cat "$machine/out"; exit 1; }

# An install that does not bring the program is no success.
fake id 'echo 0'
fake apt-get :
expect 1 '^still missing after the install: cmake$' build
fake apt-get 'exit 100'
expect 1 '^apt-get could not install: cmake$' build

# Data that one test needs is asked for, but nobody is refused for its lack.
rm "$images"
fake cmake :
expect 0 '^apt-get could not install: dataset-fashion-mnist$' test
expect 0 '' build
fake id 'echo 1000'
expect 0 '^sudo apt-get install -y --no-install-recommends dataset-fashion-mnist$' test
fake id 'echo 0'
rm "$machine/bin/cmake"

# No apt: the packages are named. No compiler: its headers count as missing too.
rm "$machine/bin/apt-get" "$machine/bin/c++"
expect 1 '^sinter needs what Debian calls: build-essential cmake .*libopenblas-dev$' build
