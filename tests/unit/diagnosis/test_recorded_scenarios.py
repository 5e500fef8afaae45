"""Every recorded scenario, replayed: what the program said of itself, and the report of the run that was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from support.recorded import recordings
from support.recorded.recordings import Replay
from support.recorded.scenario_checks import (
    check_cycle_of_families,
    check_missing_kernel,
    check_nobody_is_accused_without_need,
    check_verdict,
    check_waits_of_every_kind,
)
from support.recorded.scenarios import KNOWN, OLDER, ON_DEVICES, RECORDED, REPORTED, SCENARIOS

COMMANDS = (("dispatch-bt", "--all", "--native"), ("all-threads", "--stacks"))
DEEP = "boxed-recursion-fallback-0"
"""25,000 frames: tests/integration/diagnosis replays it."""
VERDICTS = [str(scenario) for scenario in (*SCENARIOS, *REPORTED, *ON_DEVICES, *OLDER) if str(scenario) != DEEP]


@pytest.fixture(scope="module", params=[name for name in recordings.names() if name != DEEP])
def recorded(request: pytest.FixtureRequest) -> Replay:
    """Each recording once: pytest runs all tests of one before it goes to the next."""
    return Replay(request.param)


def test_every_scenario_is_recorded() -> None:
    assert recordings.names() == sorted(map(str, (*RECORDED, *OLDER)))


def test_the_truth(recorded: Replay) -> None:
    report = recorded.diagnosis
    if recorded.name in VERDICTS:
        check_verdict(recorded.kept["verdict"], report, recorded.truth)
        check_nobody_is_accused_without_need(report, recorded.truth)
    elif recorded.name.startswith("families"):
        check_cycle_of_families(report, recorded.truth)
    else:
        assert recorded.name.startswith("waits")
        check_waits_of_every_kind(recorded.document("all-threads"), recorded.truth)
    if recorded.name == "missing-kernel":
        check_missing_kernel(report, recorded.truth)


def test_no_known_bug_fits_where_it_is_not(recorded: Replay) -> None:
    known = recorded.diagnosis.get("known", ())
    assert sorted(each["id"] for each in known) == KNOWN.get(recorded.name, [])


def test_the_report_is_that_of_the_recorded_run(recorded: Replay, update_golden: bool) -> None:
    """Members may have come since; none may have gone or changed. The code may read more now than it did then, as long
    as nothing that was reported depends on it."""
    document = {**recorded.diagnosis, "target": dict(recorded.diagnosis["target"])}
    run = document["target"].pop("recording")
    document["errors"] = [error for error in document["errors"] if error["where"] != "recording"]
    assert run["command"] == " ".join(recordings.COMMAND)
    if update_golden:
        recordings.write(recorded.name, {**recorded.kept, "document": document})
        return
    assert differences(recorded.kept["document"], recordings.stored(recorded.name, document)) == []


def test_the_other_commands_report_every_thread(recorded: Replay) -> None:
    for command, *words in COMMANDS:
        document = recorded.document(command, *words)
        assert len(document["threads"]) == len(recorded.recording.threads)
        assert any(thread["frames"] for thread in document["threads"])


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """Where ``new`` does not have what ``old`` has; members that only ``new`` has do not count."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{at}.{key} is gone" for key in old if key not in new]
        return gone + [each for key in old if key in new for each in differences(old[key], new[key], f"{at}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new))
        return [each for number, (was, now) in pairs for each in differences(was, now, f"{at}[{number}]")]
    return [] if old == new else [f"{at}: {old!r} is now {new!r}"]
