#!/usr/bin/env python3
"""Write docs/commands.md, docs/modules.md, the catalogue in docs/known-bugs.md, the kinds of verdicts in docs/guide.md,
the schemas of reports in docs/*.schema.json, and share/ (completions, manual page).

The help of every command, what each folder is for, and the known bugs. They are generated, so that they cannot drift
from the code: tests/unit/test_docs.py fails when they are stale.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts" / "lib"))

import completions  # noqa: E402
import report_schema  # noqa: E402

from gdbext import known as catalogue  # noqa: E402
from gdbext.diagnosis.kinds import KINDS  # noqa: E402
from gdbext.known import KnownBug  # noqa: E402
from gdbext.tools import table  # noqa: E402

COMMANDS = """# Commands

The commands are the same in gdb (`source gdbext/init.py`), in LLDB, and as
`scripts/dispatch [-p PID | -c CORE] COMMAND`. `scripts/gen_docs.py` generates this page from the help texts.
"""
MODULES = """# Modules

This page describes each folder, lowest layer first. [architecture.md](architecture.md) explains how they fit together.
`scripts/gen_docs.py` generates this page from the docstrings of the packages.
"""
ROOMS = ("engine", "cpython", "torch", "diagnosis", "render", "known", "live", "tools", "hosts")
"""Lowest first, as in the import law."""


def commands_page() -> str:
    """The help of all commands, in the order in which `scripts/dispatch --help` lists them."""
    parts = [COMMANDS]
    for row in table.TABLE:
        title = f"scripts/dispatch {row.name}" if row.mode == "program" else row.name
        parts.append(f"## {title}\n\n```\n{table.help_text(row).rstrip()}\n```\n")
    return "\n".join(parts)


def modules_page() -> str:
    """A row for each folder: the docstring of its ``__init__.py``."""
    return "\n".join([MODULES, *_rooms()])


def _rooms() -> Iterator[str]:
    package = ROOT / "gdbext"
    for room in ROOMS:
        yield f"## gdbext/{room}\n\n| folder | contents |\n|---|---|"
        folders = sorted(file.parent for file in (package / room).rglob("__init__.py"))
        yield from (f"| `{folder.relative_to(package)}` | {_purpose(folder)} |" for folder in folders)
        yield ""


CATALOGUE = "## Catalog\n"
"""The heading below which docs/known-bugs.md is generated; what stands above is written by hand."""
ENTRIES_TABLE = "| bug | what happens | affected | cure |\n|---|---|---|---|"


def known_page() -> str:
    """docs/known-bugs.md with the catalogue as it is now."""
    written = (ROOT / "docs" / "known-bugs.md").read_text().partition(CATALOGUE)[0]
    bugs = catalogue.own_entries()
    return "\n".join([written + CATALOGUE, ENTRIES_TABLE, *map(_entry, bugs), ""])


KINDS_TABLE = "| `verdict.kind` | means | what to do |\n|---|---|---|\n"
"""The head of the table in docs/guide.md that is generated; what stands around it is written by hand."""


def guide_page() -> str:
    """docs/guide.md with the kinds of verdicts as they are now."""
    before, head, after = (ROOT / "docs" / "guide.md").read_text().partition(KINDS_TABLE)
    rows: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        meaning = " ".join((kind.__doc__ or "").split()).rstrip(".")
        rows.setdefault((meaning[:1].lower() + meaning[1:], kind.what_to_do), []).append(f"`{kind.value}`")
    lines = (f"| {', '.join(words)} | {meaning} | {to_do} |\n" for (meaning, to_do), words in rows.items())
    return "".join([before, head, *lines, after[after.index("\n\n") + 1 :]])


def _entry(bug: KnownBug) -> str:
    affected = " or ".join(each.text for each in bug.affected)
    return f"| [{bug.id}]({bug.url}) | {bug.title} | {affected} | {bug.cure} |"


def schema_page() -> str:
    """docs/gdbext-1.schema.json."""
    return _lines(report_schema.schema(), "") + "\n"


def ranks_schema_page() -> str:
    """docs/gdbext-ranks-1.schema.json."""
    return _lines(report_schema.ranks_schema(), "") + "\n"


def _lines(value: Any, indent: str) -> str:
    """JSON, with what is short on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(text) <= 110 or not isinstance(value, (dict, list)):
        return text
    inner = f"{indent} "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _lines(each, inner) for each in value) + f"\n{indent}]"
    members = (f"{inner}{json.dumps(name)}: {_lines(each, inner)}" for name, each in value.items())
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def _purpose(folder: Path) -> str:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return " ".join(docstring.split("\n\n", 1)[0].split()).replace("``", "`").replace("|", "\\|")


def main() -> None:
    """Writes the pages."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    (ROOT / "docs" / "commands.md").write_text(commands_page())
    (ROOT / "docs" / "modules.md").write_text(modules_page())
    (ROOT / "docs" / "known-bugs.md").write_text(known_page())
    (ROOT / "docs" / "guide.md").write_text(guide_page())
    (ROOT / "docs" / "gdbext-1.schema.json").write_text(schema_page())
    (ROOT / "docs" / "gdbext-ranks-1.schema.json").write_text(ranks_schema_page())
    for name, text in completions.files().items():
        (ROOT / "share" / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / "share" / name).write_text(text)


if __name__ == "__main__":
    main()
