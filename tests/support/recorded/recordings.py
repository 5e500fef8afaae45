"""Recorded processes (tests/recordings), to be looked at in milliseconds without torch, a debugger or ptrace.

Each NAME.rec has its NAME.json: ``truth`` is what the program wrote down about itself, ``verdict`` what is expected of
it where that does not say, ``document`` the report of ``dispatch-diagnose --why`` when it was recorded: whole for those
in WHOLE, of the others the verdict and what each thread waits for. scripts/record_scenarios.py makes them.
"""

from __future__ import annotations

import json
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.recording import recording_reader
from gdbext.engine.targets.recording.recording import Recording
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.tools import running
from gdbext.tools.outcome import Outcome
from support.source import contract_schema

FOLDER = Path(__file__).resolve().parents[2] / "recordings"
COMMAND = ("dispatch-diagnose", "--why")
LONGEST = 40
"""Items of a list that are kept of a document: a recursion has thousands."""
_WHOLE = """
asyncio-waits-3.14 dataloader device-waits-2.6.0 fork-openmp functorch gil-mutex kernel-crash known-bug-serve-3.13
meta-mm nccl-late-0-nccl-legacy-2.15.0 python-lock-abba-3.8 python-recursion trio-waits-3.12 waits waits-3.15
"""
WHOLE = frozenset(_WHOLE.split())
"""Those that together have every section, every kind of value, and the oldest and newest layouts."""


def stored(name: str, document: dict[str, Any]) -> Any:
    if name not in WHOLE:
        threads = [{"tid": thread["tid"], "wait": thread["wait"]} for thread in document["threads"]]
        document = {"verdict": document["verdict"], "threads": threads}
    return shortened(document)


def shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    if isinstance(value, list) and len(value) > LONGEST:
        half = LONGEST // 2
        return [*map(shortened, value[:half]), f"{len(value)} items", *map(shortened, value[-half:])]
    return [shortened(each) for each in value] if isinstance(value, list) else value


def write(name: str, kept: dict[str, Any]) -> None:
    text = json.dumps({**kept, "document": stored(name, kept["document"])}, indent=1, sort_keys=True)
    (FOLDER / f"{name}.json").write_text(text + "\n")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.rec"))


@cache
def recording(name: str) -> Recording:
    return recording_reader.load(str(FOLDER / f"{name}.rec"))


class Replay:
    """One recorded process. All commands share a session, as in a debugger. ``damaged`` takes the recording's place."""

    def __init__(self, name: str, damaged: Recording | None = None) -> None:
        self.name = name
        self.recording = damaged or recording(name)
        self.target = ReplayTarget(self.recording)
        self.session = Session(self.target)

    @cached_property
    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FOLDER / f"{self.name}.json").read_text())
        return found

    @property
    def truth(self) -> dict[str, Any]:
        truth: dict[str, Any] = self.kept["truth"]
        return truth

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        return self.document(*COMMAND)

    def tid(self, role: str) -> int:
        return int(self.truth["threads"][role]["tid"])

    def run(self, command: str, *words: str) -> Outcome:
        return running.execute(command, words, lambda: self.session)

    def document(self, command: str, *words: str) -> dict[str, Any]:
        outcome = self.run(command, *words, "--json")
        assert outcome.status == 0, outcome.error
        found: dict[str, Any] = json.loads(outcome.output)
        contract_schema.check(found)
        return found

    def text(self, command: str, *words: str) -> str:
        outcome = self.run(command, *words)
        assert outcome.status == 0, outcome.error
        return outcome.output
