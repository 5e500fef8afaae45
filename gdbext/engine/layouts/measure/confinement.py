"""The measuring process gives up root's rights for good, before it touches anything of the target's user.

With whose rights a PyTorch may be measured: its headers are compiled, and a program with its library is run.

The headers that lie beside the library of another user's process say what that user wants them to say. So they are
compiled and run by that user, or not at all; where nobody else is involved, by us.
"""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path

from gdbext.cache import resolve
from gdbext.engine.layouts import store
from gdbext.engine.layouts.measure import AS_ME, PERMISSION
from gdbext.engine.targets.rooted_paths import Rights, rights_of
from gdbext.errors import LayoutError

_ON_REQUEST = f"if you trust both: add --measure-as-me (or {PERMISSION}={AS_ME}), which measures with your own rights"
_ELSEWHERE = "or measure on a machine with the same torch: scripts/gen_layouts.py --torch /path/to/site-packages/torch"


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
    if rights is None or (rights.uid == ours and ours == 0):
        _check_files(library, package, (0, ours), (0,) if ours == 0 else (0, os.getegid()))
        return package, None
    if rights.uid == ours:  # the process runs what lies there already, with the very rights that we have
        return package, None
    if ours != 0:
        raise LayoutError(
            f"the process belongs to user {rights.uid}, with whose rights alone its headers are compiled (be "
            "that user, or root, or say --measure-as-me)",
            why="whoever owns the headers beside its library decides what the compiler runs",
            help=f"run it as that user, or as root; {_ON_REQUEST}",
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
    if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
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
