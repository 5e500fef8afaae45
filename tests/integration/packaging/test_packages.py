"""What scripts/package makes works where nothing of ours is installed: the wheel in a new venv, the archive alone."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from support.installed import pythons
from support.programs.harness import ROOT, Outcome, run

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.pythons("3.8", "3.9", "3.13")]

PYTHONS = ("3.9", "3.13")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    outcome = run([ROOT / "scripts/package", folder])
    assert outcome.status == 0, outcome
    return folder


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(f"venv-{request.param}")
    assert run([pythons.need(request.param), "-m", "venv", "--without-pip", folder]).status == 0
    wheel = next(packages.glob("gdbext-*.whl"))
    options = ["-q", "--disable-pip-version-check", "--no-compile"]
    outcome = run([folder / "bin/python", pip_runner(), "install", *options, wheel])
    assert outcome.status == 0, outcome
    return folder / "bin"


def pip_runner() -> Path:
    """The file by which our pip works for another Python."""
    import pip

    return Path(pip.__file__).with_name("__pip-runner__.py")


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"HOME": str(tmp_path_factory.mktemp("home")), "PATH": os.defpath, "LC_ALL": "C.UTF-8"}


def run_bare(words: list[str | Path], bare: dict[str, str]) -> Outcome:
    settings = [f"{name}={value}" for name, value in bare.items()]
    return run(["env", "-i", *settings, *words], cwd="/")


def is_report_of_meta_mm(outcome: Outcome, debugger: str) -> bool:
    document = outcome.document
    return (document["verdict"]["op"], document["target"]["debugger"]) == ("aten::mm", debugger)


def test_what_the_packages_hold(packages: Path) -> None:
    sizes = {file.suffix: file.stat().st_size for file in packages.iterdir()}
    assert set(sizes) == {".whl", ".pyz"}
    assert max(sizes.values()) < 2 << 20
    with zipfile.ZipFile(next(packages.glob("*.whl"))) as wheel:
        shared = {name.partition("/data/share/")[2] for name in wheel.namelist()}
    completions = {"bash-completion/completions/gdbext", "fish/vendor_completions.d/gdbext.fish"}
    assert shared - {""} == {"man/man1/gdbext.1", "zsh/site-functions/_gdbext"} | completions


def test_the_command_explains_a_hang(installed, inferior, bare) -> None:
    """Each Python with one of the two; the archive is tried with the other one."""
    debugger = "gdb" if installed.parent.name.startswith("venv-3.13") else "none"
    pid = str(inferior("meta-mm").pid)
    outcome = run_bare([installed / "gdbext", "--json", "--debugger", debugger, "-p", pid], bare)
    assert is_report_of_meta_mm(outcome, debugger), outcome


def test_gdb_sources_the_installed_file(installed, packages, bare) -> None:
    for gdbext in (installed / "gdbext", packages / "gdbext.pyz"):
        path = run_bare([gdbext, "--init-path", "gdb"], bare).stdout.strip()
        assert Path(path).is_relative_to(installed.parent) == gdbext.is_relative_to(installed)
        outcome = run_bare(["gdb", "-nx", "-batch", "-ex", f"source {path}", "-ex", "help dispatch-bt"], bare)
        assert "path through" in outcome.stdout, outcome


@pytest.mark.parametrize(("debugger", "python"), [("gdb", "3.9"), ("none", "3.13")])
def test_the_archive_explains_a_hang(debugger, python, packages, inferior, bare, tmp_path) -> None:
    pid, keeps_nothing = str(inferior("meta-mm").pid), debugger == "none"
    bare["TMPDIR"] = str(tmp_path / "temporary")
    (tmp_path / "temporary").mkdir()
    if keeps_nothing:
        bare.update(GDBEXT_NO_CACHE="1", HOME=str(tmp_path))
    words = [pythons.need(python), "-I", "-S", packages / "gdbext.pyz", "--json", "--debugger", debugger, "-p", pid]
    assert is_report_of_meta_mm(run_bare(words, bare), debugger)
    assert not list((tmp_path / "temporary").iterdir())
    assert (Path(bare["HOME"]) / ".cache/gdbext/archive").is_dir() != keeps_nothing


def test_a_python_that_is_too_old_is_told(packages, bare) -> None:
    words = [pythons.need("3.8"), packages / "gdbext.pyz", "--version"]
    outcome = run_bare(words, {**bare, "PATH": "/nowhere"})
    assert outcome.status == 1
    assert "3.9 or later is needed" in outcome.stderr
