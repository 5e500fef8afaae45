"""Ranks and agents that wait for others: what the calls on their stacks know."""

from __future__ import annotations

import pytest

from support.programs.harness import started, wait_until

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("scenario", ["named-rank", "torchrun-agent"])
def test_what_calls_know(scenario: str) -> None:
    with started(scenario) as target:
        documents: list[dict[str, object]] = []

        def told() -> bool:
            """Whether the sentence is there: the program still has to come to its call."""
            document = target.dispatch("dispatch-diagnose", debugger="none").document
            documents.append(document)
            return all(words in document["verdict"]["summary"] for words in target.truth["says"])

        wait_until(told, "it waits for others")
        if "rank" in target.truth:
            job = documents[-1]["collectives"]
            assert isinstance(job, dict)
            assert (job["identity"]["rank"], job["identity"]["size"]) == (target.truth["rank"], target.truth["size"])
