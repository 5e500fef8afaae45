"""Parses reports of one job: what all of its ranks repeat is parsed once.

Each of 10,000 ranks lists the 10,000 members of its group: three quarters of its report, and of the time to parse it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gdbext.errors import BadData
from gdbext.model.rank_set import fold

_NAME = b'"ranks":'
"""In a JSON string each quote has a backslash before it, so that this is a name wherever it is found."""
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
        """The value. Raises ValueError, BadData, RecursionError."""
        text, lists = self._without_lists(data)
        value = json.loads(text)
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
            known = self._known[text] = Members(fold(json.loads(text)))
        return known


def _put_back(document: Any, lists: list[Members]) -> None:
    """Where their numbers stand."""
    collectives = document.get("collectives") if isinstance(document, dict) else None
    groups = collectives.get("groups") if isinstance(collectives, dict) else None
    for group in groups if isinstance(groups, list) else ():
        number = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(number, int):
            if not 0 <= number < len(lists):
                raise BadData(f"{number} is not a list of ranks")
            group["ranks"] = lists[number]
