"""The door for files that a target names: never out of its root, never waiting, never more than was allowed."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gdbext.engine.targets import rooted_paths
from gdbext.engine.targets.foreign_files import ForeignFiles, linked_image
from gdbext.errors import SymbolFileError

LIMIT = 1 << 16


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with /etc/inside and /lib/one.py; beside it a file that nobody may see, ``secret``."""
    (tmp_path / "secret").write_text("the host's own\n")
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "lib").mkdir()
    (tmp_path / "root" / "etc" / "inside").write_text("inside\n")
    (tmp_path / "root" / "lib" / "one.py").write_text("x = 1\n")
    return tmp_path / "root"


@pytest.fixture(params=["kernel", "walk"])
def files(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> ForeignFiles:
    """The door, with openat2 and without."""
    found = ForeignFiles(str(root))
    if request.param == "walk":
        monkeypatch.setattr(rooted_paths, "_system_call", lambda: (lambda *_: -1, lambda: errno.ENOSYS))
    return found


def refusal(ask: Callable[[], object]) -> int:
    """The number of the error that asking so ends with, 0 for none."""
    try:
        ask()
    except OSError as error:
        return error.errno or -1
    return 0


def text(files: ForeignFiles, path: str) -> str:
    return files.read(path, LIMIT)[0].decode()


def test_a_path_is_taken_from_the_root(files: ForeignFiles, root: Path) -> None:
    for path in ("/etc/inside", "/etc/../etc/./inside", "//etc//inside", "/../../etc/inside", f"{root}/etc/inside"):
        assert text(files, path) == "inside\n"


@pytest.mark.parametrize("target", ["/etc/inside", "../etc/inside", "../../../etc/inside", "/../etc/inside", "link2"])
def test_links_are_resolved_inside(files: ForeignFiles, root: Path, target: str) -> None:
    (root / "lib" / "link").symlink_to(target)
    (root / "lib" / "link2").symlink_to("/etc/inside")
    assert text(files, "/lib/link") == "inside\n"


def test_no_link_and_no_dots_lead_out(files: ForeignFiles, root: Path) -> None:
    secret = root.parent / "secret"
    (root / "absolute").symlink_to(secret)
    (root / "relative").symlink_to("../secret")
    (root / "folder").symlink_to(root.parent)
    (root / "up").symlink_to("..")
    for path in ("/absolute", "/relative", "/folder/secret", "/up/secret", "/lib/../../secret", "/../secret"):
        with pytest.raises(FileNotFoundError):
            files.read(path, LIMIT)
        assert files.exists(path) is False


def test_links_of_the_kernel_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/self is ours, not the target's; our own root has it, so nothing but the link itself may stop us."""
    secret = tmp_path / "secret"
    secret.write_text("ours\n")
    with secret.open() as mine:
        for walks in (False, True):
            if walks:
                monkeypatch.setattr(rooted_paths, "_system_call", lambda: (lambda *_: -1, lambda: errno.ENOSYS))
            elif os.uname().release < "5.6":
                continue
            deleted = f"/proc/{os.getpid()}/fd/{mine.fileno()}"
            if walks:
                secret.unlink()  # by its name it cannot be found any more, by the link it could
            assert refusal(lambda path=deleted: ForeignFiles().read(path, LIMIT))  # type: ignore[misc]


@pytest.mark.parametrize(
    "path", ["etc/inside", "", "/etc/in\0side", "/\udcff\ud800", "/" + "x" * 5000, "/etc/inside/x"]
)
def test_names_that_are_none(files: ForeignFiles, path: str) -> None:
    assert refusal(lambda: files.read(path, LIMIT))


def test_names_and_existence(files: ForeignFiles, root: Path) -> None:
    assert sorted(files.names("/")) == ["etc", "lib"]
    assert [files.exists(f"/etc/{name}") for name in ("inside", "other", "inside/below")] == [True, False, None]
    assert files.exists("relative") is None
    assert refusal(lambda: files.names("/etc/inside")) == errno.ENOTDIR
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert refusal(lambda: files.read("/a", LIMIT)) == errno.ELOOP


@pytest.fixture(params=["pipe", "folder", "socket", "sparse", "/dev/null", "/dev/zero", "/proc/kmsg"])
def strange(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is no file that anybody may read, by its path."""
    monkeypatch.chdir(root)  # a socket's path has 108 bytes
    if request.param == "pipe":
        os.mkfifo("pipe")
    elif request.param == "folder":
        Path("folder").mkdir()
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
    elif request.param == "sparse":
        Path("sparse").touch()
        os.truncate("sparse", 1 << 40)
    return str(root / request.param)


def test_what_is_no_file_is_left_alone(strange: str) -> None:
    """None of these hangs, waits or fills memory; the tests' own time limit says so."""
    files = ForeignFiles()
    for read in (files.read, files.source):
        try:
            data, _ = read(strange, LIMIT)
        except OSError:
            data = b""
        assert data == b""
    if not strange.startswith("/proc"):
        with pytest.raises(SymbolFileError):
            files.image(strange)
        with pytest.raises(SymbolFileError):
            linked_image(strange)


def test_a_recording_has_no_files_here() -> None:
    files = ForeignFiles.none()
    for ask in (lambda: files.read("/etc/passwd", LIMIT), lambda: files.names("/"), lambda: files.status("/")):
        with pytest.raises(FileNotFoundError):
            ask()


def test_a_server_that_does_not_answer_is_asked_once_for_a_folder(tmp_path):
    served, other = tmp_path / "served", tmp_path / "other"
    for folder in (served / "a", served / "b", served / "c", other):
        folder.mkdir(parents=True)
        (folder / "file.py").write_text("1")
    (tmp_path / "link").symlink_to("other/../served")
    asked = []
    files = ForeignFiles.of_process(os.getpid(), [str(served)], lambda touch: asked.append(touch))
    assert files.read(str(other / "file.py"), 10)[0] == b"1"
    with pytest.raises(FileNotFoundError):  # no file can have such a name: no server is asked
        files.read("/usr/lib\0/python.py", 1 << 20)
    assert not asked
    for folder in (tmp_path / "link" / "a", served / "b", served / "c", served / "b"):
        with pytest.raises(OSError, match="does not answer"):
            files.open(str(folder / "file.py"), 10)
    assert len(asked) == 2
    assert not files.answers(str(served / "d" / "file.py"))


def test_a_server_that_answers_is_read(tmp_path):
    (tmp_path / "file.py").write_text("one line")
    answers = []
    files = ForeignFiles.of_process(os.getpid(), [str(tmp_path)], lambda _: answers.append(1) or b"1")
    for _ in range(3):
        assert files.read(str(tmp_path / "file.py"), 10)[0] == b"one line"
    assert len(answers) == 1


def test_local_paths(root: Path) -> None:
    """The maps of a process in a chroot name a file from the outside; so does a core that a debugger made of it."""
    outside = f"{root}/lib/one.py"
    assert ForeignFiles(f"{root}/").local_path("/lib/one.py") == ForeignFiles(str(root)).local_path(outside) == outside
    assert ForeignFiles(str(root)).local_path("[vdso]") == "[vdso]"
    assert ForeignFiles(str(root)).local_path(f"{root}-other/lib/one.py") == f"{root}{root}-other/lib/one.py"


def test_local_paths_below_other_roots(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    (root.parent / "link").symlink_to("root")
    for sysroot in ("root", "link", str(root.parent / "link")):
        assert ForeignFiles(sysroot).local_path(f"{root}/lib/one.py") == f"{sysroot}/lib/one.py"
    inside = root / str(root).lstrip("/") / "lib"
    inside.mkdir(parents=True)
    (inside / "one.py").touch()
    assert ForeignFiles(str(root)).local_path(f"{root}/lib/one.py") == str(inside / "one.py"), "it has such a path, too"
