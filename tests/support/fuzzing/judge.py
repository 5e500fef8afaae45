"""Runs a look and says what is wrong with its outcome; finds the smallest damage that does it."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence

from gdbext.tools.outcome import Outcome
from support.source import contract_schema

from .look import Change, Look, Result
from .statements import Evidence, Statement, impossible, is_excused, statements

_TRIES = 300
_SECONDS = 20.0
"""Runs, and seconds of the processor, that finding the smallest damage may cost."""


def judged(look: Look, result: Result, shrink: bool) -> None:
    begin = time.process_time()
    outcome, failures = _run(look, look.changes)
    result.seconds = time.process_time() - begin
    result.status = outcome.status
    result.failures += failures
    for statement, evidence in _false(look, outcome).items():
        smallest = _smallest(look, lambda changes: statement in _false(look, _run(look, changes)[0]))  # noqa: B023
        if any(impossible([statement])) or not is_excused(statement, evidence, smallest):
            result.failures.append(("false statement", f"{statement}\n    {evidence.text}".replace("\n", "\n    ")))
            result.smallest = [str(change) for change in smallest]
        else:
            result.excused.append(str(statement))
    if shrink and failures:
        names = {what for what, _ in failures}
        smallest = _smallest(look, lambda changes: names <= {what for what, _ in _run(look, changes)[1]})
        result.smallest = [str(change) for change in smallest]


def _run(look: Look, changes: Sequence[Change]) -> tuple[Outcome, list[tuple[str, str]]]:
    try:
        outcome = look.run(changes)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(1), [("uncaught", f"{error!r}\n{traceback.format_exc()}")]
    return outcome, _faults(look, outcome)


def _faults(look: Look, outcome: Outcome) -> list[tuple[str, str]]:
    for text in (outcome.error, outcome.output):
        if (at := text.find("internal error")) >= 0:
            return [("internal error", text[max(0, at - 200) : at + 4000])]
    if "--json" not in look.command:
        return []
    try:
        contract_schema.check(json.loads(outcome.output))
    except (ValueError, AssertionError, RecursionError) as error:
        return [("schema", str(error)[:2000])]
    return []


def _false(look: Look, outcome: Outcome) -> dict[Statement, Evidence]:
    """What it states, and the undamaged target does not."""
    if look.truth is None or outcome.status != 0:
        return {}
    try:
        found = statements(outcome.output)
    except ValueError:
        return {}
    return {statement: evidence for statement, evidence in found.items() if statement not in look.truth}


def _smallest(look: Look, fails: Callable[[Sequence[Change]], bool]) -> Sequence[Change]:
    """Changes of which none can be left out (Zeller's ddmin), or nearly so where that takes too many runs."""
    changes, parts, tries = list(look.changes), 2, 0
    end = time.process_time() + _SECONDS
    while len(changes) > 1 and tries < _TRIES and time.process_time() < end:
        size = -(-len(changes) // parts)
        for at in range(0, len(changes), size):
            tries += 1
            if time.process_time() > end:
                break
            rest = changes[:at] + changes[at + size :]
            if fails(rest):
                changes, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(changes):
                break
            parts = min(len(changes), parts * 2)
    return changes
