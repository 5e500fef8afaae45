"""Section: what one command adds to its report, beside threads, findings and errors."""

from __future__ import annotations

from typing import ClassVar


class Section:
    """Base of all sections: plain values and the model's own types, in fields that nobody changes."""

    name: ClassVar[str]
    """What the section is called: its member of the JSON document ("operators", "lookup", …)."""
