"""install.sh: what it adds for a user, that it may be repeated, and that --uninstall leaves everything as it was."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from support.installed import lldbs
from support.programs.harness import ROOT, Outcome, executable, run

pytestmark = pytest.mark.gdb

INSTALL = ROOT / "install.sh"
SOURCE = f"source {ROOT}/gdbext/init.py"
MINE = b"set print pretty on\n# a comment of mine\n"


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.gdbinit = path / ".gdbinit"
        path.mkdir()

    def environment(self, **more: str) -> dict[str, str]:
        cleared = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "PYTHONUSERBASE"), "")
        return {**cleared, "HOME": str(self.path), **more}

    def install(self, *options: str, **more: str) -> Outcome:
        return run([INSTALL, *options], env=self.environment(**more))

    def gdb(self, python: str, **more: str) -> str:
        outcome = run(["gdb", "-batch", "-ex", f"python {python}"], env=self.environment(**more))
        return outcome.stdout.strip()

    def files(self) -> set[str]:
        return {str(file.relative_to(self.path)) for file in self.path.rglob("*") if file.is_file()}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, str]:
    """The environment of a gdb whose Python has both packages already, and of an LLDB that answers at once."""
    for name in ("elftools", "pygments"):
        (tmp_path / "has" / name).mkdir(parents=True)
        (tmp_path / "has" / name / "__init__.py").touch()
    lldb = executable(tmp_path / "has" / "lldb", "#!/bin/sh\necho loads 16.0.6\n")
    return {"PYTHONPATH": str(tmp_path / "has"), "LLDB": str(lldb)}


def test_packages_become_visible_to_gdb_and_go_again(home: Home) -> None:
    # a system with pyelftools in gdb's own Python needs nothing: then the outcome must be the same
    outcome = home.install()
    assert outcome.status == 0, outcome
    assert home.gdb("import elftools, pygments; print('both')") == "both", outcome
    again = home.install()
    assert "are there" in again.stdout, again
    assert not home.gdbinit.exists()
    assert home.install("--uninstall").status == 0
    assert not any("gdbext" in name or "elftools" in name for name in home.files())


@pytest.mark.parametrize("before", [MINE, MINE.rstrip(b"\n"), b"", b"\xff\xe4 no utf-8\r\n"])
def test_the_block_comes_once_and_goes_without_a_trace(home: Home, complete: dict[str, str], before: bytes) -> None:
    home.gdbinit.write_bytes(before)
    home.gdbinit.chmod(0o640)
    assert [home.install("--gdbinit", **complete).status for _ in range(2)] == [0, 0]
    text = home.gdbinit.read_bytes()
    assert text.startswith(before)
    assert text.count(SOURCE.encode()) == 1
    assert home.install("--uninstall").status == 0
    assert home.gdbinit.read_bytes() == before
    assert stat.S_IMODE(home.gdbinit.stat().st_mode) == 0o640


def test_lines_added_after_the_block_stay_and_a_moved_checkout_replaces_it(
    home: Home, complete: dict[str, str]
) -> None:
    home.gdbinit.write_bytes(b"set pagination off")
    home.install("--gdbinit", **complete)
    home.gdbinit.write_text(home.gdbinit.read_text().replace(str(ROOT), "/where/it/was") + "set confirm off")
    home.install("--gdbinit", **complete)
    text = home.gdbinit.read_text()
    assert "/where/it/was" not in text
    assert text.count(SOURCE) == 1
    home.install("--uninstall")
    assert home.gdbinit.read_bytes() == b"set pagination off\nset confirm off"


@pytest.mark.parametrize("link", [True, False])
def test_the_file_that_gdb_reads_is_the_one_changed(home: Home, complete: dict[str, str], link: bool) -> None:
    """One that a link leads to, which stays one; or that of ~/.config."""
    other = home.path / "dotfiles" if link else home.path / ".config" / "gdb" / "gdbinit"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(MINE)
    if link:
        home.gdbinit.symlink_to("dotfiles")
    home.install("--gdbinit", **complete)
    assert home.gdbinit.is_symlink() == home.gdbinit.exists() == link
    assert SOURCE.encode() in other.read_bytes()
    home.install("--uninstall")
    assert home.gdbinit.is_symlink() == link
    assert other.read_bytes() == MINE


def test_uninstall_removes_the_cache_and_what_was_not_there_before(home: Home, complete: dict[str, str]) -> None:
    cache = home.path / ".cache" / "gdbext"
    cache.mkdir(parents=True)
    (cache / "index").touch()
    home.install("--gdbinit", **complete)
    assert SOURCE in home.gdbinit.read_text()
    assert [home.install("--uninstall").status for _ in range(2)] == [0, 0]
    assert home.files() == set()


def test_dry_run_and_wrong_usage_do_nothing(home: Home) -> None:
    outcome = home.install("--dry-run", "--gdbinit")
    assert (outcome.status, "would" in outcome.stdout) == (0, True), outcome
    assert home.install("--nonsense").status == 2
    assert home.files() == set()


@pytest.mark.parametrize("name", lldbs.parameters())
def test_the_block_for_lldb(home: Home, complete: dict[str, str], name: str) -> None:
    lldbinit = home.path / ".lldbinit"
    lldbinit.write_bytes(MINE.rstrip())
    complete["LLDB"] = lldbs.executable(name)
    _, outcome = (home.install("--lldbinit", **complete) for _ in range(2))
    assert outcome.status == 0, outcome
    assert f"lldb: {lldbs.executable(name)}, version" in outcome.stdout
    assert "has the block already" in outcome.stdout
    shown = run([complete["LLDB"], "-b", "-o", "help dispatch-bt"], env=home.environment())
    assert "--native" in shown.stdout, shown
    assert home.install("--uninstall", **complete).status == 0
    assert lldbinit.read_bytes() == MINE.rstrip()
    assert not home.gdbinit.exists()
