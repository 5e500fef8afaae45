"""The parsers of the commands."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.tool_arguments import CommandParser
from gdbext.errors import UsageError
from gdbext.tools import table

PARSERS = {
    row.name: table.parser_of(table.find(row.name))
    for row in table.TABLE
    if row.name.count("-") >= 1 and row.mode != "program"
}


def test_a_mistake_is_a_usage_error_with_the_usage() -> None:
    with pytest.raises(UsageError) as caught:
        PARSERS["dispatch-bt"].parse(["--nothing"])
    assert caught.value.why.startswith("usage: dispatch-bt")


def test_one_of_two_flags_of_a_group() -> None:
    parser = CommandParser("made", "")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--one", action="store_true")
    group.add_argument("--two", action="store_true")
    assert parser.parse(["--one", "--one"]).one
    with pytest.raises(UsageError, match="not allowed with"):
        parser.parse(["--one", "--two"])
    assert vars(parser.parse(["--two"])) == {"help": False, "json": False, "why": False, "one": False, "two": True}
