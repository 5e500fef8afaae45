"""The generated pages are those that the code makes now."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from support.source import script_module

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return script_module.load("gen_docs")


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("commands", "commands.md"),
        ("modules", "modules.md"),
        ("known", "known-bugs.md"),
        ("guide", "guide.md"),
        ("schema", "gdbext-1.schema.json"),
        ("ranks_schema", "gdbext-ranks-1.schema.json"),
    ],
)
def test_the_page_is_current(generator: ModuleType, page: str, name: str) -> None:
    made = getattr(generator, f"{page}_page")()
    assert (ROOT / "docs" / name).read_text() == made, "run scripts/gen_docs.py"


def test_completions_and_the_manual_are_current(generator: ModuleType) -> None:
    for name, made in generator.completions.files().items():
        assert (ROOT / "share" / name).read_text() == made, "run scripts/gen_docs.py"


PATH = re.compile(r"(?<![\w./$~<…-])(?:\w[\w.-]*/)+[\w.-]+(?:/|\b)")
MODULE = re.compile(r"(?<![\w./-])[a-z_0-9]+\.py\b")
LINK = re.compile(r"\]\((?!https?:)([^)#:]+)[^)]*\)")
CHECKED = (".py", ".md", ".json", ".sh", "/")
"""How the paths end that are taken for files and folders of the repository."""
NOT_OURS = {
    *("Objects/locations.md", "syscalls.py", "engine/arch/aarch64/", "model.py", "train.py", "version.py"),
    *("gdbext/gdbext/init.py", "gdbext/gdbext/lldb_init.py", "threadpoolctl.py"),
}
"""Files of CPython and of the reader, and one that is yet to be written."""


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.fixture(scope="module")
def files() -> set[str]:
    """The files and folders that a page may name, relative to the repository."""
    roots = (ROOT / name for name in ("gdbext", "docs", "share", "tests", "scripts"))
    found = [*ROOT.iterdir(), *(ROOT / "tests").iterdir()]
    found += [path for root in roots for path in root.rglob("*") if "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix() for path in found}


def missing(text: str, files: set[str]) -> set[str]:
    """The paths and modules in the text that are none of these files."""
    names = {file.rpartition("/")[2] for file in files}
    paths = {each for each in PATH.findall(text) if each.endswith(CHECKED) and not re.search("[A-Z]{4}|3\\.X", each)}
    lost = {
        each for each in paths if files.isdisjoint(f"{room}{each}".rstrip("/") for room in ("", "gdbext/", "docs/"))
    }
    return {each for each in lost | (set(MODULE.findall(text)) - names) if each not in NOT_OURS}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_and_file_names_lead_somewhere(page: Path, files: set[str]) -> None:
    text = page.read_text()
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []
    assert missing(text, files) == set()
    assert re.findall(r"(?<![\w.])/(?:root|home|work|Users)/\S*", text) == [], "it shows the machine that made it"
