"""The key of a store that a thread waits for, as a std::string in its frames; the store at which ranks meet."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.diagnosis.report.wait import CollectiveWait
from gdbext.torch.distributed import python_calls
from support.programs.wait_processes import DATA, Process, wait_of

WAIT = "_ZN4c10d8TCPStore6doWaitEN3c108ArrayRefINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEEENSt6chrono"
HEAP = DATA + 0x400


def string(text, address):
    """A std::string of libstdc++ at that address; its text is in place or at HEAP."""
    start = address + 16 if len(text) < 16 else HEAP
    inside = text if len(text) < 16 else b""
    return struct.pack("<QQ", start, len(text)) + inside.ljust(16, b"\0")


def waits_with(memory):
    frames = [("libc.so.6", "poll"), ("libtorch_cpu.so", None), ("libtorch_cpu.so", WAIT)]
    return wait_of(Process({DATA: memory}).thread(1, frames, call=7, args=(0, 0, 5), registers={"rbx": DATA}))


@pytest.mark.parametrize("text", [b"worker/0", b"ncclUniqueId/a/long/one/0"])
def test_the_key_is_the_string_that_the_frames_hold(text):
    wait = waits_with((string(text, DATA)).ljust(0x400, b"\0") + text + b"\0")
    assert (wait.collective.is_store, wait.collective.key, wait.collective.server) == (True, text.decode(), "")
    assert f"the key '{text.decode()}' of the store" in wait.phrase


@pytest.mark.parametrize("raw", [string(b"a\nb", DATA), struct.pack("<QQ", DATA, 3), struct.pack("<QQ", DATA + 16, 40)])
def test_what_is_no_text_is_no_key(raw):
    assert waits_with(raw).collective.key == ""


@pytest.mark.parametrize(
    ("rank", "text"),
    [
        (0, "waits until all 4 ranks have come to its store at node0:29500, as rank 0 (c10d::TCPStore::wait)"),
        (3, "tries to reach the store of rank 0 at node0:29500, as rank 3 of 4"),
    ],
)
def test_who_meets_whom_at_the_store(rank, text, monkeypatch):
    """The function that makes the store, or connects to it, keeps its arguments; no other one is asked."""
    values = {"rank": rank, "world_size": 4, "port": 29500, "hostname": "node0"}
    monkeypatch.setattr(python_calls, "locals_of", lambda _runtime, _frame: {name: name for name in values})
    read = SimpleNamespace(integer=lambda name: values[name], text=lambda name, _limit: values[name])
    runtime = cast(Any, SimpleNamespace(objects=read))
    file = "/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py"
    frames = [PythonFrame("_create_c10d_store", file, 199, 0x1000, 0x1000), PythonFrame("main", "/a.py", 1, 1, 1)]
    found = python_calls.store_meeting(runtime, frames)
    assert found is not None
    wait = CollectiveWait("c10d::TCPStore::wait", is_store=True, server=found.server, rank=found.rank, size=found.size)
    assert wait.phrase == text
    assert python_calls.store_meeting(runtime, frames[::-1]) is None
