"""Waits for somebody who is not there: the sentence says who it was, and healthy programs beside them stay healthy."""

from __future__ import annotations

from typing import Any

import pytest

from support.installed import pythons
from support.programs.harness import started, wait_until

OLDEST, NEWEST = pythons.SUPPORTED[0], pythons.SUPPORTED[-1]
LOST = """
event-unset start-unborn pool-import fork-executor fork-loop prompt-pdb fork-listener fork-polled loop-failed
future-kept timer-cancelled refused-before
"""
"""Each on one Python: what is read differs between them, not what is said."""
LOST_ON_VENV = """
prompt-password barrier-short refused-space server-full refused-threads flag-shared connect-self connect-unix
fork-handed pool-threads child-pipe lock-shared
"""
HEALTHY = "prompt-terminal event-signal queue-served loop-thread error-nothing"
PROGRAMS = [
    *((name, python) for name in ("queue-full", "pool-results", "polled-futures") for python in (OLDEST, NEWEST)),
    *(("asks-itself", python) for python in (OLDEST, "3.11", NEWEST)),
    ("asks-a-thread", "3.11"),
    pytest.param("backward-hook", "venv", marks=pytest.mark.torch),
    *zip(LOST.split(), [OLDEST, "venv", NEWEST] * 9),
    *((name, "venv") for name in (LOST_ON_VENV + HEALTHY).split()),
]


@pytest.mark.parametrize(("scenario", "python"), PROGRAMS)
def test_who_owes_what_is_waited_for(scenario: str, python: str) -> None:
    with started("owed", scenario, python=python) as target:
        document = target.dispatch("dispatch-diagnose", debugger="none").document
    verdict, truth = document["verdict"], target.truth
    said = " ".join([verdict["kind"], verdict["summary"], *(each["summary"] for each in document["findings"])])
    assert truth["verdict"] in (None, verdict["kind"]), said
    assert [words for words in truth["says"] if words not in said] == [], said
    assert [words for words in truth["never"] if words in said] == [], said
    assert {target.tid(role) for role in truth["roles"]} <= {*verdict["threads"]}, said


@pytest.mark.torch
@pytest.mark.parametrize("scenario", ["named-rank", "torchrun-agent"])
def test_ranks_and_agents_that_wait_for_others(scenario: str) -> None:
    with started(scenario) as target:

        def told() -> Any:
            """The report with the sentence: the program still has to come to its call."""
            report = target.dispatch("dispatch-diagnose", debugger="none").document
            return report if all(words in report["verdict"]["summary"] for words in target.truth["says"]) else None

        report = wait_until(told, "it waits for others")
    if "rank" in target.truth:
        identity = report["collectives"]["identity"]
        assert (identity["rank"], identity["size"]) == (target.truth["rank"], target.truth["size"])
