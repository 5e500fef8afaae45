"""Who may end a wait for an object of an installed package, and in which frames a loop is looked for that waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gdbext.cpython.sync.polled_objects import up_to_callback
from gdbext.cpython.sync.pools import runs_in
from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
from gdbext.cpython.threads.runtime import PythonRuntime

SITE = "/env/lib/python3.11/site-packages"
LIBRARY = "/usr/lib/python3.11"
SELECT = (f"{LIBRARY}/selectors.py", "EpollSelector.select")
RECEIVES = (f"{SITE}/websockets/sync/connection.py", "Connection.recv_events")
GET = (f"{LIBRARY}/queue.py", "Queue.get")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([SELECT, RECEIVES], True),
        ([RECEIVES], True),
        ([GET, RECEIVES], False),
        ([SELECT, (f"{SITE}/other/loop.py", "run"), RECEIVES], False),
        ([("/srv/app.py", "serve"), RECEIVES], False),
        ([SELECT], False),
    ],
)
def test_a_thread_in_the_package_may_act(frames: list[tuple[str, str]], expected: bool) -> None:
    stack = SimpleNamespace(frames=[PythonFrame(function, file, 1, 0x1000, 0x1000) for file, function in frames])
    runtime = SimpleNamespace(frames=SimpleNamespace(stack=lambda _: stack))
    assert runs_in(cast(PythonRuntime, runtime), cast(ThreadState, 0), {f"{SITE}/websockets"}) is expected


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ([f"{SITE}/filelock/api.py", "/srv/app.py", "/srv/main.py"], 3),
        (["/srv/app.py", "/srv/main.py"], 2),
        (["/srv/data.py", f"{SITE}/torch/fetch.py", "/srv/main.py"], 1),
        ([f"{LIBRARY}/threading.py", "/srv/registry.py", f"{LIBRARY}/multiprocessing/managers.py"], 2),
    ],
)
def test_a_library_that_calls_the_program_does_not_wait(files: list[str], count: int) -> None:
    frames = [PythonFrame("f", file, 1, 0x1000, 0x1000) for file in files]
    assert [each.file for each in up_to_callback(frames)] == files[:count]
