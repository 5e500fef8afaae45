"""Entry points of installed packages."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from gdbext.engine import entry_points as finder
from gdbext.errors import AddOnError

TEXT = """\
# a comment
[console_scripts]
ours = ours.main:run

[gdbext.pools]
ring = ours_pools:RING
rows = ours_pools:Rows.ALL [extra]

[gdbext.waits]
broken = ours_pools:MISSING
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = tmp_path / "ours_pools-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours-pools\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(TEXT)
    (tmp_path / "ours_pools.py").write_text("RING = 'the ring'\nclass Rows:\n    ALL = ('a', 'b')\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "ours_pools", raising=False)
    return tmp_path


def test_they_are_those_that_the_standard_library_finds(site: Path) -> None:
    theirs = {
        (each.group, each.name, each.value.partition(" [")[0])
        for found in metadata.distributions(path=[str(site)])
        for each in found.entry_points
    }
    ours = {
        (each.group, each.name, each.object_ref)
        for group in ("gdbext.pools", "gdbext.waits")
        for each in finder.entry_points(group)
    }
    assert ours == {each for each in theirs if each[0].startswith("gdbext.")} != set()


def test_what_they_name_is_loaded_when_it_is_asked_for(site: Path) -> None:
    ring, rows = finder.entry_points("gdbext.pools")
    assert "ours_pools" not in sys.modules
    assert (ring.load(), rows.load()) == ("the ring", ("a", "b"))
    assert (ring.package, ring.folder) == ("ours-pools 1.2", str(site))


def test_a_fault_of_a_package_names_the_package(site: Path) -> None:
    (broken,) = finder.entry_points("gdbext.waits")
    with pytest.raises(AddOnError) as caught:
        broken.load()
    assert "'broken' of ours-pools 1.2 failed: AttributeError" in caught.value.what
    assert str(site) in caught.value.help


@pytest.mark.parametrize("place", ["", "ours_pools-1.2.dist-info", "ours_pools-1.2.dist-info/entry_points.txt"])
def test_what_others_can_change_is_not_believed(site: Path, place: str) -> None:
    (site / place).chmod(0o777)
    assert finder.entry_points("gdbext.pools") == ()


@pytest.mark.parametrize("text", [b"[gdbext.pools]\nno equals sign\n", b"[gdbext.pools]\nx = \xff\xfe\n"])
def test_a_file_that_is_no_list_of_entry_points_has_none(site: Path, text: bytes) -> None:
    (site / "ours_pools-1.2.dist-info" / "entry_points.txt").write_bytes(text)
    finder._declared.cache_clear()
    assert finder.entry_points("gdbext.pools") == ()
