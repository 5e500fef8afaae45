"""gdb's own breakpoint in the dynamic loader, kept out of the code while a command of ours lets the process run.

gdb hears of libraries by a breakpoint that the loader runs into (enable_break, gdb/solib-svr4.c), for each one that
comes or goes. No setting of gdb's is without it. A thread that stands there when gdb is killed goes on with its SIGTRAP
and ends the process (ptrace_signal, kernel/signal.c); in a job that loads libraries all the time that was every second
kill. So the instruction is put back as soon as gdb has taken it away, and gdb reads the list of libraries anew when the
process has stopped again. gdb takes no notice: at a stop it writes the original instruction once more.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import gdb

from gdbext.engine.arch import architectures
from gdbext.engine.targets.live.proc_checks import ends_with_tracer
from gdbext.engine.targets.system.linux import parse_maps
from gdbext.errors import TargetError
from gdbext.hosts.gdb.gdb_target import connection_type, execute
from gdbext.log import logger

_log = logger(__name__)
_PAUSE, _AWAITED = 0.002, 0.1
"""Seconds between two looks: gdb puts its breakpoint back whenever it lets the process go on. And those in which it is
awaited without a pause, when the process is about to run."""
_HEADER = re.compile(r"-?\d+ +(\S.*?) +(?:keep|del|dis|dstp) +[yn] +(0x[0-9a-f]+|<\w+>)?")
_LOCATION = re.compile(r"-?\d+\.\d+ +\S+ +(0x[0-9a-f]+)")
_LOADER = "shlib events"
"""The type of such breakpoints in ``maint info breakpoints`` (bptype_description, gdb/breakpoint.c)."""
_LISTENS = re.compile(r"<PENDING>|catchpoint .*load of ")
"""A user's breakpoint that waits for a library, and his catchpoints for the loading of some."""


@contextmanager
def loader_unwatched() -> Iterator[None]:
    """gdb hears of no library while the process runs, and of all of them at the end. Nothing is done for a process that
    ends together with gdb, or where the user waits for a library."""
    pid, own = gdb.selected_inferior().pid, architectures.own()
    places = _places(pid, len(own.breakpoint_code)) if own is not None else {}
    memory = _memory(pid) if places else -1
    if own is None or memory < 0:
        yield
        return
    before, over = _libraries(pid), threading.Event()
    keeper = threading.Thread(target=_keep_out, args=(memory, own.breakpoint_code, places, over), daemon=True)
    try:
        keeper.start()
        yield
    finally:
        over.set()
        if keeper.ident is not None:
            keeper.join()
        os.close(memory)
        if _libraries(pid) != before:
            _read_libraries()


def _places(pid: int, size: int) -> Mapping[int, bytes]:
    """Address → original bytes, that many, of the instructions that gdb replaces in the loader."""
    if not pid or connection_type(gdb.selected_inferior()) != "native" or ends_with_tracer(pid):
        return {}
    try:
        listed = execute("maint info breakpoints")
        if gdb.parameter("stop-on-solib-events") or _LISTENS.search(listed):
            return {}
        return {place: bytes(gdb.selected_inferior().read_memory(place, size)) for place in loader_places(listed)}
    except (TargetError, gdb.error, OverflowError) as error:
        _log.info("gdb's breakpoint in the loader stays: %s", error)
        return {}


def loader_places(listed: str) -> set[int]:
    """The addresses where gdb has breakpoints in the loader and nothing else, by its list of all breakpoints."""
    kind, found, others = "", set[int](), set[int]()
    for line in listed.splitlines():
        header = _HEADER.match(line)
        kind = header[1] if header is not None else kind
        place = _LOCATION.match(line) or header
        address = place[place.lastindex or 0] if place is not None else ""
        if address.startswith("0x"):
            (found if kind == _LOADER else others).add(int(address, 16))
    return found - others


def _memory(pid: int) -> int:
    """A descriptor of the memory of the program that the process executes now: after an exec it leads nowhere. -1 where
    that is refused."""
    try:
        return os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1


def _keep_out(memory: int, code: bytes, places: Mapping[int, bytes], over: threading.Event) -> None:
    """Put the original bytes back until it is over, wherever the breakpoint instruction, ``code``, stands."""
    awaited = time.monotonic() + _AWAITED
    while not over.wait(0 if time.monotonic() < awaited else _PAUSE):
        for address, original in places.items():
            with suppress(OSError):  # the process has ended
                if os.pread(memory, len(original), address) == code:
                    os.pwrite(memory, original, address)
                    awaited = 0


def program_of(pid: int) -> str:
    """A value that is different in every program that a process executes; "" where that is unknown (remote)."""
    try:
        with open(f"/proc/{pid}/auxv", "rb") as auxv:  # the addresses of its program headers and entry
            return auxv.read().hex()
    except OSError:
        return ""


def _libraries(pid: int) -> set[tuple[str, int]]:
    """The files that are mapped as code, and where; none of a process that is gone."""
    with suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
        return {(each.path, each.start) for each in parse_maps(file.read()) if "x" in each.permissions and each.inode}
    return set()


def _read_libraries() -> None:
    """Have gdb look which libraries there are: it does where it is told its sysroot once more
    (reload_shared_libraries, gdb/solib.c), and reads those that are new."""
    if gdb.selected_inferior().pid:
        with suppress(gdb.error):
            gdb.execute(f"set sysroot {gdb.parameter('sysroot')}", False, True)
