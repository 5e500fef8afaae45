#!/bin/sh
# Makes gdbext ready: finds gdb (or installs it), looks into gdb's own Python, and puts pygments and pyelftools where
# that Python finds them. May be repeated; --uninstall takes everything back. See --help.
set -eu

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
DATA=${XDG_DATA_HOME:-$HOME/.local/share}/gdbext
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/gdbext
BEGIN='# >>> gdbext >>>'
END='# <<< gdbext <<<'

usage() {
  cat <<HELP
usage: ./install.sh [--gdbinit] [--lldbinit] [--completions] [--wheels DIR] [--core-handler] [--dry-run]
       ./install.sh --uninstall

Makes gdbext ready for this user.
  1. Finds gdb 10 or later with Python 3.9 or later inside; where there is none, installs it with the system's
     package manager (apt-get, dnf, yum, zypper, apk, pacman, conda) as root or through sudo.
  2. Asks gdb's own Python what it has. pygments and pyelftools that it lacks go into
     $DATA/site-X.Y, and a .pth file in that Python's user
     site makes it look there last. Your other Pythons' packages stay untouched.

  3. Says which LLDB there is, if any, and whether it will do (16 or later, with a Python that loads).

  --gdbinit     also adds one marked block to ~/.gdbinit, so that every gdb knows the commands
  --lldbinit    the same for ~/.lldbinit and LLDB
  --wheels DIR  takes the packages from a folder of wheels (a machine without network)
  --completions the manual page gdbext(1), and completions for bash and fish, below ${XDG_DATA_HOME:-$HOME/.local/share}
                (for zsh, put $ROOT/share/zsh/site-functions into fpath)
  --core-handler
                as root: the kernel calls gdbext for each crash, which keeps a diagnosis and a recording in
                /var/lib/gdbext instead of a core; until the next boot, unless you put the line into /etc/sysctl.d
  --dry-run     says what would be done and does nothing
  --uninstall   removes all of this, and the cache ($CACHE);
                a gdb that was installed stays
  --help        this text

Without installing anything, "source $ROOT/gdbext/init.py" in gdb
and $ROOT/scripts/dispatch work, too: the packages only add comfort.
HELP
}

say() { printf '%s\n' "$*"; }
warn() { printf 'install.sh: %s\n' "$*" >&2; }
fail() {
  warn "$1"
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# run COMMAND...: does it, or says it (--dry-run).
run() {
  if [ "$dry" = yes ]; then say "would run: $*"; else "$@"; fi
}

# --- gdb ---------------------------------------------------------------------------------------------------------

# The command that installs gdb with what this system has, on one line, without sudo.
gdb_install_command() {
  if have apt-get; then say "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gdb"
  elif have dnf; then say "dnf install -y gdb"
  elif have yum; then say "yum install -y gdb"
  elif have zypper; then say "zypper --non-interactive install gdb"
  elif have apk; then say "apk add gdb"
  elif have pacman; then say "pacman -S --noconfirm gdb"
  elif have conda; then say "conda install -y -c conda-forge gdb"
  fi
}

privilege() {
  case "$1" in conda*) return 0 ;; esac
  [ "$(id -u)" -eq 0 ] && return 0
  have sudo || return 1
  if [ -t 0 ]; then say sudo; else sudo -n true 2>/dev/null && say "sudo -n"; fi
}

# What to try where the system has no gdb that will do: the wheel brings gdb 18 with Python inside.
FROM_PYPI="or take gdb 18 from PyPI: python3 -m venv ~/gdb18 && ~/gdb18/bin/pip install gdb-for-pwndbg, and put ~/gdb18/bin first in PATH"

ensure_gdb() {
  have gdb && return
  command=$(gdb_install_command)
  [ -n "$command" ] || fail "gdb is missing, and no package manager that this script knows is here" \
    "install gdb 10 or later (with Python) your system's way, then run this again" "$FROM_PYPI"
  prefix=$(privilege "$command") || fail "gdb is missing, and this user may not install it" "as root: $command" "$FROM_PYPI"
  say "installing gdb: $prefix $command"
  # shellcheck disable=SC2086  # words of a command line
  if ! run $prefix $command && have apt-get; then
    run $prefix apt-get update
    run $prefix $command
  fi
  [ "$dry" = yes ] || have gdb || fail "gdb is still missing after: $prefix $command"
}

# in_gdb PYTHON: runs the code inside gdb, prints what it prints; fails when gdb has no Python.
in_gdb() {
  gdb -nx -nw -q -batch -ex "python $1" </dev/null 2>/dev/null
}

# What of the two packages gdb's Python lacks, as Python; one start of gdb tells it and the version.
LACKING='*[p for m, p in (("pygments", "pygments"), ("elftools", "pyelftools")) if not importlib.util.find_spec(m)]'

# Sets $version and $packages.
check_gdb() {
  version=$(in_gdb "import importlib.util, sys; print('%d.%d' % sys.version_info[:2], $LACKING)") || version=
  packages=${version#* }
  packages=${packages#"$version"}
  version=${version%% *}
  case "$version" in
    3.[0-8]) fail "the Python inside $(command -v gdb) is $version; 3.9 or later is needed" "install a newer gdb" "$FROM_PYPI" ;;
    3.*) say "gdb: $(command -v gdb), Python $version inside" ;;
    *) fail "$(command -v gdb) has no Python inside" "install your distribution's full gdb (not gdb-minimal), or conda's" ;;
  esac
}

# --- LLDB --------------------------------------------------------------------------------------------------------

# The version of an lldb whose Python loads; fails for any other. Apple's numbers (1500 and up) pass.
lldb_version() {
  "$1" --no-lldbinit -b -o 'script import lldb; print("loads", lldb.SBDebugger.GetVersionString().split()[2])' \
    </dev/null 2>/dev/null | sed -n 's/^loads //p'
}

# Sets $lldb and $lldb_is: the first of $LLDB, lldb and lldb-VERSION that will do; empty where none does. Each that does
# not is named with the reason.
find_lldb() {
  lldb=
  lldb_is=
  for candidate in "${LLDB:-}" lldb lldb-24 lldb-23 lldb-22 lldb-21 lldb-20 lldb-19 lldb-18 lldb-17 lldb-16; do
    if [ -z "$candidate" ] || ! have "$candidate"; then continue; fi
    lldb_is=$(lldb_version "$candidate")
    case "$lldb_is" in
      '') say "lldb: $(command -v "$candidate") has no Python inside, or one that cannot load LLDB's module" ;;
      [0-9].* | 1[0-5].*) say "lldb: $(command -v "$candidate") is version $lldb_is; 16 or later is needed" ;;
      *) lldb=$(command -v "$candidate"); return ;;
    esac
  done
}

check_lldb() {
  find_lldb
  if [ -n "$lldb" ]; then
    say "lldb: $lldb, version $lldb_is"
  elif [ "$lldbinit" = yes ]; then
    fail "no LLDB 16 or later with Python was found" "apt-get install lldb-16 (or your system's way), then this again"
  fi
}

# --- packages ----------------------------------------------------------------------------------------------------

missing_packages() {
  in_gdb "import importlib.util; print($LACKING)"
}

# Any pip will do: the packages are pure Python, and --target makes PEP 668 ("externally managed") no concern.
find_pip() {
  for python in "$ROOT/.venv/bin/python" python3 python python3.13 python3.12 python3.11 python3.10; do
    if have "$python" && "$python" -m pip --version >/dev/null 2>&1; then say "$python"; return; fi
  done
  return 1
}

# A Python without pip (Debian without python3-pip) may still be able to make an environment that has one.
borrow_pip() {
  have python3 && python3 -m venv "$1" >/dev/null 2>&1 && say "$1/bin/python"
}

ensure_packages() {
  if [ -z "$packages" ]; then say "packages: pygments and pyelftools are there"; return; fi
  site=$DATA/site-$version
  if [ "$dry" = yes ]; then say "would install: $packages into $site"; return; fi
  install_packages "$site" "$packages" || return 0
  tell_gdb "$site"
  packages=$(missing_packages)
  if [ -z "$packages" ]; then say "packages: installed into $site"; else
    warn "gdb's Python does not see $packages in $site (is its user site switched off, PYTHONNOUSERSITE?)"
  fi
}

# install_packages SITE PACKAGES
install_packages() {
  target=$1
  wanted=$2
  set --
  if [ -n "$wheels" ]; then set -- --no-index --find-links "$wheels"; fi
  scratch=$(mktemp -d)
  status=0
  python=$(find_pip) || python=$(borrow_pip "$scratch/venv") || python=
  if [ -z "$python" ]; then
    warn "no pip found for $wanted; gdbext works without. To have them: install python3-pip, run this again"
    status=1
  else
    mkdir -p "$DATA"
    # not compiled: this Python may be another one than gdb's, and what gdb imports is a tenth of it
    # shellcheck disable=SC2086  # a list of words
    if ! "$python" -m pip install -q --disable-pip-version-check --no-input --no-deps --no-compile --only-binary=:all: \
      --python-version "$version" --upgrade --target "$target" "$@" $wanted </dev/null >"$scratch/log" 2>&1; then
      tail -n 3 "$scratch/log" >&2
      warn "$wanted cannot be fetched (offline?); gdbext works without. To have them, on a machine with network:"
      warn "  pip download --no-deps -d wheels $wanted;  then here: ./install.sh --wheels wheels"
      status=1
    fi
  fi
  rm -rf "$scratch"
  return "$status"
}

# One .pth file: appended to the end of sys.path, so that it never hides a package of the distribution.
tell_gdb() {
  pth=$(in_gdb 'import site; print(site.getusersitepackages() if site.ENABLE_USER_SITE else "")') || pth=
  [ -n "$pth" ] || return 0
  mkdir -p "$pth"
  pth=$pth/gdbext.pth
  say "$1" >"$pth"
  if ! grep -qxF -- "$pth" "$DATA/installed" 2>/dev/null; then say "$pth" >>"$DATA/installed"; fi
}

# --- ~/.gdbinit and ~/.lldbinit ----------------------------------------------------------------------------------------------------

# gdb 11 and later read the first of these that exists, and no other.
gdbinit_path() {
  for file in "${XDG_CONFIG_HOME:-$HOME/.config}/gdb/gdbinit" "$HOME/.gdbinit"; do
    if [ -e "$file" ]; then say "$file"; return; fi
  done
  say "$HOME/.gdbinit"
}

# replace FILE NEW: FILE gets NEW's contents and stays what it is (a symbolic link, its permissions).
replace() {
  backup=$(mktemp)
  if [ -e "$1" ]; then cat -- "$1" >"$backup"; fi
  if ! cat -- "$2" >"$1"; then
    cat -- "$backup" >"$1" || fail "cannot write $1; its contents are in $backup"
    rm -f "$backup"
    fail "cannot write $1"
  fi
  rm -f "$backup"
}

# LLDB reads the first of these that exists, and no other.
lldbinit_path() {
  if [ -e "$HOME/.lldbinit-lldb" ]; then say "$HOME/.lldbinit-lldb"; else say "$HOME/.lldbinit"; fi
}

# add_block FILE LINE: FILE gets one marked block with that line.
add_block() {
  file=$1
  line=$2
  if [ "$dry" = yes ]; then say "would add to $file: $line"; return; fi
  if grep -qxF -- "$line" "$file" 2>/dev/null && grep -qF -- "$BEGIN" "$file"; then
    say "${file##*/}: $file has the block already"
    return
  fi
  remove_block "$file"
  how=
  if [ ! -e "$file" ]; then how=' created'; elif [ -s "$file" ] && [ "$(tail -c 1 -- "$file" | wc -l)" -eq 0 ]; then
    how=' newline'  # the last line had none: --uninstall takes away the one that goes in front of the block
  fi
  new=$(mktemp)
  if [ -e "$file" ]; then cat -- "$file" >"$new"; fi
  if [ "$how" = ' newline' ]; then say "" >>"$new"; fi
  { say "$BEGIN$how"; say "$line"; say "$END"; } >>"$new"
  replace "$file" "$new"
  rm -f "$new"
  say "${file##*/}: added one block to $file"
}

# remove_block FILE: the file as it was before add_block, byte for byte, plus what the user has changed since.
remove_block() {
  [ -e "$1" ] && grep -qF -- "$BEGIN" "$1" || return 0
  grep -qxF -- "$END" "$1" || fail "$1 has the line \"$BEGIN\" but not \"$END\"" "remove what gdbext added by hand"
  how=$(sed -n "s/^$BEGIN *//p" "$1" | head -n 1)
  last=$(tail -n 1 -- "$1")
  new=$(mktemp)
  sed "/^$BEGIN/,/^$END\$/d" "$1" >"$new"
  if [ "$how" = newline ] && [ "$last" = "$END" ]; then
    printf '%s' "$(cat -- "$new")" >"$new.cut"
    mv -- "$new.cut" "$new"
  fi
  if [ "$how" = created ] && [ ! -s "$new" ] && [ ! -h "$1" ]; then rm -f -- "$1"; else replace "$1" "$new"; fi
  rm -f -- "$new"
  say "${1##*/}: took the block out of $1"
}

# --- completions and the manual page ------------------------------------------------------------------------------

SHARED='man/man1/gdbext.1 bash-completion/completions/gdbext fish/vendor_completions.d/gdbext.fish'

add_completions() {
  for file in $SHARED; do
    run mkdir -p "$(dirname -- "${DATA%/gdbext}/$file")"
    run cp -- "$ROOT/share/$file" "${DATA%/gdbext}/$file"
  done
  run ln -sf gdbext "${DATA%/gdbext}/bash-completion/completions/dispatch"
  say "completions: for bash and fish below ${DATA%/gdbext}, and man gdbext"
  say "  zsh: fpath=($ROOT/share/zsh/site-functions \$fpath), before compinit in ~/.zshrc"
}

# Only files that are ours: the first line of each says so.
remove_completions() {
  for file in $SHARED; do
    if head -n 1 -- "${DATA%/gdbext}/$file" 2>/dev/null | grep -q 'made by scripts/gen_docs.py'; then
      rm -f -- "${DATA%/gdbext}/$file"
      remove_empty "$(dirname -- "${DATA%/gdbext}/$file")"
    fi
  done
  link=${DATA%/gdbext}/bash-completion/completions/dispatch
  if [ -h "$link" ] && [ "$(readlink -- "$link")" = gdbext ]; then
    rm -f -- "$link"
    remove_empty "$(dirname -- "$link")"
  fi
}

# --- the kernel's core_pattern --------------------------------------------------------------------------------------

KERNEL=${GDBEXT_KERNEL:-/proc/sys/kernel}
CORES=${GDBEXT_CRASHES:-/var/lib/gdbext}

# What was in core_pattern and core_pipe_limit before is kept in $CORES, for --uninstall.
set_core_handler() {
  line="|$ROOT/scripts/dispatch core-handler %P %d"
  case "$ROOT" in *[[:space:]]*) fail "the kernel cannot call a program whose path has a space: $ROOT" "move it" ;; esac
  [ "${#line}" -lt 128 ] || fail "the kernel takes 127 bytes in core_pattern, and this has ${#line}: $line" \
    "move gdbext to a folder with a shorter path, /opt/gdbext for example"
  [ -w "$KERNEL/core_pattern" ] || fail "$KERNEL/core_pattern cannot be written" "run this as root, on the host"
  if [ "$dry" = yes ]; then say "would write to $KERNEL/core_pattern: $line"; return; fi
  before=$(cat "$KERNEL/core_pattern")
  if [ "$before" = "$line" ]; then say "core_pattern: names gdbext already"; return; fi
  mkdir -p "$CORES"
  printf '%s\n%s\n' "$before" "$(cat "$KERNEL/core_pipe_limit")" >"$CORES/before"
  # Ten crashes at once must not compile the same files ten times: that is a third of their work.
  for python in "${GDBEXT_PYTHON:-}" /usr/bin/python3 /usr/local/bin/python3 python3; do
    if [ -n "$python" ] && have "$python"; then "$python" -I -S -m compileall -q "$ROOT/gdbext" >/dev/null || true; break; fi
  done
  say 16 >"$KERNEL/core_pipe_limit"
  say "$line" >"$KERNEL/core_pattern"
  say "core_pattern: $line"
  say "  before: $before (./install.sh --uninstall writes it again); for the next boot: /etc/sysctl.d/60-gdbext.conf with"
  say "  kernel.core_pattern=$line"
}

# Only where core_pattern is still ours: what somebody else has written since stays.
restore_core_pattern() {
  [ -f "$CORES/before" ] || return 0
  case "$(cat "$KERNEL/core_pattern")" in
    *"/scripts/dispatch core-handler"*)
      sed -n 1p "$CORES/before" >"$KERNEL/core_pattern" || fail "$KERNEL/core_pattern cannot be written" "run this as root"
      sed -n 2p "$CORES/before" >"$KERNEL/core_pipe_limit"
      say "core_pattern: $(cat "$KERNEL/core_pattern") again" ;;
  esac
  rm -f -- "$CORES/before"
}

# --- the two things it can do ---------------------------------------------------------------------------------------

install_all() {
  ensure_gdb
  if [ "$dry" = yes ] && ! have gdb; then say "the rest depends on that gdb's Python"; return; fi
  check_gdb
  check_lldb
  ensure_packages
  if [ "$lldbinit" = yes ]; then
    add_block "$(lldbinit_path)" "command script import \"$ROOT/gdbext/lldb_init.py\""
  elif [ -n "$lldb" ]; then
    say "in LLDB: command script import $ROOT/gdbext/lldb_init.py    (in every LLDB: ./install.sh --lldbinit)"
  fi
  if [ "$gdbinit" = yes ]; then add_block "$(gdbinit_path)" "source $ROOT/gdbext/init.py"; else
    say "in gdb, for the commands: source $ROOT/gdbext/init.py    (in every gdb: ./install.sh --gdbinit)"
  fi
  if [ "$completions" = yes ]; then add_completions; fi
  if [ "$corehandler" = yes ]; then set_core_handler; fi
  say "without starting gdb yourself: $ROOT/scripts/dispatch -p PID"
}

uninstall_all() {
  restore_core_pattern
  remove_completions
  for file in "$HOME/.gdbinit" "${XDG_CONFIG_HOME:-$HOME/.config}/gdb/gdbinit" "$HOME/.lldbinit" \
    "$HOME/.lldbinit-lldb"; do
    remove_block "$file"
  done
  if [ -f "$DATA/installed" ]; then
    while IFS= read -r file; do
      case "$file" in */gdbext.pth) rm -f -- "$file"; remove_empty "$(dirname -- "$file")" ;; esac
    done <"$DATA/installed"
  fi
  rm -rf -- "$DATA" "$CACHE"
  say "removed: $DATA, $CACHE and what pointed there"
}

# remove_empty FOLDER: it and its empty parents, below $HOME, as tell_gdb may have made them.
remove_empty() {
  folder=$1
  while [ "$folder" != "$HOME" ] && [ "${folder#"$HOME"/}" != "$folder" ] && rmdir -- "$folder" 2>/dev/null; do
    folder=$(dirname -- "$folder")
  done
}

gdbinit=no
lldbinit=no
corehandler=no
completions=no
dry=no
action=install
wheels=
while [ $# -gt 0 ]; do
  case "$1" in
    --gdbinit) gdbinit=yes ;;
    --lldbinit) lldbinit=yes ;;
    --core-handler) corehandler=yes ;;
    --completions) completions=yes ;;
    --dry-run) dry=yes ;;
    --uninstall) action=uninstall ;;
    --wheels)
      [ $# -gt 1 ] && [ -d "$2" ] || fail "--wheels needs a folder" "see ./install.sh --help"
      wheels=$(CDPATH='' cd -- "$2" && pwd)
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

if [ "$action" = uninstall ]; then uninstall_all; else install_all; fi
