"""The key of a store that a thread waits for, as a std::string in its frames."""

from __future__ import annotations

import struct

import pytest

from support.programs.wait_processes import DATA, Process, wait_of

WAIT = "_ZN4c10d8TCPStore6doWaitEN3c108ArrayRefINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEEENSt6chrono"
HEAP = DATA + 0x400


def string(text, address):
    """A std::string of libstdc++ at that address; its text is in place or at HEAP."""
    start = address + 16 if len(text) < 16 else HEAP
    inside = text if len(text) < 16 else b""
    return struct.pack("<QQ", start, len(text)) + inside.ljust(16, b"\0")


@pytest.mark.parametrize("text", [b"worker/0", b"ncclUniqueId/a/long/one/0"])
def test_the_key_is_the_string_that_the_frames_hold(text):
    memory = (string(text, DATA)).ljust(0x400, b"\0") + text + b"\0"
    frames = [("libc.so.6", "poll"), ("libtorch_cpu.so", None), ("libtorch_cpu.so", WAIT)]
    process = Process({DATA: memory}).thread(1, frames, call=7, args=(0, 0, 5), registers={"rbx": DATA})
    wait = wait_of(process)
    assert (wait.collective.is_store, wait.collective.key, wait.collective.server) == (True, text.decode(), "")
    assert f"the key '{text.decode()}' of the store" in wait.phrase


@pytest.mark.parametrize("raw", [string(b"a\nb", DATA), struct.pack("<QQ", DATA, 3), struct.pack("<QQ", DATA + 16, 40)])
def test_what_is_no_text_is_no_key(raw):
    frames = [("libc.so.6", "poll"), ("libtorch_cpu.so", None), ("libtorch_cpu.so", WAIT)]
    process = Process({DATA: raw}).thread(1, frames, call=7, args=(0, 0, 5), registers={"rbx": DATA})
    assert wait_of(process).collective.key == ""
