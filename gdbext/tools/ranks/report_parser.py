"""Parses reports of one job: what all of its ranks repeat is parsed once.

Each of 10,000 ranks lists the 10,000 members of its group: three quarters of its report, and of the time to parse it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from gdbext.engine.formats import parse_json
from gdbext.engine.rank_sets import fold
from gdbext.errors import BadData
from gdbext.render.json_reader import array, count

_NAME = b'"ranks":'
"""A name in a JSON string, in which each quote has a backslash before it: it is a name wherever it is found."""
_GAP = 8
"""White space between a name and its list, at most."""
_LIST = re.compile(rb"\[[0-9,\s]{200,}\]")
"""Lists that are worth it."""
_KEPT = 64
"""Different lists that are remembered."""


class Members(tuple[int, ...]):
    """The members of a group, parsed and checked, and as a set of ranks (``text``)."""

    text: str

    @classmethod
    def of(cls, ranks: Iterable[int]) -> Members:
        """These members."""
        members = cls(ranks)
        members.text = fold(members)
        return members


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
        """The members in a list; None for one that is short, or none at all."""
        known = self._known.get(text)
        if known is None and _LIST.fullmatch(text):
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[text] = Members.of(_numbers(text))
        return known


def _numbers(text: bytes) -> tuple[int, ...]:
    try:
        found: tuple[int, ...] = array(count)(json.loads(text), "ranks")
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
