"""ELF core files: program headers, the notes on threads and maps, the auxiliary vector.

Layouts: elf.h and sys/procfs.h of glibc 2.36 (``struct elf_prstatus``, ``elf_prpsinfo``), fs/binfmt_elf.c of
Linux 6.1 for NT_FILE, NT_SIGINFO and extended numbering.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from contextlib import suppress
from typing import Callable, NamedTuple

from gdbext.engine.formats import elf_header, open_nonblocking
from gdbext.engine.formats.gpu_core import refuse
from gdbext.errors import BadCore, NotPermitted, SymbolFileError, or_root

NT_PRSTATUS, NT_PRFPREG, NT_PRPSINFO, NT_AUXV, NT_FILE, NT_SIGINFO = 1, 2, 3, 6, 0x46494C45, 0x53494749

MAX_SEGMENTS = 10_000_000  # more than any vm.max_map_count; 56 bytes each must also fit into the file

_SIGINFO_HEAD = struct.Struct("<iii4xQ")  # si_signo, si_errno, si_code, then the union, whose first word is si_addr
_PRSTATUS_HEAD = struct.Struct("<12xh18xi")  # pr_cursig, pr_pid
_PRSTATUS_REGISTERS_AT, _PRSTATUS_TAIL = 112, 8
_PRPSINFO_PID_AT, _PRPSINFO_NAME_AT, _PRPSINFO_ARGUMENTS_AT, _PRPSINFO_SIZE = 24, 40, 56, 136

_FLOATS_LIMIT = 4096  # struct user_fpregs_struct has 512 bytes, struct user_fpsimd_state 528
_SH_INFO_AT = 44  # in Elf64_Shdr
_OTHER_TYPES = {1: "an object file", 2: "a program", 3: "a program or a library"}
_COMPRESSED = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d -k"),
    (b"\x1f\x8b", "gzip", "gzip -d -k"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d -k"),
    (b"\xfd7zXZ\0", "xz", "xz -d -k"),
    (b"BZh", "bzip2", "bzip2 -d -k"),
)


EM_CUDA = 190  # the machine of a core of an NVIDIA GPU (elf.h)
CheckMachine = Callable[[str, elf_header.Identity], None]
"""(path, the core's identity): raises an error if cores of that machine cannot be read."""


class MemorySegment(NamedTuple):
    """One PT_LOAD: the file has the first ``filesz`` bytes of the memory at ``start``, at ``offset``."""

    start: int
    end: int
    offset: int
    filesz: int
    flags: int


class CoreThread(NamedTuple):
    """One NT_PRSTATUS with the notes of the same thread that follow it."""

    tid: int
    current_signal: int
    """pr_cursig. The kernel and gdb write the same number into every thread: only the first thread's has a meaning."""
    raw_registers: bytes
    siginfo: tuple[int, int, int] | None
    """si_signo, si_code and the first word of the union (si_addr where the signal has one)."""
    raw_floats: bytes = b""  # the NT_PRFPREG note, where there is one


class FileMapping(NamedTuple):
    """One entry of NT_FILE; ``offset`` in bytes; the path still carries the kernel's " (deleted)" mark."""

    start: int
    end: int
    offset: int
    path: str


class ElfCore:
    """A mapped core file, checked and parsed. Its memory use does not grow with the core. ``warnings`` list damage."""

    def __init__(self, path: str, check_machine: CheckMachine) -> None:
        """Raises BadCore, NotPermitted and the errors of ``check_machine``."""
        self.path = path
        self._check_machine = check_machine
        self.warnings: list[str] = []
        self.is_truncated = False  # the end of the file is missing
        self.segments: list[MemorySegment] = []
        self.threads: list[CoreThread] = []
        self.files: list[FileMapping] = []
        self.raw_auxv = b""
        self.pid: int | None = None
        self.name = ""
        self.arguments = ""
        self.data = _map_file(path)
        self.size = len(self.data)
        try:
            self._parse()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the core's file; idempotent."""
        self.data.close()

    def find(self, wanted: bytes, start: int, end: int) -> int:
        """Offset in the file of the first ``wanted`` between two offsets, -1 if there is none."""
        return self.data.find(wanted, min(start, self.size), min(end, self.size))

    def _parse(self) -> None:
        """Read the program headers and the notes. Raises BadCore, NotPermitted and the errors of check_machine."""
        header, count = _checked_header(self.path, self.data, self._check_machine)
        self.machine = header.machine
        self.written_by_debugger = header.shnum > 1
        note_segments = []
        for kind, flags, offset, vaddr, filesz, memsz in elf_header.segments(self.data, header, count):
            if kind == elf_header.PT_LOAD and memsz:
                start = min(offset, self.size)  # no offset of a damaged core is beyond what functions of C can take
                self.segments.append(MemorySegment(vaddr, vaddr + memsz, start, min(filesz, memsz), flags))
            elif kind == elf_header.PT_NOTE:
                note_segments.append((offset, filesz))
        self.segments.sort()
        for offset, filesz in note_segments:
            if offset + filesz > self.size:
                self.is_truncated = True
                self.warnings.append(f"{self.path} is truncated: some of its notes (threads, files) are missing")
            for note in elf_header.notes(self.data, offset, min(offset + filesz, self.size)):
                if note.owner == b"CORE":
                    self._read_note(note.type, note.offset, note.size)
        if not self.threads:
            why = "it has no NT_PRSTATUS note: it was not written by Linux, gcore or a compatible tool"
            if self.is_truncated:
                why = "the file is truncated, and the part that is missing held the threads (gcore writes them last)"
            raise BadCore(f"{self.path} contains no threads", why=why)
        beyond = [segment for segment in self.segments if segment.offset + segment.filesz > self.size]
        if beyond:
            self.is_truncated = True
            missing = sum(s.offset + s.filesz - max(s.offset, self.size) for s in beyond)
            self.warnings.append(
                f"{self.path} is truncated: {missing:,} bytes of {len(beyond)} memory segments are missing"
            )

    def _read_note(self, kind: int, start: int, size: int) -> None:
        """Read the note of type ``kind`` (NT_*) with ``size`` bytes at offset ``start`` of the file."""
        data = self.data
        if kind == NT_PRSTATUS and size > _PRSTATUS_REGISTERS_AT + _PRSTATUS_TAIL:
            signal, tid = _PRSTATUS_HEAD.unpack_from(data, start)
            if tid < 0:
                self.warnings.append(f"{self.path}: the note on a thread is damaged and ignored (its id is {tid})")
                return
            registers = data[start + _PRSTATUS_REGISTERS_AT : start + size - _PRSTATUS_TAIL]
            self.threads.append(CoreThread(tid, signal, registers, None))
        elif kind == NT_SIGINFO and size >= _SIGINFO_HEAD.size and self.threads:
            number, _, code, address = _SIGINFO_HEAD.unpack_from(data, start)
            self.threads[-1] = self.threads[-1]._replace(siginfo=(number, code, address))
        elif kind == NT_PRFPREG and self.threads:
            self.threads[-1] = self.threads[-1]._replace(raw_floats=data[start : start + min(size, _FLOATS_LIMIT)])
        elif kind == NT_PRPSINFO and size >= _PRPSINFO_SIZE:
            (pid,) = struct.unpack_from("<i", data, start + _PRPSINFO_PID_AT)
            if pid > 0:
                self.pid = pid
            else:
                self.warnings.append(f"{self.path}: the process id is damaged and ignored (it is {pid})")
            self.name = _text(data[start + _PRPSINFO_NAME_AT : start + _PRPSINFO_ARGUMENTS_AT])
            self.arguments = _text(data[start + _PRPSINFO_ARGUMENTS_AT : start + _PRPSINFO_SIZE]).rstrip()
        elif kind == NT_AUXV:
            self.raw_auxv = data[start : start + size]
        elif kind == NT_FILE:
            self._read_files(data[start : start + size])

    def _read_files(self, note: bytes) -> None:
        """Read the NT_FILE note."""
        if len(note) < 16:
            return
        count, page_size = struct.unpack_from("<QQ", note)
        names_at = 16 + 24 * count
        if names_at > len(note):
            self.warnings.append(f"{self.path}: the list of mapped files (NT_FILE) is damaged and ignored")
            return
        names = note[names_at:].split(b"\0")
        for (start, end, offset), name in zip(struct.iter_unpack("<QQQ", note[16:names_at]), names):
            if start < end:
                self.files.append(FileMapping(start, end, offset * page_size, os.fsdecode(name)))
        self.files.sort()


def is_core(path: str) -> bool:
    """True if the file has the header of an ELF core."""
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            identity = elf_header.identify(file.read(elf_header.EHDR.size))
    except OSError:
        return False
    return bool(identity and identity.type == elf_header.ET_CORE)


def _text(field: bytes) -> str:
    """The text in a field of fixed size, which NULs fill up."""
    return os.fsdecode(field.split(b"\0", 1)[0])


def check_regular(path: str) -> None:
    """Raises BadCore if the file exists and is not regular: a debugger would wait for the writer of a pipe."""
    with suppress(OSError):  # opening it later gives the error
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            raise _not_regular(path)


def _not_regular(path: str) -> BadCore:
    return BadCore(f"{path} is not a regular file", why="a core dump is a file that can be mapped")


def _map_file(path: str) -> mmap.mmap:
    """Map a core file. Raises BadCore, NotPermitted."""
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _not_regular(path)
            if status.st_size == 0:
                raise BadCore(f"{path} is empty", why="the disk was full, or ulimit -c truncated it")
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except PermissionError as error:
        raise NotPermitted(
            f"cannot open {path}: {error.strerror}",
            why="cores belong to the user whose process died, with mode 600",
            help=f"{or_root('run it as that user')}; or let all read it: sudo chmod a+r {path}",
        ) from error
    except FileNotFoundError as error:
        raise BadCore(
            f"there is no file {path}",
            why="the kernel, or systemd, puts cores elsewhere",
            help="see where the kernel puts cores: cat /proc/sys/kernel/core_pattern",
        ) from error
    except IsADirectoryError as error:
        raise BadCore(f"{path} is a folder", why="a core dump is a file") from error
    except OSError as error:
        raise BadCore(f"cannot open {path}: {error.strerror or error}", why="") from error


def _checked_header(path: str, data: mmap.mmap, check_machine: CheckMachine) -> tuple[elf_header.Header, int]:
    """The ELF header of the core and its number of program headers. Raises BadCore and as ``check_machine`` does."""
    start = data[: elf_header.EHDR.size]
    for prefix, name, command in _COMPRESSED:
        if start.startswith(prefix):
            raise BadCore(
                f"{path} is compressed with {name}",
                why="systemd-coredump and many crash collectors compress cores; their memory cannot be read in place",
                help=f"unpack it first: {command} {path}   (or, with systemd: coredumpctl dump PID -o core)",
            )
    identity = elf_header.identify(start)
    if start[:4] != b"\x7fELF":
        raise BadCore(f"{path} is not an ELF file", why="it is some other file, or a core of another system")
    truncated = BadCore(f"{path} is truncated: only {len(data)} bytes of the ELF header are there")
    if not identity:
        raise truncated
    if identity.type != elf_header.ET_CORE:
        kind = _OTHER_TYPES.get(identity.type, "another kind of file")
        what = f"{path} is an ELF file but not a core dump: it is {kind}"
        raise BadCore(what, why="scripts/dispatch -c needs a core dump")
    if identity.machine == EM_CUDA:
        raise refuse(path, data)
    check_machine(path, identity)
    try:
        header = elf_header.parse_header(data)
    except SymbolFileError:
        raise truncated from None
    count = header.phnum
    if count == elf_header.PN_XNUM:
        if not elf_header.EHDR.size <= header.shoff <= len(data) - 64:
            raise BadCore(f"{path} is truncated: the number of its program headers is not there")
        (count,) = struct.unpack_from("<I", data, header.shoff + _SH_INFO_AT)
    size = header.phentsize
    if size < elf_header.PHDR.size or count > MAX_SEGMENTS or header.phoff + count * size > len(data):
        raise BadCore(f"{path} is truncated: its {count} program headers are not all there")
    return header, count
