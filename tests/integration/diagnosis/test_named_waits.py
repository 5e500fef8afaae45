"""Waits that a function on the stack names: what is waited for, from whom, and no cause that is none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from support.programs.harness import started, wait_until

SCENARIOS = {
    "zmq_receive": "zmq",
    "zmq_end": "zmq",
    "urllib3_pool": "urllib3",
    "httpx_pool": "httpx",
    "manager": "",
    "yielding": "",
    "rayon": "tokenizers",
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_waited_for(scenario: str) -> None:
    package = SCENARIOS[scenario]
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    with started("named-waits", scenario, python="venv") as target:
        truth = target.truth

        def told() -> Any:
            """The sentences, once the program has come to its call."""
            document = target.dispatch("dispatch-diagnose", debugger="none").document
            found = [document["verdict"], *document["findings"]]
            said = " ".join(each["summary"] for each in found)
            return said if all(words in said for words in truth["says"]) else None

        said = wait_until(told, f"it says {truth['says']}")
    assert [words for words in truth["never"] if words in said] == [], said
