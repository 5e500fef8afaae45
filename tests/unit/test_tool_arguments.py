"""Flags alone are understood without argparse, as argparse does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdbext.diagnosis.tool_arguments import CommandParser, flags_of
from gdbext.errors import UsageError
from gdbext.tools import table

PARSERS = {
    row.name: table.parser_of(table.find(row.name))
    for row in table.TABLE
    if row.name.count("-") >= 1 and row.mode != "program"
}
JUNK = ("--", "-", "", "x", "1", "--nothing", "--jso", "--json=1", "-j", "--why=", "--all=x", "aten::mm")


def words_of(parser: CommandParser) -> list[str]:
    return [name for option in parser.options() for name in option.option_strings if name not in ("--help", "-h")]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_flags_are_what_argparse_makes_of_them(data: st.DataObject) -> None:
    parser = PARSERS[data.draw(st.sampled_from(sorted(PARSERS)))]
    flags = st.sampled_from(words_of(parser))
    argv = data.draw(st.lists(flags | flags | flags | st.sampled_from(JUNK), max_size=5))
    quick = flags_of(parser._declarations, argv)
    if quick is None:
        return
    assert vars(quick) == vars(parser.full().parse(argv))


OTHERS = ("--all --thread 1", "--thread", "--thread 1 --thread 2", "x", "--nothing", "--")


@pytest.mark.parametrize("words", ["", "--json --why", "--why --why", *OTHERS])
def test_argparse_sees_all_but_the_ordinary_look(words: str) -> None:
    assert (flags_of(PARSERS["dispatch-bt"]._declarations, words.split()) is None) is (words in OTHERS)


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
