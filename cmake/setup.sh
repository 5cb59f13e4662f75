# Sourced by tests/run.sh and examples/quickstart.sh: puts in place what they need.
#
# setup_install LEVEL, where LEVEL is build, test (and FileCheck) or all (and clang, clang-format):
# refuses systems other than Linux on x86-64 and aarch64; returns at once where nothing is missing;
# else installs it with apt as root or through `sudo -n`, or says what to install and exits 1.

# NAME COMMAND PACKAGE: a program counts as there if COMMAND is found.
setup_programs() {
  cat <<'LIST'
build c++ build-essential
build cmake cmake
build ninja ninja-build
build ccache ccache
build git git
test FileCheck llvm-tools
all clang++ clang
all clang-format-14 clang-format-14
all clang-tidy clang-tidy
LIST
}

# HEADER PACKAGE, all at level build.
setup_headers() {
  cat <<'LIST'
fmt/format.h libfmt-dev
spdlog/spdlog.h libspdlog-dev
nlohmann/json.hpp nlohmann-json3-dev
CLI/CLI.hpp libcli11-dev
doctest/doctest.h doctest-dev
xxhash.h libxxhash-dev
zlib.h zlib1g-dev
cblas.h libopenblas-dev
LIST
}

# FILE PACKAGE: data of a test that is skipped without it.
setup_data() {
  cat <<'LIST'
share/datasets/fashion-mnist/train-images-idx3-ubyte.gz dataset-fashion-mnist
LIST
}

# Of the packages on standard input those that must be there: for the lack of the others a check is
# skipped and nobody refused.
setup_required() {
  grep -vxE 'clang-format-14|clang-tidy|dataset-fashion-mnist' || true
}

# Where FileCheck is, under any of the names that distributions give it.
setup_filecheck() {
  local candidate
  for candidate in FileCheck FileCheck-{20,19,18,17,16,15,14}; do
    command -v "$candidate" && return 0
  done
  for candidate in "${SETUP_LLVM_ROOT:-/usr/lib}"/llvm-*/bin/FileCheck; do
    [[ -x $candidate ]] && echo "$candidate" && return 0
  done
  return 1
}

# A clang-format of version 14; others lay code out differently.
setup_clang_format() {
  if command -v clang-format-14; then return 0; fi
  [[ $(clang-format --version 2>/dev/null) == *"version 14."* ]] && echo clang-format
}

setup_have_program() {
  case $1 in
    FileCheck) setup_filecheck >/dev/null ;;
    clang-format-14) setup_clang_format >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# Debian's packages, one a line, that LEVEL needs and that are not there.
setup_missing() {
  local level package program header
  while read -r level program package; do
    case $1:$level in
      build:test | build:all | test:all) continue ;;
    esac
    setup_have_program "$program" || echo "$package"
  done < <(setup_programs)

  if [[ $1 != build ]]; then
    while read -r program package; do
      [[ -e ${SETUP_DATA_ROOT:-/usr}/$program ]] || echo "$package"
    done < <(setup_data)
  fi

  # One run of the preprocessor answers for all headers. Without a compiler none can be found out.
  local found=
  if command -v c++ >/dev/null; then
    found=$(
      setup_headers | while read -r header package; do
        printf '#if __has_include(<%s>)\nfound %s\n#endif\n' "$header" "$header"
      done | c++ -E -P -x c++ - 2>/dev/null
    )
  fi
  while read -r header package; do
    case $'\n'$found$'\n' in
      *$'\n'"found $header"$'\n'*) ;;
      *) echo "$package" ;;
    esac
  done < <(setup_headers)
}

# The names that this release has for packages whose name carries a version; nothing for one that
# it does not have, where a check is skipped for it.
setup_resolve() {
  local package
  while read -r package; do
    case $package in
      llvm-tools)
        apt-cache pkgnames llvm- | grep -E '^llvm-(1[4-9]|20)-tools$' | sort -V | head -1 |
          grep . || echo llvm
        ;;
      clang-format-14 | dataset-fashion-mnist)
        apt-cache pkgnames "$package" | grep -x "$package" || true
        ;;
      *) echo "$package" ;;
    esac
  done
}

setup_platform() {
  local system machine
  system=$(uname -s)
  machine=$(uname -m)
  case $system/$machine in
    Linux/x86_64 | Linux/aarch64) ;;
    *)
      echo "sinter builds on Linux on x86-64 and aarch64 only, not on $system on $machine" >&2
      exit 1
      ;;
  esac
}

setup_install() {
  setup_platform
  local missing as_root packages
  missing=$(setup_missing "$1")
  [[ -n $missing ]] || return 0

  if ! command -v apt-get >/dev/null; then
    missing=$(setup_required <<<"$missing")
    [[ -n $missing ]] || return 0
    echo "sinter needs what Debian calls: ${missing//$'\n'/ }" >&2
    exit 1
  fi
  if [[ $(id -u) == 0 ]]; then
    as_root=(env)
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n env)
  else
    packages=$(setup_resolve <<<"$missing")
    [[ -n $packages ]] || return 0
    echo "sudo apt-get install -y --no-install-recommends ${packages//$'\n'/ }" >&2
    [[ -n $(setup_required <<<"$missing") ]] || return 0
    exit 1
  fi

  "${as_root[@]}" apt-get -qq update || echo "apt-get update failed; going on with its old list" >&2
  packages=$(setup_resolve <<<"$missing")
  [[ -n $packages ]] || return 0
  echo "installing ${packages//$'\n'/ }"
  # shellcheck disable=SC2086  # one word for each package
  if ! "${as_root[@]}" DEBIAN_FRONTEND=noninteractive \
      apt-get -qq install -y --no-install-recommends $packages >/dev/null; then
    echo "apt-get could not install: ${packages//$'\n'/ }" >&2
    [[ -n $(setup_required <<<"$missing") ]] || return 0
    exit 1
  fi
  hash -r
  missing=$(setup_missing "$1" | setup_required)
  if [[ -n $missing ]]; then
    echo "still missing after the install: ${missing//$'\n'/ }" >&2
    exit 1
  fi
}
