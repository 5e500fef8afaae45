"""install.sh: what it adds for a user, that it may be repeated, and that --uninstall leaves everything as it was."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from support.installed import lldbs
from support.programs.harness import ROOT, Outcome, run

pytestmark = pytest.mark.gdb

INSTALL = ROOT / "install.sh"
SOURCE = f"source {ROOT}/gdbext/init.py"
MINE = b"set print pretty on\n# a comment of mine\n"


class Home:
    """A home folder with nothing in it."""

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
    """The environment of a gdb whose Python has both packages already: nothing needs to be fetched. Its LLDB answers at
    once: whether a real one will do (0.3 s of the processor each time) is asked by those tests that do without this."""
    for name in ("elftools", "pygments"):
        (tmp_path / "has" / name).mkdir(parents=True)
        (tmp_path / "has" / name / "__init__.py").touch()
    lldb = tmp_path / "has" / "lldb"
    lldb.write_text("#!/bin/sh\necho loads 16.0.6\n")
    lldb.chmod(0o755)
    return {"PYTHONPATH": str(tmp_path / "has"), "LLDB": str(lldb)}


def test_packages_become_visible_to_gdb_and_go_again(home: Home) -> None:
    # a system with pyelftools in gdb's own Python needs nothing: then the outcome must be the same
    outcome = home.install()
    assert outcome.status == 0, outcome
    assert home.gdb("import elftools, pygments; print('both')") == "both", outcome
    again = home.install()
    assert "are there" in again.stdout, again
    assert not home.gdbinit.exists()
    gone = home.install("--uninstall")
    assert gone.status == 0, gone
    assert not any("gdbext" in name or "elftools" in name for name in home.files())


def test_a_package_that_gdb_has_is_not_hidden(home: Home, tmp_path: Path) -> None:
    (tmp_path / "has" / "pygments").mkdir(parents=True)
    (tmp_path / "has" / "pygments" / "__init__.py").touch()
    has = {"PYTHONPATH": str(tmp_path / "has")}
    assert home.install(**has).status == 0
    assert home.gdb("import pygments; print(pygments.__file__)", **has).startswith(str(tmp_path / "has"))
    assert not any("/pygments/" in name for name in home.files())


def test_offline_says_what_to_do_and_still_adds_the_block(home: Home, tmp_path: Path) -> None:
    (tmp_path / "no-wheels").mkdir()
    isolated = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "http://127.0.0.1:9/"}
    if home.gdb("import elftools, pygments; print('both')") == "both":
        pytest.fail("gdb's own Python has pyelftools already: this machine cannot show what happens without")
    outcome = home.install("--gdbinit", "--wheels", str(tmp_path / "no-wheels"), **isolated)
    assert outcome.status == 0, outcome
    assert "--wheels" in outcome.stderr
    assert SOURCE in home.gdbinit.read_text()


def test_gdbinit_is_left_alone_unless_asked(home: Home, complete: dict[str, str]) -> None:
    home.gdbinit.write_bytes(MINE)
    outcome = home.install(**complete)
    assert outcome.status == 0, outcome
    assert home.gdbinit.read_bytes() == MINE
    assert home.files() == {".gdbinit"}


def test_completions_and_the_manual_page_come_and_go(home: Home, complete: dict[str, str]) -> None:
    assert home.install("--completions", **complete).status == 0
    data = home.path / ".local" / "share"
    shared = ["man/man1/gdbext.1", "bash-completion/completions/gdbext", "fish/vendor_completions.d/gdbext.fish"]
    assert [name for name in shared if (data / name).read_bytes() != (ROOT / "share" / name).read_bytes()] == []
    assert (data / "bash-completion/completions/dispatch").readlink() == Path("gdbext")
    mine = data / "bash-completion/completions/mine"
    mine.write_text("# not of gdbext\n")
    assert home.install("--uninstall").status == 0
    assert home.files() == {str(mine.relative_to(home.path))}


@pytest.mark.parametrize("before", [MINE, MINE.rstrip(b"\n"), b"", b"\n\n", b"\xff\xe4 no utf-8\r\n"])
def test_the_block_comes_once_and_goes_without_a_trace(home: Home, complete: dict[str, str], before: bytes) -> None:
    home.gdbinit.write_bytes(before)
    home.gdbinit.chmod(0o640)
    for _ in range(2):
        outcome = home.install("--gdbinit", **complete)
        assert outcome.status == 0, outcome
    text = home.gdbinit.read_bytes()
    assert text.startswith(before)
    assert text.count(SOURCE.encode()) == 1
    assert home.install("--uninstall").status == 0
    assert home.gdbinit.read_bytes() == before
    assert stat.S_IMODE(home.gdbinit.stat().st_mode) == 0o640


def test_lines_added_after_the_block_stay(home: Home, complete: dict[str, str]) -> None:
    home.gdbinit.write_bytes(b"set pagination off")
    home.install("--gdbinit", **complete)
    with home.gdbinit.open("ab") as file:
        file.write(b"set confirm off")
    home.install("--uninstall")
    assert home.gdbinit.read_bytes() == b"set pagination off\nset confirm off"


def test_a_symbolic_link_stays_one(home: Home, complete: dict[str, str]) -> None:
    real = home.path / "dotfiles"
    real.write_bytes(MINE)
    home.gdbinit.symlink_to("dotfiles")
    home.install("--gdbinit", **complete)
    assert home.gdbinit.is_symlink()
    assert SOURCE.encode() in real.read_bytes()
    home.install("--uninstall")
    assert home.gdbinit.is_symlink()
    assert real.read_bytes() == MINE


def test_a_gdbinit_that_was_not_there_is_not_there_afterwards(home: Home, complete: dict[str, str]) -> None:
    home.install("--gdbinit", **complete)
    assert SOURCE in home.gdbinit.read_text()
    home.install("--uninstall")
    assert home.files() == set()


def test_the_file_that_gdb_reads_is_the_one_changed(home: Home, complete: dict[str, str]) -> None:
    other = home.path / ".config" / "gdb" / "gdbinit"
    other.parent.mkdir(parents=True)
    other.write_bytes(MINE)
    home.install("--gdbinit", **complete)
    assert not home.gdbinit.exists()
    assert SOURCE in other.read_text()
    home.install("--uninstall")
    assert other.read_bytes() == MINE


def test_a_moved_checkout_replaces_its_block(home: Home, complete: dict[str, str]) -> None:
    home.install("--gdbinit", **complete)
    home.gdbinit.write_text(home.gdbinit.read_text().replace(str(ROOT), "/where/it/was"))
    home.install("--gdbinit", **complete)
    text = home.gdbinit.read_text()
    assert "/where/it/was" not in text
    assert text.count(SOURCE) == 1


def test_uninstall_removes_the_cache_and_may_be_repeated(home: Home) -> None:
    cache = home.path / ".cache" / "gdbext"
    cache.mkdir(parents=True)
    (cache / "index").touch()
    for _ in range(2):
        assert home.install("--uninstall").status == 0
    assert home.files() == set()


def test_dry_run_does_nothing(home: Home) -> None:
    outcome = home.install("--dry-run", "--gdbinit")
    assert outcome.status == 0, outcome
    assert "would" in outcome.stdout
    assert home.files() == set()


def _system_without_gdb(folder: Path, *commands: str) -> str:
    """A PATH with the shell's tools, the named fakes, and no gdb."""
    folder.mkdir()
    for name in ("sh", "cat", "id", "dirname", "env", "rm", "mktemp", "grep"):
        found = next(path for path in (Path("/usr/bin") / name, Path("/bin") / name) if path.exists())
        (folder / name).symlink_to(found)
    for name in commands:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{folder}/called"\nexit 1\n')
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("manager", ["apt-get", "dnf", "yum", "zypper", "apk", "pacman", "conda"])
def test_without_gdb_the_package_manager_is_named(home: Home, tmp_path: Path, manager: str) -> None:
    path = _system_without_gdb(tmp_path / "bin", manager)
    outcome = home.install("--dry-run", PATH=path)
    assert "would run" in outcome.stdout or f"as root: {manager}" in outcome.stderr, outcome
    assert manager in outcome.stdout + outcome.stderr
    assert not (tmp_path / "bin" / "called").exists()


def test_without_gdb_and_manager_it_fails_with_the_next_step(home: Home, tmp_path: Path) -> None:
    outcome = home.install(PATH=_system_without_gdb(tmp_path / "bin"))
    assert outcome.status == 1
    assert "install gdb" in outcome.stderr


def test_a_gdb_without_python_is_refused(home: Home, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "gdb"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    outcome = home.install(PATH=f"{fake.parent}:{os.environ['PATH']}")
    assert outcome.status == 1
    assert "no Python inside" in outcome.stderr


def test_wrong_usage(home: Home) -> None:
    assert home.install("--nonsense").status == 2
    assert "--uninstall" in home.install("--help").stdout


@pytest.mark.parametrize("name", lldbs.parameters())
def test_the_block_for_lldb(home: Home, complete: dict[str, str], name: str) -> None:
    """Every LLDB has the commands; what the user had in the file stays as it was."""
    lldbinit = home.path / ".lldbinit"
    lldbinit.write_bytes(MINE.rstrip())
    complete["LLDB"] = lldbs.executable(name)
    for _ in range(2):
        outcome = home.install("--lldbinit", **complete)
        assert outcome.status == 0, outcome
    assert f"lldb: {lldbs.executable(name)}, version" in outcome.stdout
    assert "has the block already" in outcome.stdout
    shown = run([complete["LLDB"], "-b", "-o", "help dispatch-bt"], env=home.environment())
    assert "--native" in shown.stdout, shown
    assert home.install("--uninstall", **complete).status == 0
    assert lldbinit.read_bytes() == MINE.rstrip()
    assert not home.gdbinit.exists()


def test_an_lldb_that_will_not_do_is_named(home: Home, complete: dict[str, str], tmp_path: Path) -> None:
    old = tmp_path / "lldb-old"
    old.write_text("#!/bin/sh\necho loads 14.0.6\n")
    broken = tmp_path / "lldb-broken"
    broken.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'lldb'\" >&2\n")
    reasons = ((old, "is version 14.0.6; 16 or later is needed"), (broken, "has no Python inside, or one"))
    for program, reason in reasons:
        program.chmod(0o755)
        outcome = home.install("--dry-run", **{**complete, "LLDB": str(program)})
        assert f"lldb: {program} {reason}" in outcome.stdout, outcome
