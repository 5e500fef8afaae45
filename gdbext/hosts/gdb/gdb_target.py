"""A process or core inside gdb, which supplies memory, registers and threads, and gdb's commands as functions.

Nothing here resumes the process, writes to it or reads symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gdb

from gdbext.engine.arch import architectures
from gdbext.engine.formats.elf_core import is_core
from gdbext.engine.targets.base_target import MemoryMapping, Signal, Target, TargetThread
from gdbext.engine.targets.core_target import LentCore
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from gdbext.engine.targets.system import linux
from gdbext.errors import MemoryFault, NotPermitted, TargetError, TargetGone
from gdbext.hosts.gdb.gdb_printers import WORD, evaluated_address

_MAPPING_LINE = re.compile(
    r"^\s*(0x[0-9a-f]+)\s+(0x[0-9a-f]+)\s+0x[0-9a-f]+\s+(0x[0-9a-f]+)(?:[ \t]+([r-][w-][x-][ps]))?[ \t]*(.*)$", re.M
)


class GdbThread(TargetThread):
    """One thread of a live process in gdb; its registers are read when asked for and then kept."""

    def __init__(self, owner: GdbTarget, thread: gdb.InferiorThread, state: str | None) -> None:
        _, lwp, _ = thread.ptid
        self.tid = lwp or owner.pid
        self.number = thread.num
        self._owner = owner
        self._thread = thread
        # the state before the attach if scripts/dispatch read it; in gdb every thread is stopped, so None
        self.kernel_state = state
        self._registers: dict[str, int] | None = None
        self._signal: Signal | None = None

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """comm, or the name that the user gave it in gdb."""
        return self._thread.name if self._thread.is_valid() else None

    @property
    def signal(self) -> Signal | None:  # type: ignore[override]
        """The crash signal that gdb stopped this thread for. Raises TargetError (the thread runs), TargetGone."""
        self.registers()
        return self._signal

    def registers(self) -> Mapping[str, int]:
        """Those of the architecture's registers that gdb has. Raises TargetError (the thread runs), TargetGone."""
        if self._registers is None:
            self._check()
            with gdb_errors(f"read thread {self.tid}"):
                self._owner.read_thread(self)
        return self._registers or {}

    def is_selected(self) -> bool:
        selected = gdb.selected_thread()
        return selected is not None and selected.ptid == self._thread.ptid

    def read_selected(self) -> None:
        """Select the thread, and read its registers and signal once, if it is stopped. Raises gdb.error."""
        if self._registers is not None or not self._thread.is_valid() or self._thread.is_running():
            return
        if not self.is_selected():
            self._thread.switch()
        # Frame 0's registers are the thread's own: gdb has them without unwinding anything.
        frame = gdb.newest_frame()
        registers = {name: int(frame.read_register(name)) & WORD for name in self._owner.register_names()}
        self._signal = _stop_signal()
        self._registers = registers

    def float_registers(self) -> Mapping[str, int]:
        """The vector registers that arguments are passed in (low 8 bytes), read anew each time."""
        self._check()
        with gdb_errors(f"read thread {self.tid}"), keeping_selection():
            if not self.is_selected():
                self._thread.switch()
            frame = gdb.newest_frame()
            names = self._owner.architecture.float_argument_registers
            return {name: low_word(frame.read_register(name)) for name in names if _has_register(frame, name)}

    def _check(self) -> None:
        """Raise TargetGone or TargetError unless the thread is stopped."""
        if not self._thread.is_valid():
            raise TargetGone(f"thread {self.tid} has exited")
        if self._thread.is_running():
            raise TargetError(f"thread {self.tid} is running", help="stop it first: interrupt -a")


class GdbTarget(LentProcess):
    """gdb's selected inferior, live and stopped. ``states``: tid → the thread's state letter before the attach, if it
    was read. Raises ForeignArchitecture."""

    debugger = "gdb"

    def __init__(self, inferior: gdb.Inferior, states: Mapping[int, str] | None = None) -> None:
        name = inferior.architecture().name()
        architecture = architectures.by_gdb_name(name)
        if not architecture:
            raise architectures.foreign(f"process {inferior.pid} is of architecture {name}")
        self.architecture = architecture
        self.pid = inferior.pid
        self.is_native = connection_type(inferior) == "native"
        self._inferior = inferior
        self._states = states or {}
        self._threads: list[GdbThread] | None = None
        self._maps: list[MemoryMapping] | None = None
        self._register_names: tuple[str, ...] = ()

    def read(self, address: int, size: int) -> bytes:
        """Read the inferior's memory through gdb. Raises MemoryFault, TargetGone."""
        if size == 0:
            return b""
        if size < 0 or not 0 <= address <= WORD - size:
            raise MemoryFault(address, size, "no such address")
        try:
            return bytes(self._inferior.read_memory(address, size))
        except gdb.error as error:
            if not self._inferior.is_valid() or self._inferior.pid != self.pid:
                raise TargetGone.of(self.pid) from error
            raise MemoryFault(address, size) from error

    def threads(self) -> Sequence[GdbThread]:
        """All threads, in order of gdb's numbers."""
        if self._threads is None:
            threads = [GdbThread(self, row, self._states.get(row.ptid[1])) for row in self._inferior.threads()]
            self._threads = sorted(threads, key=lambda thread: thread.number or 0)
        return self._threads

    def selected_thread(self) -> TargetThread | None:
        return _selected_among(self.threads())

    def selected_stack_pointer(self) -> int | None:
        frame = _outer_frame()
        return None if frame is None else int(frame.read_register(self.architecture.stack_pointer)) & WORD

    def evaluate(self, expression: str) -> int | None:
        return evaluated_address(expression)

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps of a local process, else the output of "info proc mappings". Raises TargetError."""
        if self._maps is None and not self.is_native:
            self._maps = parse_mappings(execute("info proc mappings"))
        return super().maps()

    def auxv(self) -> Mapping[int, int]:
        """/proc/PID/auxv of a local process, else the output of "info auxv"."""
        if self.is_native:
            return super().auxv()
        lines = re.findall(r'^(\d+)\s.*?(0x[0-9a-f]+|\d+)(?: ".*")?$', execute("info auxv"), re.M)
        return {int(key): int(value, 0) for key, value in lines if key != "0"}

    def sysroot(self) -> str:
        return gdb_sysroot()

    def register_names(self) -> tuple[str, ...]:
        """The architecture's registers that this target has, by the selected thread. Raises gdb.error."""
        if not self._register_names:
            frame = gdb.newest_frame()
            names = (*self.architecture.general_registers, *self.architecture.system_registers)
            self._register_names = tuple(name for name in names if _has_register(frame, name))
        return self._register_names

    def read_thread(self, thread: GdbThread) -> None:
        """Read one thread's registers and signal. If the user has selected an outer frame, which gdb must unwind again
        after another thread was selected, all threads are read at once. Raises gdb.error."""
        if thread.is_selected():
            thread.read_selected()
            return
        with keeping_selection() as is_expensive:
            thread.read_selected()
            for other in self.threads() if is_expensive else ():
                with suppress(gdb.error):  # raised once more when that thread is asked for
                    other.read_selected()


class GdbCoreTarget(LentCore):
    """A core that gdb has loaded, at ``path``: read by CoreTarget, with gdb's thread numbers and selection, and by
    default its sysroot."""

    debugger = "gdb"

    def __init__(self, path: str, inferior: gdb.Inferior, sysroot: str | None = None) -> None:
        super().__init__(path, gdb_sysroot() if sysroot is None else sysroot)
        self.program = getattr(inferior.progspace, "filename", None) or ""
        self.number_threads({thread.ptid[1] or thread.ptid[0]: thread.num for thread in inferior.threads()})

    def selected_thread(self) -> TargetThread | None:
        return _selected_among(self.threads())


def _selected_among(threads: Sequence[TargetThread]) -> TargetThread | None:
    """The one of these threads that gdb has selected now; the first if gdb has selected none of them."""
    selected = gdb.selected_thread()
    number = selected.num if selected is not None else None
    return next((thread for thread in threads if thread.number == number), next(iter(threads), None))


def current_target(states: Mapping[int, str] | None = None) -> Target:
    """The target of gdb's selected inferior. Raises TargetError naming the next step, BadCore, ForeignArchitecture."""
    inferior = gdb.selected_inferior()
    if connection_type(inferior) == "core":
        return GdbCoreTarget(_core_path(inferior), inferior)
    if inferior.pid == 0:
        raise TargetError(
            "gdb has no process and no core",
            why="none was started or loaded yet, or it has exited",
            help="attach PID   or   core-file CORE   or   run",
        )
    if is_running():
        raise TargetError(
            f"process {inferior.pid} is running",
            why="it was continued in the background",
            help="stop it first: interrupt   (then the command again)",
        )
    return GdbTarget(inferior, states)


def stopped_target() -> GdbTarget:
    """The selected process at this stop, also inside a breakpoint's stop(), where gdb reports that the thread runs.
    Raises TargetGone."""
    inferior = gdb.selected_inferior()
    if inferior.pid == 0:
        raise TargetGone("the process has exited")
    return GdbTarget(inferior)


def attached_target(pid: int) -> Target:
    """Attach gdb to a process. Raises TargetGone, NotPermitted, ForeignArchitecture."""
    try:
        states = proc_checks.thread_states(pid)
        gdb.execute(f"attach {pid}", False, True)
    except OSError as error:
        raise TargetGone.of(pid) from error
    except gdb.error as error:
        proc_checks.check_process(pid)
        raise NotPermitted(f"gdb could not attach to process {pid}: {error}") from error
    return current_target(states)


def brief_stop(pid: int) -> SnapshotTarget:
    """A process that gdb is attached to only while registers and stacks are copied. Raises as SnapshotTarget."""
    return SnapshotTarget(pid, "gdb", lambda: attached_target(pid), lambda _: quietly("detach"))


def _core_path(inferior: gdb.Inferior) -> str:
    """The path of the core that gdb has loaded. Raises TargetError."""
    corefile = getattr(inferior, "corefile", None)  # gdb 17
    if corefile is not None:
        return str(corefile.filename)
    # gdb translates its messages, so only the files themselves show which one is the core and which the program.
    for path in re.findall(r"^\s*`(/.*)', ", execute("info files"), re.M):
        if is_core(path):
            return str(path)
    raise TargetError("gdb does not report the path of its core file", help="use: scripts/dispatch -c CORE")


def connection_type(inferior: gdb.Inferior) -> str:
    """The kind of gdb's connection: "native", "core", "remote", "extended-remote", … or "" for nothing."""
    if hasattr(inferior, "connection"):
        connection = inferior.connection
        return str(connection.type) if connection is not None and connection.is_valid() else ""
    stack = execute("maint print target-stack")  # gdb 11 and older
    kind = re.search(r"^\s*- (native|core|remote|extended-remote)\b", stack, re.M)
    return kind.group(1) if kind else ""


def gdb_sysroot() -> str:
    """gdb's "set sysroot" as a folder of this machine, "" for the default (files as the target sees them)."""
    value = str(gdb.parameter("sysroot") or "")
    return "" if value.startswith("target:") else value


def parse_mappings(text: str) -> list[MemoryMapping]:
    """Parse the output of "info proc mappings"; the permissions are there since gdb 12."""
    mappings = []
    for start, end, offset, permissions, raw in _MAPPING_LINE.findall(text):
        path, deleted = linux.split_deleted(raw.strip())
        mappings.append(MemoryMapping(int(start, 16), int(end, 16), int(offset, 16), path, permissions, deleted))
    return sorted(mappings, key=lambda mapping: mapping.start)


def read_memory(address: int, size: int) -> bytes:
    """Memory of the selected inferior as it is now. Raises MemoryFault."""
    try:
        return bytes(gdb.selected_inferior().read_memory(address, size))
    except (gdb.error, OverflowError) as error:
        raise MemoryFault(address, size) from error


def read_register(name: str) -> int:
    """A register of the selected frame, unsigned. Raises TargetError."""
    try:
        return int(gdb.parse_and_eval(f"${name}")) & WORD
    except gdb.error as error:
        raise TargetError(f"gdb cannot read the register {name}: {error}") from error


def low_word(register: gdb.Value) -> int:
    """The low 8 bytes of a vector register, which gdb shows as a union of arrays, by its first array of words
    (``v2_int64``, ``d.u``). Raises gdb.error."""
    word = _word(register)
    if word is None:
        raise gdb.error("it cannot be read as words")
    return int(word) & WORD


def _word(value: gdb.Value) -> gdb.Value | None:
    """The first element of the first array of 8-byte integers in a value; None if it has none."""
    kind = value.type.strip_typedefs()
    if kind.code == gdb.TYPE_CODE_ARRAY:
        element = kind.target().strip_typedefs()
        return value[0] if (element.code, element.sizeof) == (gdb.TYPE_CODE_INT, 8) else None
    if kind.code in (gdb.TYPE_CODE_UNION, gdb.TYPE_CODE_STRUCT):
        return next((word for word in (_word(value[field]) for field in kind.fields()) if word is not None), None)
    return None


@contextmanager
def keeping_selection() -> Iterator[bool]:
    """Restore the user's thread and frame at the end; yields True if gdb must unwind an outer frame for that."""
    thread = gdb.selected_thread()
    frame = _outer_frame()
    try:
        yield frame is not None
    finally:
        if thread is not None and thread.is_valid():
            thread.switch()
            if frame is not None and frame.is_valid():
                frame.select()


def _outer_frame() -> Any:
    """The selected frame; None if it is the innermost one, which is selected together with its thread."""
    try:
        frame = gdb.selected_frame()
        return frame if frame != gdb.newest_frame() else None
    except gdb.error:  # no frame: the thread runs, or there is none
        return None


@contextmanager
def gdb_errors(what: str, help: str | None = None) -> Iterator[None]:
    """Raise TargetError, ``gdb cannot WHAT: …``, for an error of gdb's."""
    try:
        yield
    except gdb.error as error:
        raise TargetError(f"gdb cannot {what}: {error}", help=help) from error


def _has_register(frame: gdb.Frame, name: str) -> bool:
    """True if gdb knows the register's value in a frame."""
    try:
        return not frame.read_register(name).is_optimized_out
    except (ValueError, gdb.error):
        return False


def _stop_signal() -> Signal | None:
    """The crash signal that stopped the selected thread; None for any other stop. Raises gdb.error."""
    try:
        information = gdb.parse_and_eval("$_siginfo")
        number = int(information["si_signo"])
    except gdb.error:  # the target does not give it (an old gdbserver)
        return None
    if number not in linux.CRASH_SIGNALS:
        return None
    code = int(information["si_code"])
    address = int(information["_sifields"]["_sigfault"]["si_addr"]) & WORD
    return Signal(number, linux.signal_name(number), code, linux.fault_address(number, code, address))


def post_whole(work: Callable[[], None], interrupted: Callable[[], None]) -> None:
    """Have gdb's event loop call ``work``, and then ``interrupted`` if Ctrl+C interrupted that. From any thread.

    Python may raise KeyboardInterrupt even before the first line of a function, and gdb would drop it. So the second
    event runs no Python code unless ``work`` was interrupted: it iterates over ``to_call``.
    """
    to_call = [interrupted]

    def begin() -> None:
        with suppress(KeyboardInterrupt):
            work()
            to_call.clear()

    gdb.post_event(begin)
    gdb.post_event(partial(list, map(_call, to_call)))


def _call(function: Callable[[], None]) -> None:
    function()


def execute(command: str) -> str:
    """The output of a command of gdb's. Raises TargetError."""
    try:
        return plain_output(gdb.execute(command, False, True))
    except gdb.error as error:
        raise TargetError(f'gdb refuses "{command}": {error}') from error


def plain_output(text: str) -> str:
    """Output in plain text: for MI, as in editors, gdb 18 returns console records (~"...")."""
    lines = text.splitlines()
    if not lines or not all(re.fullmatch(r'~".*"', line) for line in lines):
        return text

    def unescaped(match: re.Match[str]) -> str:
        letter = match.group(1)
        return chr(int(letter, 8)) if letter.isdigit() else {"n": "\n", "t": "\t", "r": "\r"}.get(letter, letter)

    plain = "".join(re.sub(r"\\([0-7]{3}|.)", unescaped, line[2:-1]) for line in lines)
    return plain.encode("latin-1", "replace").decode("utf-8", "surrogateescape")  # each byte was escaped by itself


def interrupt_all() -> None:
    """Stop all threads if the selected one runs: a SIGINT to a stopped process would stay pending."""
    if is_running():
        quietly("interrupt -a")


def is_running() -> bool:
    """True while the thread that gdb has selected runs."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and bool(thread.is_running())


def quietly(command: str) -> None:
    """Run a command of gdb's without output; its failure is no error."""
    with suppress(gdb.error):
        gdb.execute(command, False, True)
