"""A free-threaded build (3.13t): wider object headers, a GIL that is not used, and a real recording."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from fake_target import FakeTarget

from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.versions import abi_of_hexversion
from gdbext.cpython.sync.gil import read_gils
from gdbext.cpython.threads.thread_state import Interpreter
from gdbext.process.memory import Memory

HEXVERSION = 0x030D05F0
LAYOUT = layout_for(abi_of_hexversion(HEXVERSION, free_threaded=True))
WITH_GIL = layout_for(abi_of_hexversion(HEXVERSION))


def test_what_follows_a_header_is_sixteen_bytes_further_on() -> None:
    assert LAYOUT.size("PyObject") == 32
    for name, field in (("lockobject", "lock_lock"), ("parkingqueueobject", "has_threads_waiting")):
        assert LAYOUT.offset(name, field) == WITH_GIL.offset(name, field) + 16
        assert LAYOUT.size(name) == WITH_GIL.size(name) + 16
    assert LAYOUT.offset("wait_entry", "sema") == WITH_GIL.offset("wait_entry", "sema"), "no object"
    assert LAYOUT.find("lockobject", "no such member") is None


class OneInterpreter:
    """As much of a runtime as the GIL is read from."""

    def __init__(self, layout: Any, enabled: int) -> None:
        at = layout.offset("PyInterpreterState", "ceval.gil")
        interpreter, gil = bytearray(0x100000), bytearray(0x1000)
        struct.pack_into("<Q", interpreter, at, 0x900000)
        struct.pack_into("<Q", gil, layout.offset("_gil_runtime_state", "interval"), 5000)
        if layout.find("_gil_runtime_state", "enabled") is not None:
            struct.pack_into("<i", gil, layout.offset("_gil_runtime_state", "enabled"), enabled)
        self.memory = Memory(FakeTarget({0x1000: bytes(interpreter), 0x900000: bytes(gil)}))
        self.layout = layout

    def interpreters(self) -> list[Interpreter]:
        return [Interpreter(0x1000, 0)]

    def thread_states(self) -> list[Any]:
        return []


@pytest.mark.parametrize(("layout", "enabled", "count"), [(LAYOUT, 0, 0), (LAYOUT, 2**31 - 1, 1), (WITH_GIL, 0, 1)])
def test_only_a_gil_that_is_used_is_one(layout: Any, enabled: int, count: int) -> None:
    assert len(read_gils(OneInterpreter(layout, enabled))) == count  # type: ignore[arg-type]


def test_a_recorded_deadlock(replay: Callable[[str], Any]) -> None:
    hung = replay("python-lock-abba-3.13t")
    report = hung.document("dispatch-diagnose")
    assert report["target"]["python"] == {"version": "3.13.5t"}
    assert report["verdict"]["kind"] == "deadlock"
    assert len(report["verdict"]["threads"]) == 2
    for thread in report["threads"]:
        assert thread["python_frames"], thread["tid"]
        assert all(held["kind"] != "gil" for held in thread["holds"])
