"""A process or core inside gdb. gdb lends memory, registers and threads; nothing here runs, writes or reads symbols.

Vector registers as gdb shows them: unions of arrays of what may be in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gdb

from gdbext.engine.arch import Architecture, architectures
from gdbext.engine.targets.base_target import MemoryMapping, Signal, TargetThread
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.engine.targets.system import linux
from gdbext.errors import MemoryFault, TargetError, TargetGone
from gdbext.hosts.gdb.gdb_printers import evaluated_address

_AGGREGATES = (gdb.TYPE_CODE_UNION, gdb.TYPE_CODE_STRUCT)
_WORD = 8


def low_word(register: gdb.Value) -> int:
    """The low 8 bytes of a register, by the first view of it as words (``v2_int64``, ``d.u``). Raises gdb.error."""
    found = _word(register)
    if found is None:
        raise gdb.error("it cannot be read as words")
    return int(found) & (1 << 8 * _WORD) - 1


def _word(value: gdb.Value) -> gdb.Value | None:
    kind = value.type.strip_typedefs()
    if kind.code == gdb.TYPE_CODE_ARRAY:
        element = kind.target().strip_typedefs()
        return value[0] if (element.code, element.sizeof) == (gdb.TYPE_CODE_INT, _WORD) else None
    if kind.code in _AGGREGATES:
        return next((found for found in (_word(value[field]) for field in kind.fields()) if found is not None), None)
    return None


_TARGET_WORD = (1 << 64) - 1
_MAPPING_LINE = re.compile(
    r"^\s*(0x[0-9a-f]+)\s+(0x[0-9a-f]+)\s+0x[0-9a-f]+\s+(0x[0-9a-f]+)(?:[ \t]+([r-][w-][x-][ps]))?[ \t]*(.*)$", re.M
)
_AUXV_LINE = re.compile(r'^(\d+)\s.*?(0x[0-9a-f]+|\d+)(?: ".*")?$', re.M)
_NATIVE_LINE = re.compile(r"^\s*- (native|core|remote|extended-remote)\b", re.M)

_CONSOLE_RECORD = re.compile(r'~".*"')
_MI_ESCAPE = re.compile(r"\\([0-7]{3}|.)")


class GdbThread(TargetThread):
    """One thread of a live process in gdb; its registers are read when asked for and then kept."""

    def __init__(self, owner: GdbTarget, thread: gdb.InferiorThread, state: str | None) -> None:
        _, lwp, _ = thread.ptid
        self.tid = lwp or owner.pid
        self.number = thread.num
        self._owner = owner
        self._thread = thread
        self._state = state
        self._registers: dict[str, int] | None = None
        self._signal: Signal | None = None

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """comm, or the name that the user gave it in gdb."""
        return self._thread.name if self._thread.is_valid() else None

    @property
    def signal(self) -> Signal | None:  # type: ignore[override]
        """The crash signal that gdb stopped this thread for. Raises TargetError (the thread runs), TargetGone."""
        self._read()
        return self._signal

    @property
    def kernel_state(self) -> str | None:
        """The state before the attach where scripts/dispatch looked; in gdb every thread is stopped, so None."""
        return self._state

    def registers(self) -> Mapping[str, int]:
        """All that gdb has of the architecture's registers. Raises TargetError (the thread runs), TargetGone."""
        self._read()
        return self._registers or {}

    def _read(self) -> None:
        if self._registers is None:
            self._check()
            with _gdb_errors(self.tid):
                self._owner.read_thread(self)

    def is_selected(self) -> bool:
        """It is the thread that gdb has selected."""
        selected = gdb.selected_thread()
        return selected is not None and selected.ptid == self._thread.ptid

    def read_selected(self) -> None:
        """Select the thread and read its registers and signal, where it is stopped. Raises gdb.error."""
        if self._registers is not None or not self._thread.is_valid() or self._thread.is_running():
            return
        if not self.is_selected():
            self._thread.switch()
        # Frame 0's registers are the thread's own: gdb has them without unwinding anything.
        frame = gdb.newest_frame()
        registers = {name: int(frame.read_register(name)) & _TARGET_WORD for name in self._owner.register_names()}
        self._signal = _stop_signal()
        self._registers = registers

    def float_registers(self) -> Mapping[str, int]:
        """Those that arguments are passed in, read anew each time."""
        self._check()
        with _gdb_errors(self.tid), keeping_selection():
            if not self.is_selected():
                self._thread.switch()
            frame = gdb.newest_frame()
            names = self._owner.architecture.float_argument_registers
            return {name: low_word(frame.read_register(name)) for name in names if _has_register(frame, name)}

    def _check(self) -> None:
        if not self._thread.is_valid():
            raise TargetGone(f"thread {self.tid} has ended")
        if self._thread.is_running():
            raise TargetError(f"thread {self.tid} is running", help="stop it first: interrupt -a")


class GdbTarget(LentProcess):
    """gdb's selected inferior, live and stopped. Raises ForeignArchitecture.

    ``states`` gives each thread's state (tid to letter) as it was before the attach, where somebody looked.
    """

    debugger = "gdb"

    def __init__(self, inferior: gdb.Inferior, states: Mapping[int, str] | None = None) -> None:
        self.architecture = _architecture(inferior)
        self.pid = inferior.pid
        self.is_native = connection_type(inferior) == "native"
        self._inferior = inferior
        self._states = states or {}
        self._threads: list[GdbThread] | None = None
        self._maps: list[MemoryMapping] | None = None
        self._register_names: tuple[str, ...] = ()

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises MemoryFault, TargetGone."""
        if size == 0:
            return b""
        if size < 0 or not 0 <= address <= _TARGET_WORD - size:
            raise MemoryFault(address, size, "no such address")
        try:
            return bytes(self._inferior.read_memory(address, size))
        except gdb.error as error:
            if not self._inferior.is_valid() or self._inferior.pid != self.pid:
                raise TargetGone.of(self.pid) from error
            raise MemoryFault(address, size) from error

    def threads(self) -> Sequence[TargetThread]:
        """All threads, by gdb's number."""
        return self._all_threads()

    def selected_thread(self) -> TargetThread | None:
        """gdb's selected thread, asked anew each time."""
        return selected_of(self._all_threads())

    def selected_stack_pointer(self) -> int | None:
        """That of gdb's selected frame."""
        frame = _outer_frame()
        return None if frame is None else int(frame.read_register(self.architecture.stack_pointer)) & _TARGET_WORD

    def evaluate(self, expression: str) -> int | None:
        """Evaluate by gdb's parser, in gdb's selected frame."""
        return evaluated_address(expression)

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps of a local process, else what "info proc mappings" prints. Raises TargetError."""
        if self._maps is None and not self.is_native:
            self._maps = parse_mappings(execute("info proc mappings"))
        return super().maps()

    def auxv(self) -> Mapping[int, int]:
        """/proc/PID/auxv of a local process, else what "info auxv" prints."""
        if self.is_native:
            return super().auxv()
        return {int(key): int(value, 0) for key, value in _AUXV_LINE.findall(execute("info auxv")) if key != "0"}

    def sysroot(self) -> str:
        """The folder that gdb looks for the files of the process in."""
        return gdb_sysroot()

    def register_names(self) -> tuple[str, ...]:
        """The architecture's registers that this target has; found once, in the selected thread. Raises gdb.error."""
        if not self._register_names:
            frame = gdb.newest_frame()
            names = (*self.architecture.general_registers, *self.architecture.system_registers)
            self._register_names = tuple(name for name in names if _has_register(frame, name))
        return self._register_names

    def read_thread(self, thread: GdbThread) -> None:
        """Fill in one thread's registers and signal, and those of all others where coming back is dear.

        Selecting another thread drops gdb's frames, and an outer frame that the user has selected has to be unwound
        anew afterwards. So in that case all threads are read at one go. Raises gdb.error.
        """
        if thread.is_selected():
            thread.read_selected()
            return
        with keeping_selection() as is_dear:
            thread.read_selected()
            for other in self._all_threads() if is_dear else ():
                with suppress(gdb.error):  # it costs that one only, when it is asked for
                    other.read_selected()

    def _all_threads(self) -> list[GdbThread]:
        if self._threads is None:
            found = [GdbThread(self, each, self._states.get(each.ptid[1])) for each in self._inferior.threads()]
            self._threads = sorted(found, key=lambda thread: thread.number or 0)
        return self._threads


def connection_type(inferior: gdb.Inferior) -> str:
    """The kind of gdb's connection: "native", "core", "remote", "extended-remote", … or "" for nothing."""
    if hasattr(inferior, "connection"):
        connection = inferior.connection
        return str(connection.type) if connection is not None and connection.is_valid() else ""
    found = _NATIVE_LINE.search(execute("maint print target-stack"))  # gdb 11 and older
    return found.group(1) if found else ""


def gdb_sysroot() -> str:
    """gdb's "set sysroot" as a folder of this machine, "" for the default (files as the target sees them)."""
    value = str(gdb.parameter("sysroot") or "")
    return "" if value.startswith("target:") else value


def parse_mappings(text: str) -> list[MemoryMapping]:
    """Parse the output of "info proc mappings"; the permissions are there since gdb 12."""
    found = []
    for start, end, offset, permissions, raw in _MAPPING_LINE.findall(text):
        path, deleted = linux.split_deleted(raw.strip())
        found.append(MemoryMapping(int(start, 16), int(end, 16), int(offset, 16), path, permissions, deleted))
    return sorted(found, key=lambda mapping: mapping.start)


@contextmanager
def keeping_selection() -> Iterator[bool]:
    """Select the user's thread and frame again at the end; True when that means to unwind an outer frame anew."""
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
    """The selected frame where it is not the innermost one, which selecting the thread selects by itself."""
    try:
        frame = gdb.selected_frame()
        return frame if frame != gdb.newest_frame() else None
    except gdb.error:  # no frame: the thread runs, or there is none
        return None


@contextmanager
def _gdb_errors(tid: int) -> Iterator[None]:
    try:
        yield
    except gdb.error as error:
        raise TargetError(f"gdb cannot read thread {tid}: {error}") from error


def _has_register(frame: gdb.Frame, name: str) -> bool:
    try:
        return not frame.read_register(name).is_optimized_out
    except (ValueError, gdb.error):
        return False


def _stop_signal() -> Signal | None:
    """The crash signal of the selected thread's stop. Raises gdb.error."""
    try:
        information = gdb.parse_and_eval("$_siginfo")
        number = int(information["si_signo"])
    except gdb.error:  # the target does not give it (an old gdbserver)
        return None
    if number not in linux.CRASH_SIGNALS:
        return None
    code = int(information["si_code"])
    address = int(information["_sifields"]["_sigfault"]["si_addr"]) & _TARGET_WORD
    return Signal(number, linux.signal_name(number), code, linux.fault_address(number, code, address))


def selected_of(threads: Sequence[TargetThread]) -> TargetThread | None:
    selected = gdb.selected_thread()
    number = selected.num if selected is not None else None
    return next((thread for thread in threads if thread.number == number), next(iter(threads), None))


def _architecture(inferior: gdb.Inferior) -> Architecture:
    name = inferior.architecture().name()
    found = architectures.by_gdb_name(name)
    if not found:
        raise architectures.foreign(f"process {inferior.pid} is of architecture {name}")
    return found


def post_whole(work: Callable[[], None], cut: Callable[[], None]) -> None:
    """Have gdb's event loop do it, and then ``cut`` where Ctrl+C came in between. From any thread.

    Python raises KeyboardInterrupt where it likes, before the first line of a function too, and gdb would drop it. So
    what looks afterwards is no function of Python's where all went well: none is begun by calling no ``cut``.
    """
    left = [cut]

    def begin() -> None:
        with suppress(KeyboardInterrupt):
            work()
            left.clear()

    gdb.post_event(begin)
    gdb.post_event(partial(list, map(_called, left)))


def _called(function: Callable[[], None]) -> None:
    function()


def execute(command: str) -> str:
    """The output of a command of gdb's. Raises TargetError."""
    try:
        return plain_output(gdb.execute(command, False, True))
    except gdb.error as error:
        raise TargetError(f'gdb refuses "{command}": {error}') from error


def plain_output(text: str) -> str:
    """The output of a command as a console has it. gdb 18 gives it as MI's console records (~"...") where MI is the
    interpreter, as in editors."""
    lines = text.splitlines()
    if not lines or not all(_CONSOLE_RECORD.fullmatch(line) for line in lines):
        return text
    plain = "".join(_MI_ESCAPE.sub(_unescaped, line[2:-1]) for line in lines)
    return plain.encode("latin-1", "replace").decode("utf-8", "surrogateescape")  # each byte was escaped by itself


def _unescaped(found: re.Match[str]) -> str:
    text = found.group(1)
    return chr(int(text, 8)) if text.isdigit() else {"n": "\n", "t": "\t", "r": "\r"}.get(text, text)


def interrupt_all() -> None:
    """Stop all threads, if there is one that runs: a SIGINT to a process that stands still would wait for it there."""
    if is_running():
        quietly("interrupt -a")


def is_running() -> bool:
    """True while the thread that gdb has selected runs: the process was continued, and has not stopped."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and bool(thread.is_running())


def quietly(command: str) -> bool:
    """Run a command of gdb's without output; False where it fails."""
    try:
        gdb.execute(command, False, True)
    except gdb.error:
        return False
    return True
