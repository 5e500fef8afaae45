"""The generated pages are those that the code makes now."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import script_module

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return script_module.load("gen_docs")


@pytest.mark.parametrize("page", ["commands", "modules"])
def test_the_page_is_current(generator: ModuleType, page: str) -> None:
    made = getattr(generator, f"{page}_page")()
    assert (ROOT / "docs" / f"{page}.md").read_text() == made, "run scripts/gen_docs.py"


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_sample_shows_the_machine_that_made_it(page: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:root|home|work|Users)/\S*", page.read_text()) == []
