"""What a report states as exact, verified or recorded; whether it is the truth; whether the damage itself says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .look import Change

PROVEN = ("exact", "verified", "recorded")
_NUMBER = re.compile(r"\b0x[0-9a-f]+|\b(?:0|[1-9][0-9]*)\b")
_OPERATOR = re.compile(r"[A-Za-z_][\w.]*(::[A-Za-z_][\w.]*)+")
_UNNAMED = ("the Python object", "a Python function")
_PYTHON = re.compile(r"( at .*:\d+|, a Python function whose file cannot be read)$", re.DOTALL)
_COMMON = re.compile(r"\b(aten|at|c10|torch|prim|native|_ops|autograd|impl)::")
_SMALL = 4096
"""Numbers below it stand everywhere, in evidence (levels, offsets, indices) and in memory: they name nothing."""


class Statement(NamedTuple):
    """Something that is stated without a reservation: ``about`` is (whose, what)."""

    what: str
    about: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.what} {' '.join(map(str, self.about))}"


Truth = Mapping[Statement, "Evidence"]


class Evidence(NamedTuple):
    """What the report says for a statement: the numbers that it names, and all texts."""

    numbers: frozenset[int]
    text: str


def evidence_of(*texts: object) -> Evidence:
    text = "\n".join(map(str, texts))
    return Evidence(frozenset(int(each, 16 if "x" in each else 10) for each in _NUMBER.findall(text)), text)


def statements(output: str) -> dict[Statement, Evidence]:
    found: dict[Statement, Evidence] = {}
    document = json.loads(output)
    if not isinstance(document, dict):
        return {}
    for thread in document.get("threads") or ():
        for step in thread.get("dispatch") or ():
            if step["confidence"] in PROVEN:
                evidence = evidence_of(*step.get("evidence", ()), step["keyset"])
                found.update(dict.fromkeys(_of_step(thread["tid"], step), evidence))
        wait = thread.get("wait")
        if wait is not None and wait["certainty"] in PROVEN and wait["owner"] is not None:
            owner = wait["owner"]
            statement = Statement("owner", (thread["tid"], owner["tid"] or owner.get("ident"), owner["state"]))
            found[statement] = evidence_of(*wait["evidence"], wait["address"], statement)
        lost = wait.get("lost") if wait is not None else None
        if lost is not None and lost["recorded"]:
            statement = Statement("lost", (thread["tid"], *lost["threads"], lost["loss"]))
            found[statement] = evidence_of(*wait["evidence"], wait["address"], lost["summary"])
    for finding in document.get("findings") or ():
        is_doubtful = "inferred" in finding["summary"] or "seems to hold" in finding["summary"]
        if finding["kind"] in ("deadlock", "self-deadlock") and not is_doubtful:
            statement = Statement("cycle", (finding["kind"], *sorted(finding["threads"])))
            found[statement] = evidence_of(*finding["evidence"], finding["summary"])
    return found


def _of_step(tid: int, step: Mapping[str, Any]) -> Iterator[Statement]:
    op = f"{step['op']}.{step['overload']}" if step["overload"] else step["op"]
    yield Statement("operator", (tid, op))
    if step["keyset"] is not None:
        yield Statement("key", (tid, op, step["keyset"]["bits"], step["key"]))
    kernel = step["kernel"] or {"valid": None}
    if kernel["valid"] is not None and "(function pointer)" not in kernel["function"]:  # its functor was not read
        # a Python function is what it is called by its code object, where that can be read: its name proves nothing
        is_python = kernel["function"].startswith(_UNNAMED) or _PYTHON.search(kernel["function"])
        yield Statement("kernel", (tid, op, step["key"], "a Python function" if is_python else kernel["function"]))


def impossible(found: Iterable[Statement]) -> Iterator[Statement]:
    """Those that cannot be true whatever the process says: an operator without a name, a thread without a tid."""
    for each in found:
        if each.what == "operator" and not (isinstance(each.about[1], str) and _OPERATOR.fullmatch(each.about[1])):
            yield each
        if each.what == "owner" and isinstance(each.about[1], int) and not 0 < each.about[1] <= 1 << 22:
            yield each


def is_excused(statement: Statement, evidence: Evidence, changes: Sequence[Change]) -> bool:
    """The process itself says so, with the smallest damage that makes it: what was changed is the very thing that the
    statement says or that its evidence names. That excuses no conclusion from what is *not* there (no thread has that
    id, no other thread can release it): one damaged word may not be enough for it."""
    if statement.what == "lost":
        return False
    if "gone" in statement.about or "self-deadlock" in statement.about:  # the lock's own memory may say so
        return any(change.is_near(number) for change in changes for number in evidence.numbers if number >= _SMALL)
    return any(_says(change, statement, evidence) for change in changes)


def _says(change: Change, statement: Statement, evidence: Evidence) -> bool:
    numbers = [number for number in evidence.numbers if number >= _SMALL]
    if not {*change.words}.isdisjoint(numbers) or any(map(change.is_near, numbers)):
        return True
    names = [] if statement.what == "owner" else [str(each) for each in statement.about]
    return any(_shares(name, text) for text in change.texts for name in names)


def _shares(name: str, text: str) -> bool:
    """Four characters of the text in a row are in the name, for one may be cut off where the other goes on; a shorter
    text begins or ends an identifier of it. Namespaces that nearly all names have say nothing."""
    name = _COMMON.sub("\0", name)
    for part in _COMMON.sub("\0", text).split("\0"):
        escaped = re.escape(part)
        if 1 < len(part) < 4 and re.search(rf"(?<!\w){escaped}|{escaped}(?!\w)", name):
            return True
        if any(part[at : at + 4] in name for at in range(len(part) - 3)):
            return True
    return False
