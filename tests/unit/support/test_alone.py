"""A test that wants to be alone is: by the clock, among threads that take turns as workers do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from support.plugins.alone import turn


def test_alone_is_alone_and_gets_its_turn(tmp_path: Path) -> None:
    inside: list[str] = []
    most: list[int] = []
    together: list[bool] = []
    stop = threading.Event()

    def visit(name: str) -> None:
        with turn(tmp_path, alone=False):
            inside.append(name)
            most.append(len(inside))
            together.append("alone" in inside)
            time.sleep(0.002)
            inside.remove(name)

    def come_and_go(name: str) -> None:
        while not stop.is_set():
            visit(name)

    threads = [threading.Thread(target=come_and_go, args=(f"worker {number}",)) for number in range(3)]
    for each in threads:
        each.start()
    for _ in range(10):
        with turn(tmp_path, alone=True):
            assert inside == []
            inside.append("alone")
            time.sleep(0.005)
            inside.remove("alone")
    stop.set()
    for each in threads:
        each.join()
    assert max(most) > 1, "they were never together: the locks keep everybody out"
    assert not any(together)


def test_whoever_leaves_by_an_error_leaves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"), turn(tmp_path, alone=True):
        raise ValueError("x")
    with turn(tmp_path, alone=True):
        pass
