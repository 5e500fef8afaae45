"""Files of a target that has another root."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.engine.targets.foreign_files import ForeignFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with /lib/one.so in it."""
    (tmp_path / "root" / "lib").mkdir(parents=True)
    (tmp_path / "root" / "lib" / "one.so").touch()
    return tmp_path / "root"


def test_a_path_as_the_target_sees_it(root: Path) -> None:
    assert ForeignFiles(f"{root}/").local_path("/lib/one.so") == f"{root}/lib/one.so"
    assert ForeignFiles(str(root)).local_path("[vdso]") == "[vdso]"


def test_a_path_that_names_the_file_from_the_outside(root: Path) -> None:
    """So do the maps of a process in a chroot, and a core that a debugger made of it."""
    assert ForeignFiles(str(root)).local_path(f"{root}/lib/one.so") == f"{root}/lib/one.so"
    assert ForeignFiles(str(root)).local_path(f"{root}-other/lib/one.so") == f"{root}{root}-other/lib/one.so"


def test_the_sysroot_is_a_relative_path_or_a_link(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    (root.parent / "link").symlink_to("root")
    for sysroot in ("root", "link", str(root.parent / "link")):
        assert ForeignFiles(sysroot).local_path(f"{root}/lib/one.so") == f"{sysroot}/lib/one.so"


def test_a_root_that_has_such_a_path_inside(root: Path) -> None:
    inside = root / str(root).lstrip("/") / "lib"
    inside.mkdir(parents=True)
    (inside / "one.so").touch()
    assert ForeignFiles(str(root)).local_path(f"{root}/lib/one.so") == str(inside / "one.so")
