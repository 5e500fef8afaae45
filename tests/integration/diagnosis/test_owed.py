"""Waits for somebody who is not there: the sentence says who it was, and healthy programs beside them stay healthy."""

from __future__ import annotations

import pytest

from support.installed import pythons
from support.programs.harness import started

OLDEST, NEWEST = pythons.SUPPORTED[0], pythons.SUPPORTED[-1]
ON_ALL = ("queue-full", "pool-results")
ON_ONE = (
    "event-unset",
    "future-unset",
    "start-unborn",
    "pool-import",
    "fork-executor",
    "fork-thread",
    "fork-loop",
    "fork-writer",
    "loop-lost",
    "flag-unset",
    "prompt-pipe",
    "prompt-pdb",
    "fork-listener",
    "fork-polled",
    "loop-failed",
    "lock-kept",
    "timer-cancelled",
    "refused-before",
    "future-kept",
)
ONCE = (
    "prompt-password",
    "prompt-elsewhere",
    "barrier-short",
    "aside",
    "queue-join",
    "loop-locks",
    "own-futex",
    "refused-space",
    "refused-memory",
    "refused-peer",
    "server-full",
    "refused-threads",
    "flag-shared",
    "connect-self",
    "connect-unix",
    "fork-handed",
    "pool-threads",
)
HEALTHY = (
    "prompt-terminal",
    "prompt-filter",
    "event-healthy",
    "event-forever",
    "event-signal",
    "queue-served",
    "loop-healthy",
    "loop-thread",
    "error-nothing",
)
PROGRAMS = [
    *((name, python) for name in ON_ALL for python in (OLDEST, NEWEST)),
    *zip(ON_ONE, [OLDEST, "venv", NEWEST] * len(ON_ONE)),
    *((name, "venv") for name in (*ONCE, *HEALTHY)),
    ("child-pipe", "venv"),
]


@pytest.mark.parametrize(("scenario", "python"), PROGRAMS)
def test_who_owes_what_is_waited_for(scenario, python):
    with started("owed", scenario, python=python) as target:
        document = target.dispatch("dispatch-diagnose", debugger="none").document
    verdict, truth = document["verdict"], target.truth
    said = " ".join([verdict["kind"], verdict["summary"], *(each["summary"] for each in document["findings"])])
    assert truth["verdict"] in (None, verdict["kind"]), said
    assert [words for words in truth["says"] if words not in said] == [], said
    assert [words for words in truth["never"] if words in said] == [], said
