"""The arguments of a schema's text, by type and name."""

from __future__ import annotations

import re


def schema_types(text: str) -> list[tuple[str, str]]:
    """(type without alias mark, name) of each argument of a schema."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    found = []
    for part in re.split(r", (?![^(\[]*[)\]])", inside):
        words = re.sub(r"\([^)]*\)", "", part).split("=")[0].split()
        if len(words) == 2:
            found.append((words[0], words[1]))
    return found
