"""Versions of what a process has loaded, and entries that are told by them: live and of a core."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markupsafe
import pytest

from gdbext.diagnosis.inspect import inspect_threads, with_known_bugs
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.known import Affected, KnownBug, ThreadPattern
from support.programs import harness
from support.programs.harness import Inferior

_NCCL = """
#include <stdio.h>
const char* warning = "NCCL version %d.%d.%d%s is not the version of the headers\\n";
static const char banner[] = "NCCL version 2.19.3+cuda12.3";
const char* version(void) { static char number[16]; sscanf(banner, "NCCL version %15[0-9.]", number); return number; }
"""
"""The two texts are in nccl's src/init.cc in this order."""
_WAITS = "import threading\n\n\ndef for_ever():\n    lock.acquire()\n\n\nlock = threading.Lock()\nlock.acquire()\n"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel that was made up, a real one, and a library that says that it is NCCL; it is not called
    site-packages."""
    folder = tmp_path_factory.mktemp("target")
    (folder / "gdbext_made").mkdir()
    (folder / "gdbext_made" / "__init__.py").write_text("")
    (folder / "gdbext_made" / "waits.py").write_text(_WAITS)
    (folder / "Gdbext.made-1.2.3.dist-info").mkdir()
    (folder / "Gdbext.made-1.2.3.dist-info" / "METADATA").write_text("Name: gdbext-made\nVersion: 1.2.3\n")
    real = Path(markupsafe.__file__).parent
    for each in (real, *real.parent.glob("[Mm]arkup[Ss]afe-*.dist-info")):
        shutil.copytree(each, folder / each.name)
    (folder / "nccl.c").write_text(_NCCL)
    library = ["cc", "-shared", "-fPIC", "-o", str(folder / "libnccl.so.2"), str(folder / "nccl.c")]
    subprocess.run(library, check=True)
    return folder


@pytest.fixture(scope="module")
def inferior(packages: Path) -> Iterator[Inferior]:
    python = getattr(sys, "_base_executable", sys.executable)
    words = ("packages", str(packages / "libnccl.so.2"))
    with harness.started(*words, python=python, env={"PYTHONPATH": str(packages)}) as inferior:
        yield inferior


def bugs(truth: dict[str, Any]) -> list[KnownBug]:
    """For each package one entry that its version has, and two whose ranges are beside it."""
    waits = (ThreadPattern((("gdbext_made/waits.py", "for_ever"),)),)
    found = []
    for package, version in truth["versions"].items():
        later = f"{version}.1"
        ranges = (Affected(package, version, later), Affected(package, before=version), Affected(package, later))
        found += [
            KnownBug(f"{package}#{number}", "it waits", "https://a", (each,), "update", waits)
            for number, each in enumerate(ranges)
        ]
    return found


def matched(target: Target, truth: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr("gdbext.diagnosis.verdict.known_bugs.all_entries", lambda _: bugs(truth))
    with contextlib.closing(target):
        session = Session(target)
        return {match.id: match.condition for match in with_known_bugs(session, inspect_threads(session)).known}


def test_versions_are_read_and_ranges_compared(inferior: Inferior, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry says nothing where the version is outside of its range, and without "if" where it is inside."""
    assert inferior.truth["versions"]["nccl"] == "2.19.3"
    assert inferior.truth["versions"]["gdbext-made"] == "1.2.3"
    found = matched(ProcTarget(inferior.pid), inferior.truth, monkeypatch)
    assert found == {f"{package}#0": "" for package in inferior.truth["versions"]}


def test_a_core_whose_files_are_gone(inferior: Inferior, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was only there is not known, and the line says "if"; before they go, all is known."""
    found = matched(CoreTarget(str(inferior.core())), inferior.truth, monkeypatch)
    assert found == {f"{package}#0": "" for package in inferior.truth["versions"]}
    core, aside = str(inferior.core()), packages.with_name("aside")
    packages.rename(aside)
    try:
        found = matched(CoreTarget(core), inferior.truth, monkeypatch)
    finally:
        aside.rename(packages)
    assert found["glibc#0"] == found["python#0"] == ""
    for package in ("gdbext-made", "markupsafe"):
        version = inferior.truth["versions"][package]
        assert found[f"{package}#1"] == f"if your {package} is older than {version}"
