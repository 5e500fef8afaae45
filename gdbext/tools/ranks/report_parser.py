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
"""A name: inside a JSON string each quote has a backslash before it, so that this text cannot occur there."""
_GAP = 8
"""White space between a name and its list, at most."""
_LIST = re.compile(rb"\[[0-9,\s]{200,}\]")
"""Lists that are long enough to be remembered."""


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
    """Parses each report as json.loads does, but long lists of a group's members become Members."""

    def __init__(self) -> None:
        self._members: dict[bytes, Members] = {}
        """By the text of their list, 64 at most."""

    def parse(self, data: bytes) -> Any:
        """The value of the text. Raises BadData."""
        # Parse the document with a number in the place of each long list, then replace the numbers by the lists.
        pieces: list[bytes] = []
        lists: list[Members] = []
        done, name = 0, data.find(_NAME)
        while name >= 0:
            start = name + len(_NAME)
            opening = data.find(b"[", start, start + _GAP)
            members = self._parse_members(data[opening : data.find(b"]", opening) + 1]) if opening >= 0 else None
            if members is not None:
                pieces += (data[done:opening], b"%d" % len(lists))
                lists.append(members)
                done = start = data.find(b"]", opening) + 1
            name = data.find(_NAME, start)
        value = parse_json(b"".join((*pieces, data[done:])))
        if lists:
            _put_back(value, lists)
        return value

    def _parse_members(self, text: bytes) -> Members | None:
        """The members in a list; None if it is short or no list of numbers. Raises BadData."""
        members = self._members.get(text)
        if members is None and _LIST.fullmatch(text):
            if len(self._members) >= 64:
                self._members.clear()
            try:
                members = self._members[text] = Members.of(array(count)(json.loads(text), "ranks"))
            except ValueError as error:
                raise BadData(f"a list of ranks is none: {error}") from error
        return members


def _put_back(document: Any, lists: list[Members]) -> None:
    """Replace the numbers of lists by the lists. Raises BadData."""
    collectives = document.get("collectives") if isinstance(document, dict) else None
    groups = collectives.get("groups") if isinstance(collectives, dict) else None
    for group in groups if isinstance(groups, list) else ():
        number = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(number, int):
            if not 0 <= number < len(lists):
                raise BadData(f"{number} is not a list of ranks")
            group["ranks"] = lists[number]
