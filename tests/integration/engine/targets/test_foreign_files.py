"""Root looks at another user's process: nothing is read that this user may not read."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gdbext.engine.targets import rooted_paths
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.recording import recording_reader
from gdbext.engine.targets.rooted_paths import Rights, rights_of
from support.programs.harness import DISPATCH, ready, run

PYTHON = "/usr/bin/python3"
NOBODY, GROUP = 65534, 54321
PERMITTED = re.compile(r"^Cap.*", re.MULTILINE)
PROGRAM = """
import os, sys
_, groups, *names = sys.argv
os.setgroups([int(each) for each in groups.split(",") if each])
os.setgid(65534)
os.setuid(65534)
code = "def f{0}(*rest):\\n if rest: rest[0](*rest[1:])\\n print('ready', flush=True)\\n sys.stdin.read()\\n"
for number, name in enumerate(names):
    exec(compile(code.format(number), name, "exec"))
functions = [globals()[f"f{number}"] for number in range(len(names))]
functions[0](*functions[1:])
"""
"""Each name that is given is the file of a function, so its second or third line is asked for."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at other users' processes")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user may enter: pytest's own are root's."""
    found = Path(tempfile.mkdtemp(prefix="gdbext-test-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@contextmanager
def of_nobody(*names: str | Path, groups: Sequence[int] = (), wrapper: Sequence[str] = ()) -> Iterator[int]:
    words = [*wrapper, PYTHON, "-I", "-c", PROGRAM, ",".join(map(str, groups)), *map(str, names)]
    with ready(words) as process:
        yield process.pid


def written(path: Path, mode: int, group: int = 0) -> Path:
    path.write_text("".join(f"line {number} of {path.name}\n" for number in range(1, 6)))
    os.chown(path, 0, group)
    path.chmod(mode)
    return path


def test_no_line_that_the_user_may_not_read(folder: Path) -> None:
    secret, common = written(folder / "secret", 0o600), written(folder / "common", 0o644)
    members = written(folder / "members", 0o640, GROUP)
    (folder / "link").symlink_to(secret)
    with of_nobody(secret, common, members, folder / "link", "/etc/shadow") as pid:
        recording = folder / "look.rec"
        words = [DISPATCH, "-p", pid, "--debugger", "none", "--record", recording, "dispatch-bt", "--all"]
        report = run(list(map(str, words)))
    assert report.status == 0, report
    assert "of common" in report.stdout, "what the user may read is shown"
    kept = "\n".join(map(str, recording_reader.load(str(recording)).facts.values()))
    assert "of common" in kept
    shadow = [line for line in Path("/etc/shadow").read_text().splitlines()[:5] if line]
    for hidden in ("of secret", "of members", *shadow):
        assert hidden not in report.stdout
        assert hidden not in kept


def test_our_own_rights_stay(folder: Path) -> None:
    """Also where the open fails, and in all threads: the main one has never been anybody else."""
    secret = written(folder / "secret", 0o600)
    before = rights_of("self"), PERMITTED.findall(Path("/proc/self/status").read_text())
    with of_nobody(secret) as pid:
        files = ForeignFiles.of_process(pid)
        for _ in range(3):
            with suppress(OSError):
                files.read(str(secret), 1000)
            assert (rights_of("self"), PERMITTED.findall(Path("/proc/self/status").read_text())) == before
            assert secret.read_text()
        del files
    assert ForeignFiles().read(str(secret), 1000)[0]


def test_an_absolute_link_in_a_container_is_the_containers(folder: Path) -> None:
    """Not the host's file of that name, which the process cannot even see."""
    host = folder / "shared"
    host.mkdir()
    (host / "target").write_text("the host's\n" * 5)
    inside = f"mount -t tmpfs none {host} && echo theirs > {host}/target && ln -s {host}/target {host}/link"
    wrapper = ["unshare", "-m", "sh", "-c", f'{inside} && chmod 755 {host} && exec "$@"', "sh"]
    if run(["unshare", "-m", "true"]).status:
        pytest.skip("no mount namespaces here")
    with of_nobody(host / "link", wrapper=wrapper) as pid:
        files = ForeignFiles.of_process(pid)
        assert files.root == f"/proc/{pid}/root"
        for path in (f"{host}/link", f"/../..{host}/link", f"{files.root}{host}/link"):
            assert files.read(path, 100)[0] == b"theirs\n"
        assert files.names(str(host)) != os.listdir(host)  # noqa: PTH208


@pytest.mark.parametrize("kind", ["kernel", "walk"])
def test_files_of_another_user_by_both_ways(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "walk":
        monkeypatch.setattr(rooted_paths, "_system_call", lambda: (lambda *_: -1, lambda: errno.ENOSYS))
    secret, common = written(folder / "secret", 0o600), written(folder / "common", 0o644)
    members, of_root = written(folder / "members", 0o640, GROUP), written(folder / "of root", 0o640)
    (folder / "closed").mkdir(mode=0o700)
    written(folder / "closed" / "file", 0o644)
    (folder / "link").symlink_to("closed/../common")
    with of_nobody("/source.py", groups=[GROUP, GROUP + 1]) as pid:
        assert rights_of(pid) == Rights(NOBODY, NOBODY, (GROUP, GROUP + 1))
        files = ForeignFiles.of_process(pid)
        for path in (common, members):
            assert files.read(str(path), 1000)[0].startswith(b"line 1 of ")
        for path in (secret, of_root, folder / "closed" / "file", folder / "link"):
            with pytest.raises(PermissionError):
                files.read(str(path), 1000)
        assert files.exists(str(folder / "closed" / "file")) is None
        with pytest.raises(PermissionError):
            files.names("/root")
    with of_nobody("/source.py") as pid, pytest.raises(PermissionError):
        ForeignFiles.of_process(pid).read(str(members), 1000)
