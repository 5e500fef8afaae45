"""Cores that must be fetched first: compressed, in the store of systemd-coredump, or still in the kernel's pipe.

A compressed core is unpacked into a sparse file without a name, which disappears when it is closed. A few kilobytes can
expand to endless zeros: nothing beyond what the core's own headers name is unpacked, after a check that the disk has
room for that.
"""

from __future__ import annotations

import gzip
import lzma
import math
import os
import re
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.engine.arch import architectures
from gdbext.engine.formats import elf_header, open_nonblocking
from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.numbers import number
from gdbext.engine.targets.base_target import TargetThread
from gdbext.engine.targets.core_target import PIPE, CoreFileThread, CoreTarget, open_core, signal_of
from gdbext.engine.targets.live.local_process import LocalProcess, own_tid, thread_name
from gdbext.engine.terminal import escape, write
from gdbext.errors import BadCore, SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from gdbext.engine.targets.base_target import Target

STORE = "/var/lib/systemd/coredump"
"""The folder of systemd-coredump (coredump.conf(5), Storage=external)."""
SYSTEMD, BY_PID = "systemd", "coredumpctl:"
"""Names of cores in that folder: the newest one, and (with a PID) that of a process."""
_STORED_NAME = re.compile(
    r"core\.(?P<name>.*)\.(?P<uid>\d+)\.[0-9a-f]+\.(?P<pid>\d+)\.(?P<time>\d+)(?:\.(?:zst|lz4|xz))?"
)
"""core.COMM.UID.BOOT.PID.MICROSECONDS (systemd 252, src/coredump/coredump.c, make_filename)."""
_PIECE_SIZE = 1 << 20
_HOLE_SIZE = 1 << 16
"""Bytes of zeros that become a hole in the file."""
_RESERVE = 256 << 20
"""Bytes of the disk that are left free."""
_SPARSENESS = 8
"""At least one of so many bytes takes room on the disk: most of a core are zeros."""
_MAX_HEAD = 64 << 20
"""Bytes of a core before its memory: 100,000 mappings have 6 MB of headers and 10 MB of names, a million 56 MB of
headers."""


_PACKINGS = {"zstd": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18", "gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\0"}
"""Compression → how its files begin. The programs zstd and lz4 unpack the first two, Python the others."""


def stored_core(name: str, store: str = STORE) -> str:
    """The file of a core of systemd's store, ``name`` itself if it names none. Raises BadCore."""
    if name != SYSTEMD and not name.startswith(BY_PID):
        return name
    wanted = name[len(BY_PID) :] if name.startswith(BY_PID) else ""  # a PID, "" for any
    try:
        cores = list(filter(None, map(_STORED_NAME.fullmatch, os.listdir(store))))  # noqa: PTH208
    except OSError as error:
        raise BadCore(
            f"systemd's store of cores cannot be read: {store}: {error.strerror}",
            why="systemd-coredump does not take the cores of this machine (see /proc/sys/kernel/core_pattern)",
            help="name the core itself with -c FILE",
        ) from error
    wanted_cores = [core for core in cores if wanted in ("", core["pid"])]
    if not wanted_cores:
        pids = ", ".join(sorted({core["pid"] for core in cores})[-8:])
        what = f"core of process {wanted}" if wanted else "core"
        raise BadCore(f"there is no {what} in {store}", why=pids and f"there are cores of: {pids}")
    return f"{store}/{max(wanted_cores, key=lambda core: number(core['time']) or 0).string}"


def unpack_core(path: str) -> str:
    """The name of a file with the contents of a compressed core, for ``close_unpacked``; "" if it is not compressed.
    Raises BadCore."""
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            head = file.read(64) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
            packing = next((name for name, magic in _PACKINGS.items() if head.startswith(magic)), "")
            size = _size_in_header(packing, head, file)
    except OSError:
        return ""  # opening it as a core says why
    return _unpack(path, packing, size) if packing else ""


def close_unpacked(name: str) -> None:
    """Close a file of ``unpack_core``: it exists as long as it is mapped. No effect for ""."""
    if name:
        os.close(int(name.rpartition("/")[2]))


def _unpack(path: str, packing: str, size: int) -> str:
    """Unpack a core of ``size`` bytes (0: unknown) into a nameless file; its name in /proc/self/fd. Raises BadCore."""
    shown = 0 if sys.stderr is not None and sys.stderr.isatty() else math.inf  # bytes when progress was shown last
    with tempfile.TemporaryFile(dir=_folder_with_room(path, size), prefix="gdbext-core-") as output:
        done, end, fd = 0, None, output.fileno()
        try:
            for piece in _unpacked_pieces(path, packing):
                if not done and not piece.startswith(b"\x7fELF"):
                    raise BadCore(f"{path} holds no core: what is compressed there is not an ELF file")
                for start in range(0, len(piece), _HOLE_SIZE):
                    part = piece[start : start + _HOLE_SIZE]
                    if part.strip(b"\0"):
                        os.pwrite(fd, part, done + start)
                done += len(piece)
                if done - shown >= 64 << 20:
                    total = f" of {size >> 20}" if size else ""
                    write(2, f"unpacking {escape(os.path.basename(path))}: {done >> 20}{total} MB …\n")  # noqa: PTH119
                    shown = done
                room = _free_bytes(fd) - _RESERVE
                if end is None and (end := _end_of_core(fd, done)) is not None and room < end // _SPARSENESS:
                    raise _no_room(path, end)
                if room < 0:
                    raise _no_room(path, done)
                if end is not None and done >= end:
                    break
            os.truncate(fd, done)
        finally:
            if 0 < shown < math.inf:
                write(2, "unpacked\n")
        return f"/proc/self/fd/{os.dup(fd)}"


def _end_of_core(fd: int, size: int) -> int | None:
    """The offset after everything that the headers of a core name; None while its first ``size`` bytes do not have all
    program headers. ``size`` for a file that is no core of ours: opening it says so. Raises BadCore."""
    try:
        header = elf_header.parse_header(os.pread(fd, elf_header.EHDR.size, 0))
    except SymbolFileError:
        return size
    sections = header.shoff + max(header.shnum, 1) * header.shentsize if header.shoff else 0
    if header.phnum == elf_header.PN_XNUM:  # the kernel puts the one section after everything (fs/binfmt_elf.c)
        return sections
    headers = header.phoff + header.phnum * max(header.phentsize, elf_header.PHDR.size)
    if headers > _MAX_HEAD:
        raise BadCore(f"the core claims {headers} bytes before the end of its program headers")
    if headers > size:
        return None
    segments = elf_header.segments(os.pread(fd, headers, 0), header, header.phnum)
    return max([headers, sections, *(segment.offset + segment.filesz for segment in segments)])


def _unpacked_pieces(path: str, packing: str) -> Iterator[bytes]:
    """The contents of a compressed file, piece by piece. Raises BadCore."""
    if packing in ("zstd", "lz4"):
        yield from _output_of(packing, path)
        return
    try:
        with gzip.open(path) if packing == "gzip" else lzma.open(path) as file:
            while piece := file.read(_PIECE_SIZE):
                yield piece
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise BadCore(f"{path} cannot be unpacked: {error}", why="it is damaged, or was cut short") from error


def _output_of(name: str, path: str) -> Iterator[bytes]:
    """What the program ``name`` (zstd, lz4) unpacks from a file, piece by piece. Raises BadCore."""
    program = find_program(name)
    if program is None:
        raise BadCore(
            f"{path} is compressed with {name}, and there is no program {name} here",
            help=f"install {name} (apt-get install {name}), or unpack it elsewhere",
        )
    command = [program, "-d", "-c", "-q", "--", path]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        try:
            while piece := process.stdout.read(_PIECE_SIZE):
                yield piece
            errors = process.stderr.read(500).decode("utf-8", "replace").strip()
        finally:
            process.kill()
        if process.wait() != 0 and errors:
            why = "it is damaged, or was cut short"
            raise BadCore(f"{path} cannot be unpacked: {errors.splitlines()[-1]}", why=why)


# --- room ----------------------------------------------------------------------------------------


def _size_in_header(packing: str, head: bytes, file: BinaryIO) -> int:
    """The unpacked size according to the file's first bytes, ``head``; 0 if these do not have it. RFC 8878, 3.1.1.1
    (zstd); the frame format of lz4, version 1.6; RFC 1952, 2.3.1 (gzip: its last four bytes, the size modulo 4 GB)."""
    if packing == "zstd" and len(head) > 18:
        flags = head[4]
        is_single_segment = flags >> 5 & 1
        offset = 5 + (not is_single_segment) + (0, 1, 2, 4)[flags & 3]
        width = (is_single_segment, 2, 4, 8)[flags >> 6]
        return int.from_bytes(head[offset : offset + width], "little") + (256 if width == 2 else 0)
    if packing == "lz4" and len(head) > 14 and head[4] >> 3 & 1:
        return int.from_bytes(head[6:14], "little")
    if packing == "gzip":
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")
    return 0


def _folder_with_room(path: str, size: int) -> str:
    """The folder for temporary files with the most room. Raises BadCore if no disk has enough."""
    folders = [os.environ.get("TMPDIR", ""), "/var/tmp", tempfile.gettempdir()]
    room = {folder: _free_bytes(folder) for folder in folders if folder and os.access(folder, os.W_OK)}
    chosen = folders[0] if folders[0] in room else max(room, key=lambda folder: room[folder], default="/tmp")
    compressed = os.stat(path).st_size  # noqa: PTH116
    if room.get(chosen, 0) - _RESERVE < max(size // _SPARSENESS, compressed):
        raise _no_room(path, size or compressed)
    return chosen


def _free_bytes(file: str | int) -> int:
    """Free bytes of the disk that has a folder, or an open file."""
    status = os.statvfs(file)
    return status.f_bavail * status.f_frsize


def _no_room(path: str, size: int) -> BadCore:
    """The error if the disk lacks room for a core of ``size`` bytes or more."""
    return BadCore(
        f"there is no room to unpack {path}: it needs {size} bytes or more",
        why="a core is unpacked into the folder for temporary files",
        help="name a folder on a larger disk: TMPDIR=/FOLDER scripts/dispatch -c …",
    )


class DyingProcess(LocalProcess):
    """A process that the kernel dumps until the pipe is closed (fs/coredump.c, Linux 6.1). Its threads cannot be traced
    any more, but the core's notes, which come before all memory, have their registers; its memory is in /proc/PID/mem.
    """

    def __init__(self, pid: int, memory: int, pipe: int) -> None:
        """``memory``: an fd of /proc/PID/mem; ``pipe``: the fd that the core comes from. Raises BadCore,
        ForeignArchitecture."""
        self.pid = pid
        self.origin.kind = "core"
        head = _head_file(pipe)
        core = open_core(f"/proc/self/fd/{head}")
        try:
            self.architecture = architectures.by_machine(core.machine)
            self.command = core.arguments or core.name
            first = core.threads[0]
            # the notes have the threads' ids in their own PID namespace
            tids = {own_tid(pid, int(tid)): int(tid) for tid in os.listdir(f"/proc/{pid}/task")}  # noqa: PTH208
            notes = [note._replace(tid=tids.get(note.tid, note.tid)) for note in core.threads]
            threads = [CoreFileThread(self.architecture, note, None) for note in notes]
            threads[0].signal = signal_of(first, written_by_debugger=False)
        finally:
            core.close()
            os.close(head)
        for thread in threads:
            thread.name = thread_name(pid, thread.tid)
        self._first = threads[0]
        self._threads = sorted(threads, key=lambda thread: thread.tid)
        self._memory = os.dup(memory)

    @classmethod
    def named(cls, name: str) -> DyingProcess:
        """The target named ``pipe:PID:MEMORY:CORE`` (see ``PIPE``). Raises BadCore."""
        words = [number(word) for word in name[len(PIPE) :].split(":")]
        numbers = [word for word in words if word is not None and word < 1 << 31]
        help = "core-handler makes such names"
        if len(words) != 3 or len(numbers) != 3:
            raise BadCore(f"{name[:80]} is no pipe of the kernel's", help=help)
        try:
            return cls(*numbers)
        except OSError as error:
            why = f"no such process, memory or pipe was given to this one: {error.strerror}"
            raise BadCore(f"{name} cannot be read", why=why, help=help) from error

    def threads(self) -> Sequence[TargetThread]:
        return self._threads

    def selected_thread(self) -> TargetThread | None:
        """The thread that got the signal: the kernel writes it first."""
        return self._first


def _head_file(pipe: int) -> int:
    """An fd of a file in memory with the core up to the end of its notes. Raises BadCore."""
    head = bytearray(_read_exactly(pipe, elf_header.EHDR.size))
    if not elf_header.identify(bytes(head)):
        raise BadCore("what comes out of the pipe is no core")
    header = elf_header.parse_header(bytes(head))
    end = header.phoff + header.phnum * header.phentsize
    head += _read_exactly(pipe, end - len(head))
    for kind, _, offset, _, filesz, _ in elf_header.segments(bytes(head), header, header.phnum):
        end = max(end, offset + filesz) if kind == elf_header.PT_NOTE else end
    head += _read_exactly(pipe, end - len(head))
    fd = os.memfd_create("gdbext-core-head")
    rest = memoryview(head)
    while rest:
        rest = rest[os.write(fd, rest) :]
    return fd


def _read_exactly(pipe: int, size: int) -> bytes:
    """The next ``size`` bytes of the pipe. Raises BadCore."""
    if size > _MAX_HEAD:
        raise BadCore(f"the core claims {size} bytes before its memory, and {_MAX_HEAD} are read at most")
    pieces = []
    while size > 0:
        piece = os.read(pipe, min(size, _PIECE_SIZE))
        if not piece:
            raise BadCore("the core ends before the notes on its threads")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def open_source(path: str, sysroot: str = "") -> Target:
    """The core dump of that name: a file, compressed or not; SYSTEMD or BY_PID with a PID; or PIPE, a process while the
    kernel dumps it. ``sysroot`` is the folder with the files of its machine. Raises BadCore."""
    if path.startswith(PIPE):
        return DyingProcess.named(path)
    path = stored_core(path)
    unpacked = unpack_core(path)
    try:
        return CoreTarget(path, sysroot, unpacked)
    finally:
        close_unpacked(unpacked)


def other_writer(target: Target, named: str) -> str:
    """The path of the program that wrote a core if it is not the file ``named``, "" if it is or may be. Build-ids
    decide; if one is unknown, file names do."""
    if not isinstance(target, CoreTarget):
        return ""
    actual = target.executable() or ""
    named_id, actual_id = build_id_of_file(named), target.executable_build_id()
    if named_id and actual_id:
        return actual if named_id != actual_id else ""
    name = os.path.basename(named)  # noqa: PTH119 - pathlib takes 10 ms to import
    runs_script = name.endswith(".py") and name in target.command
    is_same_name = os.path.basename(actual) in (name, os.path.basename(os.path.realpath(named)))  # noqa: PTH119
    return "" if is_same_name or runs_script else actual
