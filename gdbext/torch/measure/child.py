"""The process that measures, seen from the one that started it.

It has a session of its own, so that Ctrl+C reaches only us, and it is ended as a whole, compilers included. Its
standard input is a pipe that only we hold: when we end, by whatever signal, it reads the end of it and ends, too
(``__main__``). What it says is one line for each thing that it begins, and the outcome as the last. It inherits nothing
else of us.

Python runs isolated (-I): neither the user's packages nor PYTHON* variables nor the folder that we are in say what is
imported.

The measuring process gives up root's rights for good, before it touches anything of the target's user.

With whose rights a PyTorch may be measured: its headers are compiled, and a program with its library is run.

The headers that lie beside the library of another user's process say what that user wants them to say. So they are
compiled and run by that user, or not at all; where nobody else is involved, by us.
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

from gdbext.cache import find_program, is_ours, resolve
from gdbext.engine import libc
from gdbext.engine.layouts import store
from gdbext.engine.layouts.store import AS_ME, PERMISSION
from gdbext.engine.targets.rooted_paths import Rights, rights_of
from gdbext.errors import LayoutError, or_root
from gdbext.torch.measure.wants import no_pyelftools

ROOT = Path(__file__).resolve().parents[3]
"""The folder (or archive) that holds the package gdbext."""
_OURS = "import json, sys; told = json.loads(sys.argv[1]); sys.path += told['folders']"
_CHECK = f"{_OURS}; import elftools.elf.elffile; sys.exit(sys.version_info < (3, 9))"
_MEASURE = f"""{_OURS}; sys.path.insert(0, told['root'])
import gdbext
del sys.path[0]
from gdbext.torch.measure.__main__ import start
sys.exit(start(*told['work']))"""
"""gdbext is the one of our folder, whatever else has that name; nothing else comes from there before the library."""
_CHECK_SECONDS = 30
_GRACE_SECONDS = 5.0
"""Seconds that the child gets to end its compilers and remove its folder, before it is killed."""
_TICK_SECONDS = 1.0
_LIMIT_SECONDS = 900.0
"""Seconds for another user's process to be measured: half a minute, and the machine may be slow."""
_MESSAGE_BYTES = 1 << 12
_LIMIT_BYTES = 16 << 20
"""Most bytes that it may say; a layout has 2 MB."""


class MeasuringProcess:
    """Measures the PyTorch in the folder ``torch``, with those ``rights`` if they are not ours. Raises LayoutError,
    OSError."""

    def __init__(self, torch: Path, rights: Rights | None = None) -> None:
        self._rights = rights
        self._folder = _folder(rights)
        self._said = b""
        work = [str(torch), str(self._folder), rights]
        told = json.dumps({"folders": package_folders(), "root": str(ROOT), "work": work})
        command = [find_python(), "-I", "-c", _MEASURE, told]
        self._messages = os.fdopen(os.memfd_create("messages"), "rb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            cwd="/",
            env=environment(),
            start_new_session=True,
        )

    def wait(self, show: Callable[[str], None]) -> None:
        """Wait until it has ended, showing every second what it does; whatever interrupts us ends it. Raises
        LayoutError."""
        try:
            self._follow(show)
        finally:
            self.end()

    def _follow(self, show: Callable[[str], None]) -> None:
        output = self._process.stdout
        assert output
        started = time.monotonic()
        while True:
            show((self._lines() or ["starting"])[-1])
            if self._rights and time.monotonic() - started > _LIMIT_SECONDS:
                raise LayoutError(f"it was not measured within {_LIMIT_SECONDS:g} s")
            if not select.select([output], [], [], _TICK_SECONDS)[0]:
                continue
            said = os.read(output.fileno(), 1 << 16)
            if not said:
                return
            self._said += said
            if len(self._said) > _LIMIT_BYTES:
                raise LayoutError("the process that measures said more than a layout has")

    def _lines(self) -> list[str]:
        """The steps that it has begun so far."""
        lines = self._said[: 1 << 16].decode(errors="replace").splitlines()
        return [line for line in lines if not line.startswith("{")]

    def outcome(self) -> Any:
        """The layout document. Raises LayoutError: its own, or how it ended without one."""
        try:
            told = json.loads(self._said.splitlines()[-1])
            error = told.get("error")
            document = told["layout"] if error is None else None
        except (IndexError, ValueError, LookupError, AttributeError, RecursionError):
            why = "it was killed, perhaps for lack of memory (it takes 1.4 GB)"
            raise LayoutError(self._last_words(), why=why) from None
        if error is not None:
            what, why, try_this = (str(error.get(each, "")) for each in ("what", "why", "help"))
            raise LayoutError(what, why=why, help=try_this)
        return document

    def end(self) -> None:
        """Make sure that nothing of it runs any more, and that nothing is left; idempotent."""
        if self._process.returncode is not None:
            return
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        waited = None
        while not waited and time.monotonic() < deadline:
            # it stays a zombie until its compilers were killed, so that nobody else can have its number
            waited = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if not waited:
                time.sleep(0.01)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if shutil.rmtree.avoids_symlink_attacks:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _last_words(self) -> str:
        """The error for a child that left neither a result nor an error of its own."""
        self._messages.seek(max(0, self._messages.seek(0, os.SEEK_END) - _MESSAGE_BYTES))
        lines = self._messages.read(_MESSAGE_BYTES).decode(errors="replace").splitlines()
        status = self._process.returncode
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the process that measures {how}" + (f": {lines[-1][:300]}" if lines else "")


def _folder(rights: Rights | None) -> Path:
    """The folder to be made by who measures, under a name that nobody can know beforehand. Raises LayoutError."""
    try:
        parent = "/tmp" if rights else tempfile.gettempdir()  # $TMPDIR may be out of the other's reach
    except OSError as error:
        raise LayoutError(f"there is no folder to measure in: {error}", help="name one in $TMPDIR") from error
    return Path(parent, f"gdbext-layout-{secrets.token_hex(16)}")


def environment() -> dict[str, str]:
    """The environment that is ours, with messages of compilers in English. (Who measures with another's rights makes
    one of its own.)"""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def package_folders() -> list[str]:
    """Folders besides its own in which a Python may find pyelftools: beside us, and where install.sh keeps it.

    The latter only if it is ours: with sudo -E it is another's.
    """
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    kept = sorted(Path(data, "gdbext").glob("site-*"), reverse=True)
    return [str(ROOT), *(str(folder) for folder in kept if is_ours(str(folder)))]


def find_python() -> str:
    """A Python 3.9 or later that finds pyelftools. Raises LayoutError.

    Inside gdb sys.executable is a name that may not exist, and scripts/dispatch runs without site-packages.
    """
    told = json.dumps({"folders": package_folders()})
    names = (os.environ.get("GDBEXT_PYTHON", ""), sys.executable, "python3", str(ROOT / ".venv" / "bin" / "python"))
    for path in dict.fromkeys(filter(None, map(find_program, filter(None, names)))):
        try:
            done = subprocess.run(
                [path, "-I", "-c", _CHECK, told],
                env=environment(),
                capture_output=True,
                check=False,
                cwd="/",
                timeout=_CHECK_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return path
    raise no_pyelftools()


_ON_REQUEST = f"if you trust both: add --measure-as-me (or {PERMISSION}={AS_ME}), which measures with your own rights"
_ELSEWHERE = "or measure on a machine with the same torch: scripts/dispatch measure /path/to/site-packages/torch"


def package_to_measure(library: str, pid: int | None) -> tuple[Path, Rights | None]:
    """The folder of the PyTorch that a mapped libtorch_cpu.so belongs to, without links; and with whose rights it is
    measured, None for our own.

    ``pid`` is the process, if it runs. Raises LayoutError.
    """
    package = Path(os.path.realpath(store.package_of(library)))
    _check_that_it_is_beside(library, package)
    if os.environ.get(PERMISSION) == AS_ME:
        return package, None
    rights = _rights_of(pid) if pid is not None else None
    ours = os.geteuid()
    if not rights or (rights.uid == ours and ours == 0):
        _check_files(library, package, (0, ours), (0,) if ours == 0 else (0, os.getegid()))
        return package, None
    if rights.uid == ours:  # the process runs what lies there already, with the very rights that we have
        return package, None
    if ours != 0:
        raise LayoutError(
            f"the process belongs to user {rights.uid}, with whose rights alone its headers are compiled (be "
            "that user, or root, or say --measure-as-me)",
            why="whoever owns the headers beside its library decides what the compiler runs",
            help=f"{or_root('run it as that user')}; {_ON_REQUEST}",
        )
    _check_files(library, package, (0, rights.uid), (0, rights.gid))
    return package, rights


def _check_that_it_is_beside(library: str, package: Path) -> None:
    """The library that is mapped is the one that would be run. Raises LayoutError."""
    beside = package / "lib" / Path(library).name
    try:
        if not (package / "include").exists() or os.path.samefile(library, beside):  # noqa: PTH121
            return
        problem = f"{beside} is not the library that the process has mapped, {library}"
    except OSError as error:
        problem = f"cannot look at {beside}: {error.strerror}"
    raise LayoutError(problem, why="headers tell only of the library that was installed with them", help=_ELSEWHERE)


def _check_files(library: str, package: Path, owners: tuple[int, ...], groups: tuple[int, ...]) -> None:
    """Nobody but ``owners`` can change what is compiled or run. Raises LayoutError."""
    for path in (library, str(package / "include"), str(package / "lib"), str(package / "lib" / "libc10.so")):
        try:
            strange = resolve(path, owners, groups)[1]
        except FileNotFoundError:
            continue  # what is missing is said by whoever wants to compile it
        except OSError as error:
            raise LayoutError(f"cannot look at {path}: {error.strerror or error}") from error
        if strange:
            raise LayoutError(
                f"{strange} belongs to another user, or others may write there (--measure-as-me would not mind)",
                why="generating a layout compiles the headers and runs a program linked to the library there",
                help=f"{_ON_REQUEST}; {_ELSEWHERE}",
            )


def _rights_of(pid: int) -> Rights:
    try:
        return rights_of(pid)
    except OSError as error:
        raise LayoutError(f"it cannot be known whose process {pid} is: {error}", help=_ON_REQUEST) from error


_NO_NEW_PRIVILEGES = 38
"""PR_SET_NO_NEW_PRIVS (linux/prctl.h): no program that is started has more rights, whatever its file says."""
_GIGABYTE = 1 << 30
_LIMITS = {
    resource.RLIMIT_AS: 6 * _GIGABYTE,  # a compiler takes 1.4 GB of torch's headers
    resource.RLIMIT_CPU: 600,
    resource.RLIMIT_FSIZE: _GIGABYTE,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 256,
}
_MORE_PROCESSES = 64
"""Besides those that the user has already: a compiler's driver, its parts, the linker."""


def become(rights: Rights, temporary: str) -> None:
    """Have these rights and none other, limits, and an environment of our own making. Raises LayoutError, OSError."""
    if rights.uid == 0 or os.geteuid() != 0:
        raise LayoutError(f"the rights of user {rights.uid} cannot be taken on")
    os.umask(0o077)
    os.chdir("/")
    for kind, most in {**_LIMITS, resource.RLIMIT_NPROC: _threads_of(rights.uid) + _MORE_PROCESSES}.items():
        _limit(kind, most)
    if not libc.prctl(_NO_NEW_PRIVILEGES, 1):
        raise LayoutError("this kernel lets programs win rights (no PR_SET_NO_NEW_PRIVS)")
    os.setgroups(rights.groups)
    os.setresgid(rights.gid, rights.gid, rights.gid)
    os.setresuid(rights.uid, rights.uid, rights.uid)
    _check_that_there_is_no_way_back(rights)
    os.environ.clear()
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", LC_ALL="C.UTF-8", TMPDIR=temporary, HOME=temporary)


def _limit(kind: int, most: int) -> None:
    highest = resource.getrlimit(kind)[1]
    allowed = most if highest == resource.RLIM_INFINITY else min(most, highest)
    resource.setrlimit(kind, (allowed, allowed))


def _threads_of(uid: int) -> int:
    """The limit of processes counts all threads that the user has anywhere."""
    found = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError):
                found += len(os.listdir(f"/proc/{name}/task")) if _is_of(name, uid) else 0  # noqa: PTH208
    return found


def _is_of(pid: str, uid: int) -> bool:
    return os.stat(f"/proc/{pid}/task").st_uid == uid  # noqa: PTH116


def _check_that_there_is_no_way_back(rights: Rights) -> None:
    if os.getresuid() != (rights.uid,) * 3 or os.getresgid() != (rights.gid,) * 3:
        raise LayoutError("root's rights could not be given up")
    with suppress(OSError):
        os.setresuid(0, 0, 0)
        raise LayoutError("root's rights could be had back")
