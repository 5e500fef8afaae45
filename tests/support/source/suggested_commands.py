"""Commands of ours that a text tells people to type, and whether our own parsers take them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from gdbext.errors import GdbextError, HelpRequested, UsageError
from gdbext.hosts.cli.options import Options, before_program, parse, spelled_out
from gdbext.tools import table
from support.source import parsed, script_module

PROGRAMS = ("scripts/dispatch", "dispatch", "gdbext")
_NAMES = "|".join(row.name for row in table.TABLE)
_SHORT = "|".join(table.short_name(row) for row in table.commands())
COMMAND = re.compile(
    rf"(?<![\w/.-])(scripts/dispatch |(?:dispatch|gdbext) (?=-[\w-]|help |(?:{_NAMES}|{_SHORT})\b)"
    r"|(?:dispatch-[a-z]+|all-threads)(?![\w-])|scripts/(?!dispatch)\w+(?:\.\w+)?)([^\n;)(`]*)"
)
"""A program or a command at its beginning, and what follows it up to the end of the clause."""
PLACEHOLDERS = {**dict.fromkeys(("PID", "TID", "N", "N|FUNCTION", "SECONDS", "GB", "S"), "1"), "DURATION": "30s"}


def in_source(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each string in Python source that is not a docstring; ``1`` stands for what is computed."""
    nodes = parsed.nodes(source)
    docs = {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
    parts = {id(part) for each in nodes if isinstance(each, ast.JoinedStr) for part in parsed.walk(each)[1:]}
    for node in nodes:
        if id(node) in docs or id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            texts = (str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
            yield node.lineno, "".join(texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def suggested(text: str) -> Iterator[list[str]]:
    """The words of each command in the text, and those behind it in its clause: where it ends, prose does not say."""
    end = re.compile(r"[,:.] |\||</|   or   | or (?=dispatch|all-)| and (?=dispatch|all-)|#")
    for match in COMMAND.finditer(text):
        words = end.split(match[2])[0].rstrip("\\ ")
        try:
            found = shlex.split(words)
        except ValueError:  # an apostrophe of prose
            found = words.split()
        yield [*match[1].split(), *_filled(found)]


def _filled(words: list[str]) -> Iterator[str]:
    for before, word in zip(["", *words], words):
        bare = word.strip(",.:'\"[]")
        if bare == "…" and before.startswith("-"):
            yield "1"
        elif bare not in ("…", "\\"):
            yield PLACEHOLDERS.get(bare, bare if bare.isupper() else word.rstrip(",.:"))


def refusal(words: list[str]) -> str:
    """Why our parsers do not take the command, with all options that stand behind it; "" where they do."""
    options = [at for at, word in enumerate(words) if re.match("--?[a-z]|dispatch-[a-z]|all-threads", word) and at]
    least = max(options, default=0) + 1
    said = ""
    for end in range(len(words), least - 1, -1):
        said = _refused(words[:end])
        if not said:
            return ""
    # the name alone, in a sentence, of something that there is
    is_mentioned = words[0] == PROGRAMS[0] or ("-" in words[0] and table.is_command(words[0]))
    return "" if not options and is_mentioned else said


def _refused(words: list[str]) -> str:
    try:
        if words[0] in PROGRAMS:
            _parse_line(words[1:])
        elif words[0].startswith("scripts/"):
            _parse_script(words)
        else:
            table.parser_of(table.find(words[0])).parse(words[1:])
    except HelpRequested:
        return ""
    except GdbextError as error:
        return f"{error.what} {error.why}"
    except SystemExit:
        return "wrong usage"
    return ""


def _parse_line(words: list[str]) -> None:
    words = spelled_out(words or ["--help"])
    program = table.program(words[0])
    if program is not None:
        table.tool_of(program).parse(before_program(words[1:]))
    elif words != ["--help"]:
        options = Options()
        parse(words, options)
        table.parser_of(table.find(options.command)).parse(options.argv)


def _parse_script(words: list[str]) -> None:
    path = Path(__file__).resolve().parents[3] / words[0]
    if not path.exists():
        raise UsageError(f"there is no {words[0]}")
    if path.suffix == ".py" and len(words) > 1 and (parser := getattr(script_module.load(path.stem), "_parser", None)):
        parser().parse_args(words[1:])
