"""Measures the layout of an installed PyTorch, in a process of its own, and keeps it in the cache.

The process has a session of its own, so that Ctrl+C reaches only us, and it is killed as a whole, compilers included.
Its standard input is a pipe that only we hold: when we exit, by whatever signal, it exits, too (``__main__``). It
prints one line for each step that it begins, and the outcome as the last. Python runs isolated (-I): neither the user's
packages nor PYTHON* variables nor the current folder decide what is imported.

The headers beside the library of another user's process contain what that user wants. So they are compiled and run by
that user, with root's rights given up for good before anything of that user is touched, or not at all.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from gdbext.cache import find_program, is_ours, may_fill, resolve
from gdbext.engine import libc
from gdbext.engine.layouts import Layout, store, validate
from gdbext.engine.layouts.store import AS_ME, FORBIDDEN, PERMISSION
from gdbext.engine.targets.rooted_paths import Rights, rights_of
from gdbext.engine.terminal import environment_value, escape
from gdbext.errors import LayoutError, or_root
from gdbext.torch.layout_choice import complete
from gdbext.torch.measure.pack import write

FAILED = "GDBEXT_MEASURING_FAILED"
"""Environment variable, set by us for ourselves: "BUILD-ID WHY" of a long measurement that failed."""
_WORTH_REMEMBERING_SECONDS = 2.0
"""A missing compiler is noticed at once, and may be there the next time."""


def measure_torch(library: str, build_id: str | None, pid: int | None = None, terminal: int | None = 2) -> Layout:
    """Measure the PyTorch that a libtorch_cpu.so with that build-id belongs to; ``pid`` is its process, whose user's
    rights are used. Progress is shown on the file descriptor ``terminal``, if it is a terminal. An interruption leaves
    only finished parts. Raises LayoutError."""
    _check_allowed(Path(store.package_of(library)), build_id)
    package, rights = package_to_measure(library, pid)
    earlier = store.measured_by(rights.uid, build_id) if rights else None
    if earlier:
        return earlier
    started = time.monotonic()
    line = _MeasuringLine(package, terminal)
    try:
        try:
            process = MeasuringProcess(package, rights)
        except OSError as error:
            raise LayoutError(f"the measuring process cannot be started: {error}") from error
        try:
            process.wait(line.show)
        finally:
            line.write("\n")
        document = process.outcome()
        validate.check_all(document, "the generated layout")
        layout = complete(Layout(document, "generated"))
    except LayoutError as error:
        if build_id and time.monotonic() - started > _WORTH_REMEMBERING_SECONDS:
            os.environ[FAILED] = environment_value(f"{build_id} {error.what}").decode()
        raise
    if not build_id or layout.build_ids.get(store.TORCH_LIBRARY) != build_id:
        raise LayoutError("the installed library is not the one in memory")
    path = Path(store.path_of_measured(build_id, rights.uid if rights else None))
    try:
        if may_fill(str(path.parent)):
            write(document, path)
    except OSError as error:
        print(f"gdbext: cannot cache the layout: {error}", file=sys.stderr)
    return layout


def _check_allowed(package: Path, build_id: str | None) -> None:
    """Raise LayoutError if measuring is forbidden, of a container's PyTorch, or has failed for that build before."""
    if os.environ.get(PERMISSION) == FORBIDDEN:
        raise LayoutError(f"measuring is forbidden ({PERMISSION}={FORBIDDEN})")
    if package.parts[:2] == ("/", "proc"):  # its libc10.so would be run here, with our rights, out of its container
        inside = "/" + "/".join(package.parts[4:])
        raise LayoutError(
            f"the process is in another root (a container): run scripts/dispatch measure {inside} in there, and copy "
            f"the layout into {store.layout_cache()} here"
        )
    failed, _, why = os.environ.get(FAILED, "").partition(" ")
    if build_id and failed == build_id:
        raise LayoutError(why)


class _MeasuringLine:
    """One line on a terminal with the current step and the seconds since the start."""

    def __init__(self, package: Path, terminal: int | None) -> None:
        self._package = package
        self._started = time.monotonic()
        self._terminal = terminal if terminal is not None and os.isatty(terminal) else None

    def show(self, step: str) -> None:
        """Replace the line."""
        seconds = time.monotonic() - self._started
        where = escape(str(self._package))
        self.write(f"\rgdbext: measuring the layout of {where} (once): {escape(step)}, {seconds:.0f} s\033[K")

    def write(self, text: str) -> None:
        """Write to the terminal, if there is one; an error is ignored."""
        if self._terminal is not None:
            with suppress(OSError):
                os.write(self._terminal, text.encode(errors="replace"))


# --- the process that measures ---

ROOT = Path(__file__).resolve().parents[3]
"""The folder (or archive) that holds the package gdbext."""
_LOAD_ORDER = "import json, sys; order = json.loads(sys.argv[1]); sys.path += order['folders']"
_CHECK = f"{_LOAD_ORDER}; import elftools.elf.elffile; sys.exit(sys.version_info < (3, 9))"
_MEASURE = f"""{_LOAD_ORDER}; sys.path.insert(0, order['root'])
import gdbext
del sys.path[0]
from gdbext.torch.measure.__main__ import start
sys.exit(start(*order['arguments']))"""
"""gdbext is the one of our folder, whatever else has that name; nothing else comes from there before the library."""
_LIMIT_SECONDS = 900.0
"""Seconds for another user's process to be measured: half a minute, and the machine may be slow."""
_MESSAGE_BYTES = 1 << 12


class MeasuringProcess:
    """Measures the PyTorch in the folder ``torch``, with ``rights`` (None: ours). Raises LayoutError, OSError."""

    def __init__(self, torch: Path, rights: Rights | None = None) -> None:
        """Start the process, which makes its own folder in a directory that the user with these rights can reach."""
        self._rights = rights
        try:
            parent = "/tmp" if rights else tempfile.gettempdir()  # $TMPDIR may be out of the other's reach
        except OSError as error:
            raise LayoutError(f"there is no folder to measure in: {error}", help="name one in $TMPDIR") from error
        # The measuring process makes the folder, under a name that no other process can know beforehand.
        self._folder = Path(parent, f"gdbext-layout-{secrets.token_hex(16)}")
        self._output = b""
        arguments = [str(torch), str(self._folder), rights]
        order = json.dumps({"folders": package_folders(), "root": str(ROOT), "arguments": arguments})
        command = [find_python(), "-I", "-c", _MEASURE, order]
        self._messages = os.fdopen(os.memfd_create("messages"), "rb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )

    def wait(self, show: Callable[[str], None]) -> None:
        """Read its output until it has exited; ``show`` gets the current step every second. Any error, also an
        interruption, kills it. Raises LayoutError."""
        output = self._process.stdout
        assert output
        started = time.monotonic()
        try:
            while True:
                lines = self._output[: 1 << 16].decode(errors="replace").splitlines()
                show(next((step for step in reversed(lines) if not step.startswith("{")), "starting"))
                if self._rights and time.monotonic() - started > _LIMIT_SECONDS:
                    raise LayoutError(f"measuring took more than {_LIMIT_SECONDS:g} s")
                if not select.select([output], [], [], 1.0)[0]:
                    continue
                piece = os.read(output.fileno(), 1 << 16)
                if not piece:
                    return
                self._output += piece
                if len(self._output) > 16 << 20:  # a layout has 2 MB
                    raise LayoutError("the measuring process printed more than a layout has")
        finally:
            self.end()

    def outcome(self) -> Any:
        """The layout document that the process printed. Raises LayoutError: its own, or how it exited without one."""
        try:
            answer = json.loads(self._output.splitlines()[-1])
            error = answer.get("error")
            document = answer["layout"] if error is None else None
        except (IndexError, ValueError, LookupError, AttributeError, RecursionError):
            self._messages.seek(max(0, self._messages.seek(0, os.SEEK_END) - _MESSAGE_BYTES))
            messages = self._messages.read(_MESSAGE_BYTES).decode(errors="replace").splitlines()
            status = self._process.returncode
            how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            raise LayoutError(
                f"the measuring process {how}" + (f": {messages[-1][:300]}" if messages else ""),
                why="it may have run out of memory (it needs 1.4 GB)",
            ) from None
        if error is not None:
            what, why, advice = (str(error.get(key, "")) for key in ("what", "why", "help"))
            raise LayoutError(what, why=why, help=advice)
        return document

    def end(self) -> None:
        """Kill the process with its compilers, and remove its folder; idempotent."""
        if self._process.returncode is not None:
            return
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        deadline = time.monotonic() + 5  # for it to kill its compilers and remove its folder
        exited = None
        while not exited and time.monotonic() < deadline:
            # it stays a zombie until its compilers were killed, so that no other process can have its number
            exited = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if not exited:
                time.sleep(0.01)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if shutil.rmtree.avoids_symlink_attacks:
            shutil.rmtree(self._folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Our environment, with messages of compilers in English; with other rights the child replaces it."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def package_folders() -> list[str]:
    """The folders besides its own in which a Python may find pyelftools: ours, and install.sh's if it is the user's
    (with sudo -E it is another user's)."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    site_folders = sorted(Path(data, "gdbext").glob("site-*"), reverse=True)
    return [str(ROOT), *(str(folder) for folder in site_folders if is_ours(str(folder)))]


def find_python() -> str:
    """A Python 3.9 or later that finds pyelftools. Raises LayoutError.

    Inside gdb sys.executable is a name that may not exist, and scripts/dispatch runs without site-packages.
    """
    order = json.dumps({"folders": package_folders()})
    names = (os.environ.get("GDBEXT_PYTHON", ""), sys.executable, "python3", str(ROOT / ".venv" / "bin" / "python"))
    for path in dict.fromkeys(filter(None, map(find_program, filter(None, names)))):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [path, "-I", "-c", _CHECK, order],
                env=_environment(),
                capture_output=True,
                check=False,
                cwd="/",
                timeout=30,
            )
            if done.returncode == 0:
                return path
    raise no_pyelftools()


def no_pyelftools() -> LayoutError:
    """The error for a machine without pyelftools."""
    return LayoutError(
        "pyelftools is missing, which reads the debug information of a measured layout",
        why="no Python that was found has it, and neither does install.sh's folder",
        help="run ./install.sh, or: python3 -m pip install pyelftools (GDBEXT_PYTHON names the Python to use)",
    )


_ON_REQUEST = f"if you trust both: add --measure-as-me (or {PERMISSION}={AS_ME}), which measures with your own rights"
_ELSEWHERE = "or measure on a machine with the same torch: scripts/dispatch measure /path/to/site-packages/torch"


def package_to_measure(library: str, pid: int | None) -> tuple[Path, Rights | None]:
    """(folder of the PyTorch that the mapped libtorch_cpu.so at the path ``library`` belongs to, with links resolved;
    rights to measure it with, None for our own). ``pid`` is the process if it runs, whose user's rights are needed.
    Raises LayoutError if another user could decide what the compiler runs."""
    package = Path(os.path.realpath(store.package_of(library)))
    beside = package / "lib" / Path(library).name
    try:
        same = not (package / "include").exists() or os.path.samefile(library, beside)  # noqa: PTH121
        problem = "" if same else f"{beside} is not the library that the process has mapped, {library}"
    except OSError as error:
        problem = f"cannot examine {beside}: {error.strerror}"
    if problem:
        raise LayoutError(
            problem, why="headers describe only the library that was installed with them", help=_ELSEWHERE
        )
    if os.environ.get(PERMISSION) == AS_ME:
        return package, None
    try:
        rights = rights_of(pid) if pid is not None else None
    except OSError as error:
        raise LayoutError(f"the owner of process {pid} cannot be determined: {error}", help=_ON_REQUEST) from error
    ours = os.geteuid()
    if not rights or (rights.uid == ours and ours == 0):
        _check_files(library, package, (0, ours), (0,) if ours == 0 else (0, os.getegid()))
        return package, None
    if rights.uid == ours:  # the process runs these files already, with the very rights that we have
        return package, None
    if ours != 0:
        raise LayoutError(
            f"the process belongs to user {rights.uid}, and its headers are compiled only with that user's rights (run "
            "as that user or root, or add --measure-as-me)",
            why="the owner of the headers beside its library controls what the compiler runs",
            help=f"{or_root('run it as that user')}; {_ON_REQUEST}",
        )
    _check_files(library, package, (0, rights.uid), (0, rights.gid))
    return package, rights


def _check_files(library: str, package: Path, owners: tuple[int, ...], groups: tuple[int, ...]) -> None:
    """Raise LayoutError if other users or groups than ``owners`` and ``groups`` (ids) could change what is compiled or
    run of the PyTorch in ``package``."""
    for path in (library, str(package / "include"), str(package / "lib"), str(package / "lib" / "libc10.so")):
        try:
            foreign_path = resolve(path, owners, groups)[1]
        except FileNotFoundError:
            continue  # the compilation reports it
        except OSError as error:
            raise LayoutError(f"cannot examine {path}: {error.strerror or error}") from error
        if foreign_path:
            raise LayoutError(
                f"{foreign_path} belongs to another user, or is writable by others (--measure-as-me ignores that)",
                why="generating a layout compiles the headers and runs a program linked to the library there",
                help=f"{_ON_REQUEST}; {_ELSEWHERE}",
            )


_GIGABYTE = 1 << 30
_LIMITS = {
    resource.RLIMIT_AS: 6 * _GIGABYTE,  # a compiler takes 1.4 GB of torch's headers
    resource.RLIMIT_CPU: 600,
    resource.RLIMIT_FSIZE: _GIGABYTE,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 256,
}


def take_rights(rights: Rights, temporary: str) -> None:
    """Give up root's rights for these, for good; ``temporary`` becomes $TMPDIR. Raises LayoutError, OSError."""
    if rights.uid == 0 or os.geteuid() != 0:
        raise LayoutError(f"the process cannot switch to the rights of user {rights.uid}")
    os.umask(0o077)
    os.chdir("/")
    processes = _thread_count(rights.uid) + 64  # besides the user's: a compiler's driver, its parts, the linker
    for kind, limit in {**_LIMITS, resource.RLIMIT_NPROC: processes}.items():
        highest = resource.getrlimit(kind)[1]
        allowed = limit if highest == resource.RLIM_INFINITY else min(limit, highest)
        resource.setrlimit(kind, (allowed, allowed))
    # PR_SET_NO_NEW_PRIVS (linux/prctl.h): no program that is started has more rights, whatever its file says
    if not libc.prctl(38, 1):
        raise LayoutError("this kernel lets programs gain rights (no PR_SET_NO_NEW_PRIVS)")
    os.setgroups(rights.groups)
    os.setresgid(rights.gid, rights.gid, rights.gid)
    os.setresuid(rights.uid, rights.uid, rights.uid)
    if os.getresuid() != (rights.uid,) * 3 or os.getresgid() != (rights.gid,) * 3:
        raise LayoutError("root's rights could not be given up")
    with suppress(OSError):
        os.setresuid(0, 0, 0)
        raise LayoutError("root's rights could be regained")
    os.environ.clear()
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", LC_ALL="C.UTF-8", TMPDIR=temporary, HOME=temporary)


def _thread_count(uid: int) -> int:
    """The number of the user's threads on the whole machine, which RLIMIT_NPROC limits."""
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError):
                if os.stat(f"/proc/{name}/task").st_uid == uid:  # noqa: PTH116
                    count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count
