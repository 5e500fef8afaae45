"""Which of several faults that are planted together make tests fail, with few runs of all the tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Outcome(NamedTuple):
    """The tests that failed; ``is_complete`` is False if the run ended before all tests had run."""

    failed: Sequence[str]
    is_complete: bool


NO_END = "the tests do not all run"
"""What is said of a fault that ends the run without a failed test."""
Run = Callable[[Collection[Key], Sequence[str]], Outcome]
"""Runs the named tests, all of them for (), with these faults planted."""


def attribute(faults: Collection[Key], run: Run[Key]) -> dict[Key, str]:
    """Each fault that makes a test fail → that test.

    A failing test is run with halves of the faults until one is left, which then leaves the group. A test that fails
    without any fault, or only with several of them, proves nothing.
    """
    evidence: dict[Key, str] = {}
    left = list(faults)
    useless: set[str] = set()
    while left:
        failed, is_complete = run(left, ())
        if not is_complete and useless.issuperset(failed):
            ending = dict(_ending_the_run(left, run))
            if not ending:
                break
            evidence.update(ending)
            left = [fault for fault in left if fault not in ending]
            continue
        while failing := [test for test in failed if test not in useless]:
            culprit = culprit_of(failing[0], left, run)
            if culprit is None:
                useless.add(failing[0])
                continue
            evidence[culprit] = failing[0]
            left.remove(culprit)
            failed = run(left, failing).failed if left else ()
        if is_complete:
            break
    return evidence


def _ending_the_run(faults: Sequence[Key], run: Run[Key]) -> Iterator[tuple[Key, str]]:
    """The faults with which alone a run of all tests does not come to its end; none if it never does."""
    if run((), ()).is_complete:
        for fault in faults:
            failed, is_complete = run([fault], ())
            if not is_complete:
                yield fault, failed[0] if failed else NO_END


def culprit_of(test: str, faults: Sequence[Key], run: Run[Key]) -> Key | None:
    """The fault with which alone the test fails; None if there is none, or if it fails without faults."""
    if test in run((), (test,)).failed:
        return None
    candidates = list(faults)
    while len(candidates) > 1:
        half = candidates[: len(candidates) // 2]
        candidates = half if run(half, (test,)).failed else candidates[len(half) :]
    return candidates[0] if run(candidates, (test,)).failed else None


def grouped(faults: Mapping[Key, Value], size: int, file_of: Callable[[Value], str]) -> Iterator[list[Key]]:
    """Groups of at most ``size`` faults, of which no two change the same file."""
    groups: list[dict[str, Key]] = []
    for key, fault in faults.items():
        file = file_of(fault)
        group = next((group for group in groups if len(group) < size and file not in group), None)
        if group is None:
            groups.append(group := {})
        group[file] = key
    yield from (list(group.values()) for group in groups)
