"""Frames of Python code that CPython's JIT has compiled, which has no unwind information: recorded deadlocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.recorded.recordings import Replay

PYTHON = ["take", "spin", "work", "Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap"]


@pytest.mark.parametrize("version", ["3.14", "3.15"])
def test_the_stack_of_compiled_code_is_whole(version: str, replay: Callable[[str], Replay]) -> None:
    hung = replay(f"jit-abba-{version}")
    assert hung.truth["jit"]
    threads = {thread["tid"]: thread for thread in hung.document("dispatch-bt", "--all", "--native")["threads"]}
    for role in ("worker-0", "worker-1"):
        frames = threads[hung.tid(role)]["frames"]
        assert [frame["function"] for frame in frames if frame["kind"] == "python"] == PYTHON
        native = [frame for frame in frames if frame["kind"] == "native"]
        compiled = [level for level, frame in enumerate(native) if not frame["module"]]
        assert compiled, "the lock is taken by compiled code"
        assert native[compiled[0] - 1]["module"].endswith(f"python{version}")
        assert native[-1]["module"].endswith("libc.so.6"), "down to the start of the thread"
