# shellcheck shell=bash
# Sourced by the scripts beside it: brings a machine to the point where duet is configured, and builds.
# Everything it prints goes to stderr; a stage that has nothing to do prints nothing.
#
# DUET_TORCH=DIR, or CMAKE_PREFIX_PATH with a LibTorch in it: use that one instead of the pinned wheel in .venv.
# DUET_CUDA=1|0: install NVIDIA's libraries or not, whatever this machine has.
# DUET_TORCH_VERSION=2.13: the newest release of that version, from 2.11 to 2.15, in a folder and build trees of its own.
# CXX=COMPILER: use that one. clang++-19 takes half the time of g++ 12, and both give the same bits.
# DUET_JOBS=N: compile N files, run N tests at once.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

packages=(
  clang-19 g++ cmake ninja-build mold python3-venv python3-dev
  libspdlog-dev nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libgloo-dev libxxhash-dev libpng-dev libjpeg62-turbo-dev
  zlib1g-dev libgtest-dev libgmock-dev libbenchmark-dev openmpi-bin dataset-fashion-mnist)

say() { printf 'duet: %s\n' "$*" >&2; }

# fail STATUS MESSAGE...: 2 means that the machine must be changed by its owner, 1 that a stage failed.
fail() {
  local status=$1
  shift
  say "$*"
  exit "$status"
}

# One set-up at a time in this folder. unlock() before the program starts.
lock() {
  mkdir -p "$root/build"
  exec 9>"$root/build/.lock"
  flock --nonblock 9 || { say "waiting for another set-up of this folder"; flock 9; }
}
unlock() { exec 9>&-; }

# Of these Debian packages those that are not installed, one a line.
missing_of() {
  local installed package
  installed=" $(dpkg-query -W -f='${Package}=${db:Status-Status} ' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    [[ $installed == *" $package=installed "* ]] || printf '%s\n' "$package"
  done
}

# apt_install PACKAGE...: as root. What it says is in build/packages.log.
apt_install() {
  say "installing packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update >&2 || say "apt-get update failed; trying with the lists there are"
  apt-get -qq install --yes --no-install-recommends "$@" >"$root/build/packages.log" 2>&1 || {
    tail -n 20 "$root/build/packages.log" >&2
    return 1
  }
}

# install_packages PACKAGE...
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    command -v cmake >/dev/null && command -v ninja >/dev/null && return 0
    fail 2 "this is not a Debian system; install what these Debian packages hold, then call again: $*"
  fi
  local missing
  mapfile -t missing < <(missing_of "$@")
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    say "these packages are missing; install them, then call again:"
    echo "sudo apt-get install --yes --no-install-recommends ${missing[*]}" >&2
    exit 2
  fi
  apt_install "${missing[@]}" || fail 1 "installing packages failed; the whole output is in build/packages.log"
}

# As root, or not at all.
install_optional() {
  local missing
  ((EUID == 0)) && command -v dpkg-query >/dev/null || return 0
  mapfile -t missing < <(missing_of "$@")
  ((${#missing[@]} == 0)) || apt_install "${missing[@]}" || say "there is no ${missing[*]}; what needs it will say so"
}

# Sets `torch` to the LibTorch that the user named, or to nothing.
find_own_torch() {
  torch="" venv="$root/.venv"
  if [[ -n ${DUET_TORCH_VERSION:-} ]]; then
    install_version
    return
  fi
  if [[ -n ${DUET_TORCH:-} ]]; then
    [[ -e $DUET_TORCH/include/ATen/ATen.h ]] ||
      fail 2 "DUET_TORCH=$DUET_TORCH holds no include/ATen/ATen.h; name the folder that has include/ and lib/"
    torch="$(cd "$DUET_TORCH" && pwd)"
    return
  fi
  local entry folder entries
  IFS=':;' read -ra entries <<<"${CMAKE_PREFIX_PATH:-}"
  for entry in ${entries[@]+"${entries[@]}"}; do
    # A wheel's torch.utils.cmake_prefix_path is share/cmake inside the LibTorch folder.
    for folder in "$entry" "$entry/libtorch" "$entry/torch" "$entry/../.."; do
      if [[ -n $entry && -e $folder/include/ATen/ATen.h ]]; then
        torch="$(cd "$folder" && pwd)"
        return
      fi
    done
  done
}

find_python() {
  for python in python3 python3.11 python3.12 python3.13 python3.14; do
    "$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
      2>/dev/null && return
  done
  fail 2 "LibTorch's pinned wheels need a Python of 3.11 to 3.14 with its venv module;" \
    "install one, or name a LibTorch of your own in DUET_TORCH"
}

# A wheel as its publisher resolves it: no pinned list.
install_version() {
  [[ $DUET_TORCH_VERSION =~ ^2\.1[1-5]$ ]] || fail 2 "LibTorch $DUET_TORCH_VERSION is not supported, expected 2.11 to 2.15"
  venv="$root/.venv-torch-$DUET_TORCH_VERSION"
  if [[ ! -e $venv/.duet-stamp ]]; then
    find_python
    say "installing torch $DUET_TORCH_VERSION (about 5.5 GB) into ${venv#"$root"/}"
    "$python" -m venv "$venv" >&2 || fail 1 "$python -m venv $venv failed"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --only-binary=:all: \
      "torch==$DUET_TORCH_VERSION.*" >&2 || fail 1 "installing torch failed; the next call starts it again"
    touch "$venv/.duet-stamp"
  fi
  torch="$(echo "$venv"/lib/python3*/site-packages/torch)"
  export DUET_BUILD_SUFFIX="-torch-$DUET_TORCH_VERSION"  # see CMakePresets.json
}

# What libtorch_cpu.so needs: a fourth of what the wheel asks for.
cpu_requirements() {
  awk '/^[a-zA-Z]/ {wanted = /^(torch|nvidia-cuda-runtime|nvidia-cuda-cupti)==/} wanted' "$root/requirements.txt"
}

has_gpu_driver() { [[ ${DUET_CUDA:-} == 1 || (-z ${DUET_CUDA:-} && -e /proc/driver/nvidia/version) ]]; }

# install_venv FOLDER REQUIREMENTS WHAT [SUFFIX]: a virtual environment that holds the pinned packages; several lists
# may share one, each with a SUFFIX of its own. The stamp is written last, and a set-up that was broken off installs
# all of its list again.
install_venv() {
  local venv=$1 requirements=$2 what=$3 suffix=${4:-} stamp force=()
  stamp="$(sha256sum <"$requirements")"
  [[ -e $venv/.duet-stamp$suffix && $(<"$venv/.duet-stamp$suffix") == "$stamp" && -x $venv/bin/python ]] && return
  find_python
  say "installing $what into ${venv#"$root"/}"
  [[ -e $venv/.duet-unfinished$suffix ]] && force=(--force-reinstall)
  mkdir -p "$venv"
  touch "$venv/.duet-unfinished$suffix"
  rm -f "$venv/.duet-stamp$suffix"
  "$python" -m venv "$venv" >&2 || fail 1 "$python -m venv $venv failed"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes \
    --only-binary=:all: ${force[@]+"${force[@]}"} -r "$requirements" >&2 ||
    fail 1 "installing $what failed; the next call starts it again"
  rm -f "$venv/.duet-unfinished$suffix"
  printf '%s\n' "$stamp" >"$venv/.duet-stamp$suffix"
}

# Packages and a LibTorch, with NVIDIA's libraries where there is a driver. What imports torch (tests, the Python package)
# needs them anyway: prepare all.
prepare() {
  install_packages "${packages[@]}"
  find_own_torch
  [[ -n $torch ]] || install_torch "$@"
}

wants_cuda() { [[ ${1:-} == all || -e $root/.venv/.duet-stamp ]] || has_gpu_driver; }

install_torch() {
  if wants_cuda "$@"; then
    install_venv "$root/.venv" "$root/requirements.txt" "torch 2.15.0 (5.5 GB)"
  else
    cpu_requirements >"$root/build/requirements-cpu.txt"
    install_venv "$root/.venv" "$root/build/requirements-cpu.txt" "the CPU half of torch 2.15.0 (1.2 GB)" -cpu
  fi
}

# What a wheel is made of, and for which part of torch.
wheel_sources() {
  (cd "$root" && find base checkpoint cli cmake core data distributed eager graph hooks io metrics optim python CMakeLists.txt \
    duet.h make_trainer.* pyproject.toml -type f ! -name '*.pyc' -exec sha256sum {} + | LC_ALL=C sort | sha256sum)
  wants_cuda && echo cuda || echo cpu
}

# Sets `program` to that of the wheel which scripts/wheel left in dist/, if it is made of the sources that lie here.
install_wheel() {
  local sources stamp="$root/.venv/.duet-wheel"
  [[ -e $root/dist/sources && -z ${DUET_TORCH:-}${DUET_TORCH_VERSION:-}${CMAKE_PREFIX_PATH:-} ]] || return 1
  sources="$(wheel_sources)"
  [[ $(<"$root/dist/sources") == "$sources" ]] || return 1
  install_optional python3-venv dataset-fashion-mnist
  install_torch
  program="$(echo "$root"/.venv/lib/python3*/site-packages)/duet/bin/duet"
  [[ -x $program && -e $stamp && $(<"$stamp") == "$sources" ]] && return
  say "installing the wheel in dist/"
  "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall \
    "$root"/dist/duet-*.whl >&2 || return 1
  printf '%s\n' "$sources" >"$stamp"
}

# The foreign readers of duet's files. With a LibTorch of the user's own there is no .venv to put them into: the tests
# on them are then skipped.
prepare_tests() {
  if [[ -z $torch || -n ${DUET_TORCH_VERSION:-} ]]; then
    install_venv "$venv" "$root/tests/requirements.txt" "what the tests use of other programs (105 MB)" -tests
  fi
}

# A browser, sanitizers for clang, headers of another kind of CPU, and what builds the site. What cannot be installed here
# is skipped by the tests.
prepare_slow_tests() {
  install_optional libclang-rt-19-dev llvm-19 chromium libc6-dev-arm64-cross libstdc++-12-dev-arm64-cross
  [[ -n $torch ]] || install_docs
}

# What the site of docs/ is built with.
install_docs() { install_venv "$root/.venv-docs" "$root/docs/requirements.txt" "what builds the site (20 MB)"; }

# A file with LibTorch's headers takes about 1.5 GB to compile.
jobs() {
  local cores megabytes limit
  [[ -n ${DUET_JOBS:-} ]] && { echo "$DUET_JOBS"; return; }
  cores="$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)"
  megabytes="$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)"
  limit="$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)"
  [[ $limit != max ]] && ((limit / 1048576 < megabytes)) && megabytes=$((limit / 1048576))
  local fit=$((megabytes / 1500))
  ((fit < 1)) && fit=1
  echo $((fit < cores ? fit : cores))
}

# log_configuring FOLDER COMMAND...: its output goes into the folder, and its end to the user if it fails.
log_configuring() {
  local folder=$1
  shift
  "$@" >"$folder/configure.log" 2>&1 && return
  tail -n 20 "$folder/configure.log" >&2
  fail 1 "configuring failed; the whole output is in ${folder#"$root"/}/configure.log"
}

# configure PRESET [CMAKE-ARGS...]: once, and again when the LibTorch, the presets or the arguments change. Ninja sees to
# the rest.
configure() {
  local preset=$1 folder="$root/build/$1${DUET_BUILD_SUFFIX:-}" stamp full=""
  shift
  [[ -n ${CXX:-} ]] || ! command -v clang++-19 >/dev/null || local -x CXX=clang++-19
  [[ -e $root/.venv/.duet-stamp ]] && full=" with CUDA"
  stamp="$torch$full ${CXX:-} $(sha256sum <"$root/CMakePresets.json")${*:+ $*}"
  [[ -e $folder/build.ninja && -e $folder/.duet-stamp && $(<"$folder/.duet-stamp") == "$stamp" ]] && return
  say "configuring ${folder#"$root"/}${torch:+ with the LibTorch in $torch}"
  mkdir -p "$folder"
  rm -f "$folder/.duet-stamp"
  log_configuring "$folder" cmake -S "$root" --fresh --preset "$preset" "-DDUET_TORCH=$torch" "$@"
  printf '%s\n' "$stamp" >"$folder/.duet-stamp"
}

# build PRESET TARGET...: says so if there is something to compile, and shows its progress on a terminal.
build() {
  local preset=$1 folder="$root/build/$1${DUET_BUILD_SUFFIX:-}" quiet=(--quiet)
  shift
  # Under its own name a dry run would end with the look for new files.
  ln -sf build.ninja "$folder/dry_run.ninja"
  log_configuring "$folder" ninja -C "$folder" build.ninja
  [[ $(ninja -C "$folder" -f dry_run.ninja -n "$@" 2>&1) == *"no work to do"* ]] && return
  say "building $* in ${folder#"$root"/}, $(jobs) files at once"
  [[ -t 2 ]] && quiet=()
  ninja -C "$folder" ${quiet[@]+"${quiet[@]}"} -j "$(jobs)" "$@" >&2 || fail 1 "building $* failed"
}
