"""Readers on memory that is nothing but garbage: only typed errors, in bounded time."""

from __future__ import annotations

import random
import struct
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.cpython.abi import PythonAbi
from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.python_structures import (
    PyASCIIObject,
    PyInterpreterState,
    PyRuntimeState,
    PyThreadState,
    PyTypeObject,
)
from gdbext.cpython.abi.versions import SUPPORTED, RuntimeLocation, evidence, version_text
from gdbext.cpython.objects import ObjectReader
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync import locks
from gdbext.cpython.sync.locks import read_gils
from gdbext.cpython.sync.python_wait import python_wait
from gdbext.cpython.threads.frame_reader import Interpreter, PythonFrame, ThreadState
from gdbext.cpython.threads.frame_variables import locals_of, stack_slots
from gdbext.cpython.threads.object_text import describe
from gdbext.cpython.threads.runtime import PythonRuntime, read_thread_names
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import GdbextError, PythonUnsupported
from support.fakes.fake_target import FakeTarget

ABIS = {abi.text: abi for abi in SUPPORTED}
BASE = 0x7F0000000000
SIZE = 1 << 19


def memory_of(data: bytes) -> Memory:
    """One block of bytes at BASE, of a page or more."""
    return Memory(FakeTarget({BASE: data.ljust(4096, b"\0")}))


def location(path: str = "/usr/lib/libpython3.9.so.1.0") -> RuntimeLocation:
    module = SimpleNamespace(path=path, name=path.rpartition("/")[2], base=0, image=None)
    return RuntimeLocation(cast(Module, module), BASE)


def symbols(**known: int) -> Symbolizer:
    exported = {name: SimpleNamespace(vaddr=address) for name, address in known.items()}
    return cast(Symbolizer, SimpleNamespace(index=lambda _: SimpleNamespace(exported=exported.get)))


@cache
def garbage(seed: int) -> bytes:
    """Words that are mostly pointers into the block itself, small numbers, and text."""
    chance = random.Random(seed)

    def word() -> int:
        kind = chance.random()
        if kind < 0.6:
            return BASE + chance.randrange(0, SIZE, 8)
        if kind < 0.8:
            return chance.randrange(0, 64)
        return chance.getrandbits(64)

    return struct.pack(f"<{SIZE // 8}Q", *(word() for _ in range(SIZE // 8)))


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_but_typed_errors(abi: PythonAbi, seed: int) -> None:
    memory = memory_of(garbage(seed))
    runtime = PythonRuntime(memory, location(), layout_for(abi))
    chance = random.Random(seed)
    for _ in range(120):
        address = BASE + chance.randrange(0, SIZE, 8)
        assert len(describe(PyRef(runtime, address))) <= 80
        runtime.functions.source(address)
        locks.read_lock(runtime, address)
        state = ThreadState(address, Interpreter(address, 0), 1, None)
        stack = runtime.frames.stack(state)
        assert stack.problem is not None or not stack.frames
        python_wait(runtime, state, address)
        frame = PythonFrame("f", "f.py", 1, address, address)
        for reader in (locals_of, stack_slots):
            with_errors(reader, runtime, frame)
        objects, dicts = runtime.objects, runtime.dicts
        for method in (objects.text, objects.bytes, objects.integer, objects.tuple_items, objects.list_items):
            with_errors(method, address)
        for method in (dicts.items, dicts.attributes):
            with_errors(lambda at: list(method(at)), address)  # noqa: B023
        assert_reads_nothing_but_values(PyRef(runtime, address))
    read_thread_names(runtime)
    with_errors(read_gils, runtime)
    with_errors(runtime.interpreters)


def assert_reads_nothing_but_values(value: PyRef) -> None:
    """Reading a value raises nothing."""
    for found in (value["name"], value.referent, *value.elements(4), *value.keys(4), *value.variables(4).values()):
        assert found or found.why
        assert isinstance(found.str(16) + found.type + repr(found.bytes(16)), str)
        assert isinstance(found.float() or found.int() or 0, (int, float))
    assert value.code is None
    assert value.function is None or value.function.qualname is not None


def with_errors(function: Any, *arguments: Any) -> None:
    """Anything but a GdbextError fails the test."""
    try:
        function(*arguments)
    except GdbextError:
        return


def test_versions_that_are_not_known_are_refused() -> None:
    with pytest.raises(PythonUnsupported, match=r"free-threaded CPython 3\.15\.1"):
        evidence(memory_of(b"xdebugpy" + struct.pack("<QQ", 0x030F01F0, 1)), location(), symbols())
    with pytest.raises(PythonUnsupported, match=r"3\.16\.0a3"):
        evidence(memory_of(b"xdebugpy" + struct.pack("<QQ", 0x031000A3, 0)), location(), symbols())
    without = memory_of(struct.pack("<QI", 0, 0x031000F0))
    with pytest.raises(PythonUnsupported, match=r"3\.16\.0 is not supported"):
        evidence(without, location(), symbols(Py_Version=BASE + 8))
    with pytest.raises(PythonUnsupported, match=r"3\.7"):
        evidence(memory_of(b""), location("/usr/lib/libpython3.7m.so.1.0"), symbols())


def test_published_version_wins_over_the_path() -> None:
    memory = memory_of(struct.pack("<QI", 0, 0x030B02F0))
    found = evidence(memory, location("/opt/python3.9"), symbols(Py_Version=BASE + 8))
    assert (found.hexversion, found.candidates) == (0x030B02F0, (ABIS["3.11"],))
    expected = {0x030B07F0: "3.11.7", 0x030D00C2: "3.13.0rc2", 0x03090CF0: "3.9.12", 0x030E00A3: "3.14.0a3"}
    assert {each: version_text(each) for each in expected} == expected


@pytest.mark.parametrize(
    ("path", "candidates"),
    [
        ("/usr/lib/libpython3.9.so.1.0", ((3, 9), (3, 8), (3, 10))),
        ("/opt/py3.10/bin/python3.10", ((3, 10), (3, 8), (3, 9))),
        ("/opt/conda/lib/python3.8/bin/renamed", ((3, 8), (3, 9), (3, 10))),
        ("/app/server", ((3, 8), (3, 9), (3, 10))),
        ("/app/python3.12", ((3, 8), (3, 9), (3, 10))),
    ],
)
def test_candidates_from_the_path(path: str, candidates: tuple[tuple[int, int], ...]) -> None:
    found = evidence(memory_of(b""), location(path), symbols())
    assert tuple(abi.version for abi in found.candidates) == candidates


def block(words: dict[int, int]) -> bytes:
    data = bytearray(SIZE)
    for address, value in words.items():
        struct.pack_into("<Q", data, address - BASE, value)
    return bytes(data)


def test_list_of_thread_states_in_a_circle() -> None:
    layout = layout_for(ABIS["3.11"])
    interpreter, state = BASE + 0x20000, BASE + 0x50000
    words = {
        BASE + PyRuntimeState.interpreters_head.field(layout).offset: interpreter,
        interpreter + PyInterpreterState.threads_head.field(layout).offset: state,
        state + PyThreadState.next.field(layout).offset: state,
    }
    for owner, said in ((interpreter, "does not end"), (interpreter + 8, "does not belong")):
        words[state + PyThreadState.interp.field(layout).offset] = owner
        with pytest.raises(GdbextError, match=said):
            PythonRuntime(memory_of(block(words)), location(), layout).thread_states()


def test_lengths_are_capped() -> None:
    """A str of 2**39 characters is not read, only its start."""
    layout = layout_for(ABIS["3.12"])
    text, kind, name = BASE + 0x1000, BASE + 0x2000, BASE + 0x3000
    words = {
        text + 8: kind,
        text + PyASCIIObject.length.field(layout).offset: 1 << 39,
        text + PyASCIIObject.state.field(layout).offset: 0x60,
        kind + PyTypeObject.tp_name.field(layout).offset: name,
        kind + PyTypeObject.tp_flags.field(layout).offset: 1 << 28,
        name: 0x727473,
    }
    objects = ObjectReader(memory_of(block(words)), layout)
    assert objects.text(text, 10) == "\0" * 10
    assert len(objects.text(text)) == 64 * 1024
