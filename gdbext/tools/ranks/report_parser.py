"""Checks reports that were made elsewhere: the members that the report on a job is made of.

As docs/gdbext-1.schema.json and docs/gdbext-ranks-1.schema.json have them, with limits on numbers and sizes.

What a part of a JSON document must be, declared: whoever made it, nothing else is believed.

A check raises BadData that says where. Members that are not declared are let through: a newer program may add some.

Parses reports of one job: what all of its ranks repeat is parsed once.

Each of 10,000 ranks lists the 10,000 members of its group: three quarters of its report, and of the time to parse it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gdbext.engine.formats import parse_json
from gdbext.engine.rank_sets import fold
from gdbext.errors import BadData
from gdbext.render.json_reader import Reader, amount, array, count, flag, number, optional, refusal, text

_NAME = b'"ranks":'
"""A name in a JSON string, in which each quote has a backslash before it: it is a name wherever it is found."""
_GAP = 8
"""White space between a name and its list, at most."""
_LIST = re.compile(rb"\[[0-9,\s]{200,}\]")
"""Lists that are worth it."""
_KEPT = 64
"""Different lists that are remembered."""


class Members(str):
    """The members of a group as a set of ranks, where a document has a list of them."""

    __slots__ = ()


class ReportParser:
    """Gives each report as json.loads does, but for long lists of a group's members, which become Members."""

    def __init__(self) -> None:
        self._known: dict[bytes, Members] = {}

    def parse(self, data: bytes) -> Any:
        """The value of the text. Raises BadData."""
        text, lists = self._without_lists(data)
        value = parse_json(text)
        if lists:
            _put_back(value, lists)
        return value

    def _without_lists(self, data: bytes) -> tuple[bytes, list[Members]]:
        """The document with a number in the place of each long list, and the lists by these numbers."""
        pieces: list[bytes] = []
        lists: list[Members] = []
        done, name = 0, data.find(_NAME)
        while name >= 0:
            start = name + len(_NAME)
            opening = data.find(b"[", start, start + _GAP)
            members = self._members(data[opening : data.find(b"]", opening) + 1]) if opening >= 0 else None
            if members is not None:
                pieces += (data[done:opening], b"%d" % len(lists))
                lists.append(members)
                done = start = data.find(b"]", opening) + 1
            name = data.find(_NAME, start)
        return b"".join((*pieces, data[done:])), lists

    def _members(self, text: bytes) -> Members | None:
        """The set of a list; None for one that is short, or none at all."""
        known = self._known.get(text)
        if known is None and _LIST.fullmatch(text):
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[text] = Members(fold(_numbers(text)))
        return known


def _numbers(text: bytes) -> list[int]:
    try:
        found: list[int] = json.loads(text)
    except ValueError as error:
        raise BadData(f"a list of ranks is none: {error}") from error
    return found


def _put_back(document: Any, lists: list[Members]) -> None:
    """Put values back where their numbers stand."""
    collectives = document.get("collectives") if isinstance(document, dict) else None
    groups = collectives.get("groups") if isinstance(collectives, dict) else None
    for group in groups if isinstance(groups, list) else ():
        number = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(number, int):
            if not 0 <= number < len(lists):
                raise BadData(f"{number} is not a list of ranks")
            group["ranks"] = lists[number]


MAX_KNOWN = 32
"""Known bugs of one process."""


def either(kind: type, check: Reader) -> Reader:
    """A value of that kind, which we have put there, or as ``check`` has it."""

    def run(value: Any, where: str) -> None:
        if not isinstance(value, kind):
            check(value, where)

    return run


def record(needed: Mapping[str, Reader], added: Mapping[str, Reader] | None = None) -> Reader:
    """An object with the members ``needed``, and with those of ``added`` or without."""
    later = tuple((added or {}).items())
    always = tuple(needed.items())

    def run(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise refusal(value, where, "an object")
        for name, check in always:
            if name not in value:
                raise BadData(f"{where} has no {name!r}")
            check(value[name], name)
        for name, check in later:
            if name in value:
                check(value[name], name)

    return run


MAX_COMMUNICATORS = 64
"""Communicators of one group, and lines about those of one process."""
MAX_TRANSFERS = 1 << 12

_SIZES = array(array(number))
_TEXTS = array(text)
_COLLECTIVE_WAIT = record(
    {
        "op": text,
        "seq": optional(number),
        "group": text,
        "enqueued": optional(number),
        "completed": optional(number),
        "peer": optional(count),
        "is_store": flag,
    },
    {"key": text, "server": text, "tag": optional(number), "on_device": flag, "from_any": flag},
)

# --- gdbext/1 ---
_ERROR = record({"what": text}, {"where": optional(text), "help": optional(text)})
FAILURE = record({"errors": array(_ERROR)})
"""The document of a command that could not report."""
_WAIT = record(
    {"kind": text, "owner": optional(record({"tid": number}))},
    {
        "collective": optional(_COLLECTIVE_WAIT),
        "name": text,
        "handling": text,
        "device": optional(
            record(
                {},
                {
                    "nccl_call": text,
                    "call": text,
                    "stream": optional(text),
                    "event": optional(text),
                    "stream_id": optional(number),
                    "device": optional(count),
                },
            )
        ),
    },
)
_PYTHON_FRAME = record({"level": number, "function": text, "file": optional(text), "line": optional(number)})
_STEP = record({"level": number, "op": optional(text)}, {"key": optional(text)})
_THREAD = record(
    {
        "tid": number,
        "state": text,
        "wait": optional(_WAIT),
        "dispatch": array(_STEP),
        "python_frames": array(_PYTHON_FRAME),
    },
    {"python_name": optional(text), "signal": optional(text), "dispatch_doubt": optional(text)},
)
_OPERATION = record(
    {
        "seq": optional(number),
        "op": text,
        "state": text,
        "sizes": _SIZES,
        "dtypes": _TEXTS,
        "output_sizes": _SIZES,
        "output_dtypes": _TEXTS,
        "is_p2p": flag,
    }
)
_TRANSFER = record({"operation": text, "is_send": flag, "channel": number, "peer": optional(count), "waits_for": text})
_COMMUNICATOR = record({"error": text, "transfers": array(_TRANSFER, MAX_TRANSFERS)})
_PROCESS_GROUP = record(
    {
        "name": text,
        "description": text,
        "size": optional(count),
        "ranks": either(Members, array(count)),
        "last_enqueued": optional(number),
        "last_completed": optional(number),
        "pending": array(_OPERATION),
        "recent": array(_OPERATION),
    },
    {"communicators": array(_COMMUNICATOR, MAX_COMMUNICATORS)},
)
_IDENTITY = record(
    {},
    {
        "rank": optional(count),
        "size": optional(count),
        "host": optional(text),
        "job": optional(text),
        "restart": optional(count),
    },
)
_COLLECTIVES = record({}, {"identity": optional(_IDENTITY), "groups": optional(array(_PROCESS_GROUP))})
_TARGET = record(
    {"kind": text, "pid": count},
    {"torch": optional(record({"version": optional(text)})), "paused_ms": optional(amount)},
)
_VERDICT = record({"kind": text, "summary": text, "threads": array(number)})
_KNOWN = record({"id": text, "title": text, "url": text, "affected": array(text), "cure": text, "condition": text})
REPORT = record(
    {"target": _TARGET, "verdict": _VERDICT, "threads": array(_THREAD), "errors": array(_ERROR)},
    {
        "collectives": optional(_COLLECTIVES),
        "known": array(_KNOWN, MAX_KNOWN),
        "explanations": array(record({"summary": text})),
    },
)
"""The report on one process."""
