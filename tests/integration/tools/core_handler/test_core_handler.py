"""core-handler on processes that stand as the kernel keeps a dying one: the head of their core comes out of a pipe, the
memory is read in the process. The kernel itself is set up by install.sh, which is tried on made-up files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.tools import core_handler
from gdbext.tools.core_handler import AT_ONCE, FOR_FIRST, NOT_TOLD_APART, OF_ONE_USER, user_of
from support.fakes.core_maker import Core, auxv, prpsinfo, prstatus, siginfo
from support.programs import procfs
from support.programs.harness import DISPATCH, PATIENCE, ROOT, Outcome, ready, run, some, wait_until

CRASHING = """
import os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
def crash():
    print("there", flush=True)
    os.read(0, 1)
crash()
"""
NOBODY = 65534
root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root has other users' rights and uids to lend")
ENTERING = """
import ctypes, os, sys
for number, step in enumerate(sys.argv[1:], 1):
    if step != "new":
        os.setresgid(*[int(step)] * 3)
        os.setresuid(*[int(step)] * 3)
    elif ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        sys.exit(os.strerror(ctypes.get_errno()))
    elif "new" not in sys.argv[1:number]:
        print("made", flush=True)
        sys.stdin.readline()
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    uid = getattr(request, "param", os.getuid())
    python = "/usr/bin/python3" if uid else sys.executable
    options = {} if uid == os.getuid() else {"user": uid, "group": uid, "extra_groups": []}
    with ready([python, "-c", CRASHING], cwd="/", **options) as started:
        yield started


def core_head(pid: int) -> bytes:
    """The beginning of a core of that process, as the kernel would write it: the first thread got a SIGSEGV."""
    with contextlib.closing(ProcTarget(pid)) as target:
        registers = {thread.tid: dict(thread.registers()) for thread in target.memory.threads()}
        vector = {f"n{key}": value for key, value in target.memory.auxv().items()}
    notes = prstatus(pid, signal.SIGSEGV, **registers.pop(pid)) + siginfo(signal.SIGSEGV, 1, 0x10)
    notes += prpsinfo(pid) + auxv(**vector)
    return bytes(Core(notes=notes + b"".join(prstatus(tid, 0, **each) for tid, each in registers.items())).build())


def handle(pid: int, folder: Path, *words: str, head: bytes | None = None) -> Outcome:
    command = [DISPATCH, "core-handler", str(pid), *words, "--dir", str(folder)]
    done = subprocess.run(command, input=head if head is not None else core_head(pid), capture_output=True, check=False)
    return Outcome([*map(str, command)], done.returncode, done.stdout.decode(), done.stderr.decode(), 0.0)


UNTIMED = f"""
import signal, sys
signal.setitimer = lambda _, seconds, *again: print(seconds, flush=True)
sys.path.append({str(ROOT)!r})
from gdbext.hosts.cli import launcher
sys.exit(launcher.main(sys.argv[1:]))
"""
"""A handler that tells its timer, instead of setting it: it has the time that the machine takes."""


@contextlib.contextmanager
def handler_of(
    pid: int, folder: Path, seconds: float, start: Sequence[str] = (sys.executable, "-c", UNTIMED)
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A handler that waits for the core's head, and the other end of its pipe: the kernel would wait for as long as
    somebody has that."""
    pipe, kernels_end = os.pipe()
    command = [*start, "core-handler", str(pid), "--dir", str(folder), f"--seconds={seconds}"]
    with subprocess.Popen(command, stdin=pipe, stdout=subprocess.PIPE) as handler:
        os.close(pipe)
        try:
            yield handler, kernels_end
        finally:
            os.close(kernels_end)
            handler.wait(PATIENCE)


@pytest.mark.parametrize("process", [os.getuid(), pytest.param(NOBODY, marks=root_only)], indirect=True)
def test_a_crash_is_kept_for_its_user(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    wait_until(procfs.sleeps_on(process.pid), "its other thread waits for the Event")
    outcome = handle(process.pid, tmp_path / "crashes", "--seconds", "100")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")
    kept = {file.suffix: file for file in (tmp_path / "crashes").glob("crash-*")}
    assert set(kept) == {".txt", ".json", ".rec"}, kept[".txt"].read_text()
    text = kept[".txt"].read_text()
    assert re.search(r"crashed in .*\(crash\): SIGSEGV at 0x10\b", text, re.DOTALL), text
    assert f"-r {kept['.rec']}" in text  # what is suggested names the file that is there
    document = json.loads(kept[".json"].read_text())
    assert (document["verdict"]["kind"], len(document["threads"])) == ("crash", 2)
    owner = procfs.status(process.pid)["Uid"].split()[0]
    assert all((str(file.stat().st_uid), stat.S_IMODE(file.stat().st_mode)) == (owner, 0o600) for file in kept.values())
    assert sum(file.stat().st_size for file in kept.values()) < 5 << 20
    assert "Event" in run([DISPATCH, "-r", kept[".rec"], "all-threads"]).stdout


def test_what_is_refused_and_what_is_limited(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "crashes"
    assert "changed its privileges" in handle(process.pid, folder, "2", head=b"").stderr
    assert "cannot be read" in handle(1 << 22, folder, head=b"").stderr
    assert handle(process.pid, folder, head=b"no core").status == 0
    assert ["no diagnosis could be made" in told.read_text() for told in folder.glob("crash-*.txt")] == [True]
    for number in range(3):
        (folder / f"crash-old-{number}-20260101-00000{number}.txt").write_bytes(bytes(400 << 10))
    assert handle(process.pid, folder, "--disk", "1", head=b"").status == 0
    left = sorted(file.name.split("-")[2] for file in folder.glob("crash-old-*"))
    assert left == ["1", "2"], "as many of the newest as have room in a megabyte"
    assert handle(process.pid, folder, "--keep", "2", head=b"").status == 0
    assert len({file.stem for file in folder.glob("crash-*")}) == 2
    assert not list(folder.glob("crash-old-1*"))


def test_a_crash_is_held_up_no_longer_than_its_limit(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with handler_of(process.pid, tmp_path / "kept", 0.5) as (handler, kernels_end):
        assert handler.wait(PATIENCE) == 0
        with pytest.raises(BrokenPipeError):
            os.write(kernels_end, b"x")
    (text,) = (tmp_path / "kept").glob("crash-*.txt")
    assert "took too long" in text.read_text() or "could be made" in text.read_text()


def limited_child(pid: int) -> dict[str, str]:
    """The status of a child that can gain no rights any more, {} where there is none."""
    found = map(procfs.status, procfs.children(pid))
    return next((status for status in found if status.get("NoNewPrivs") == "1"), {})


def test_a_handler_that_cannot_end_its_look_ends(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """As where its folder's disk does not answer: its timer is set beforehand, and is what ends it."""
    with handler_of(process.pid, tmp_path / "kept", 600) as (handler, _):
        wait_until(lambda: limited_child(handler.pid), "it looks")
        assert 0 < float(some(handler.stdout).readline()) <= 600 + core_handler._GRACE
        (child,) = procfs.children(handler.pid)
        handler.send_signal(signal.SIGALRM)
        assert handler.wait(PATIENCE) == -signal.SIGALRM
    wait_until(lambda: procfs.status(child).get("State", "Z")[0] == "Z", "the look ends with it")


@root_only
@pytest.mark.parametrize("process", [os.getuid(), NOBODY], indirect=True)
def test_what_reads_has_no_right_that_the_process_has_not(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with handler_of(process.pid, tmp_path / "kept", 60, [str(DISPATCH)]) as (handler, _):
        status = wait_until(lambda: limited_child(handler.pid), "a child that has dropped its rights")
        theirs = procfs.status(process.pid)
        for name in ("Uid", "Gid", "Groups", "CapPrm"):
            own = [word for word in status[name].split() if (name, word) != ("Groups", str(core_handler._CACHE_GROUP))]
            assert own == theirs[name].split(), name
        assert (status["CapEff"], status["CapInh"].strip("0")) == (status["CapPrm"], "")
    assert handler.returncode == 0


def places_of(user: int) -> int:
    return core_handler._USERS_PLACES + user * OF_ONE_USER


OWN = places_of(os.getuid())


@pytest.mark.parametrize(
    ("held", "limit", "freed"),
    [
        ([(AT_ONCE, 0)], f"{AT_ONCE} crashes", (1, 0)),
        ([(OF_ONE_USER, OWN)], f"{OF_ONE_USER} crashes of its user", (1, OWN)),
        ([(AT_ONCE - FOR_FIRST, 0), (1, OWN)], f"{AT_ONCE - FOR_FIRST} crashes", (1, OWN)),
    ],
)
def test_only_so_many_crashes_are_looked_at_at_once(
    process: subprocess.Popen[bytes], tmp_path: Path, held: list[tuple[int, int]], limit: str, freed: tuple[int, int]
) -> None:
    """Of all, and of one user, so that nobody keeps the crashes of others from being looked at; the last places are for
    users who have none. ``held``: count and start of bytes in the file of places."""
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    with (folder / ".places").open("wb") as places:
        for span in held:
            fcntl.lockf(places, fcntl.LOCK_EX, *span)
        assert f"{limit} are already being examined" in handle(process.pid, folder, head=b"").stderr
        assert list(folder.glob("crash-*")) == []
        fcntl.lockf(places, fcntl.LOCK_UN, *freed)
        assert "already being examined" not in handle(process.pid, folder, head=b"").stderr
    assert len(list(folder.glob("crash-*.txt"))) == 1


@contextlib.contextmanager
def in_namespaces(*steps: str, ids: str, uid: int) -> Iterator[int]:
    """A process that goes from one user namespace into the next; root lends ids to the first. ``steps``: uids to take
    on, and "new" for a namespace."""
    with ready(["/usr/bin/python3", "-c", ENTERING, *steps], cwd="/") as process:
        if "new" in steps:
            for kind in ("uid", "gid"):
                Path(f"/proc/{process.pid}/{kind}_map").write_text(ids)
            some(process.stdin).write(b"\n")
            some(process.stdin).flush()
            assert some(process.stdout).readline() == b"there\n"
        assert procfs.status(process.pid)["Uid"].split()[0] == str(uid)
        yield process.pid


@root_only
@pytest.mark.parametrize(
    ("steps", "ids", "uid", "user"),
    [
        (["1234"], "", 1234, 1234),
        (["1234", "new"], "0 1234 1", 1234, 1234),
        (["1234", "new", "1"], "0 100000 9", 100001, 1234),
        (["1234", "new", "2", "new"], "0 100000 9", 100002, 1234),
        (["300007"], "", 300007, 77),
        (["300007", "new"], "0 300007 1", 300007, 77),
        (["new", "3"], "0 200000 9", 200003, 200000),
        (["new", "3", "new"], "0 200000 9", 200003, NOT_TOLD_APART),
        (["new", "3", "new"], "0 300000 9", 300003, 77),
        (["400003"], "", 400003, 400000),
    ],
)
def test_a_user_is_who_made_the_outermost_namespace(
    tmp_path: Path, steps: list[str], ids: str, uid: int, user: int
) -> None:
    lent = tmp_path / "subuid"
    lent.write_text("damaged:x:7\n77:300000:65536\nno-such-user:400000:65536\n")
    with in_namespaces(*steps, ids=ids, uid=uid) as pid:
        before = len([*Path("/proc/self/fd").iterdir()])
        assert user_of(pid, uid, str(lent)) == user
        assert len([*Path("/proc/self/fd").iterdir()]) == before


@root_only
def test_the_uids_of_a_user_are_one_user(tmp_path: Path) -> None:
    """They have one user's places together, drive out none but their own crashes, and what they leave behind is that
    user's."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o755)
    victims = folder / "crash-victim-7-20260101-000000.txt"
    victims.touch()
    os.chown(victims, 4321, 4321)
    for number in range(1, 6):
        with in_namespaces("1234", "new", str(number), ids="0 100000 9", uid=100000 + number) as pid:
            assert handle(pid, folder, "--keep", "3", head=b"").status == 0
            assert (folder / f"cache/1234-{100000 + number}").exists()
    crashes = sorted(file.name.split("-")[1:3] for file in folder.glob("crash-*.txt"))
    assert [(name, pid.partition(".")[2]) for name, pid in crashes] == [("python3", "1234")] * 2 + [("victim", "")]
    assert len(list((folder / "cache").iterdir())) == 3
    with (folder / ".places").open("wb") as places:
        fcntl.lockf(places, fcntl.LOCK_EX, OF_ONE_USER, places_of(1234))
        with in_namespaces("1234", "new", "8", ids="0 100000 9", uid=100008) as pid:
            assert "crashes of its user" in handle(pid, folder, head=b"").stderr


@root_only
@pytest.mark.parametrize("process", [4321], indirect=True)
def test_a_cache_is_filled_by_nobody_else_and_deleted(process: subprocess.Popen[bytes]) -> None:
    folder = Path(tempfile.mkdtemp())  # every user can reach it, unlike pytest's own
    folder.chmod(0o755)
    assert handle(process.pid, folder, "--seconds", "100").status == 0
    cache = folder / "cache/4321-4321"
    assert sum(file.stat().st_size for file in (cache / "gdbext").iterdir()) > 1 << 14
    reached = subprocess.run(["/usr/bin/ls", cache], user=4321, group=4321, extra_groups=[], check=False, cwd="/")
    assert reached.returncode != 0
    (cache / "gdbext/large").write_bytes(bytes(3 << 20))
    (folder / ".last-9").touch()
    os.utime(folder / ".last-9", (1, 1))
    core_handler.make_room(folder, "", 100, 4 << 20)
    assert cache.exists()
    assert not (folder / ".last-9").exists()
    core_handler.make_room(folder, "", 100, 2 << 20)
    assert not cache.exists()
    assert len(list(folder.glob("crash-*"))) == 3, "a cache goes first: it can be made again"
    shutil.rmtree(folder)


@root_only
def test_a_user_drives_out_nobodys_crashes(tmp_path: Path) -> None:
    """The files are their user's, who makes one large, or young, and crashes again and again."""

    def kept(name: str, time: str, uid: int, size: int = 4096) -> str:
        file = tmp_path / f"crash-{name}-7-20260101-{time}.rec"
        file.write_bytes(b"x" * size)
        os.chown(file, uid, uid)
        return file.name

    others = {kept(f"other{number}", f"0000{number:02}", 1000 + number) for number in range(5)}
    hostile = [kept(f"hostile{number}", f"0100{number:02}", NOBODY) for number in range(5)]
    os.truncate(tmp_path / hostile[0], 1 << 40)
    os.utime(tmp_path / hostile[0], (4e9, 4e9))
    newest = kept("new", "020000", 1000)

    def left(keep: int, size: int) -> set[str]:
        core_handler.make_room(tmp_path, newest.removesuffix(".rec"), keep, size)
        return {file.name for file in tmp_path.iterdir()}

    assert left(100, 512 << 20) == {*others, *hostile, newest}  # a hole takes no room
    assert left(9, 512 << 20) == {*others, *hostile[2:], newest}
    large = kept("large", "010009", NOBODY, 4 << 20)
    assert left(100, 5 << 20) == {*others, *hostile[2:], large, newest}
    assert left(100, 3 << 20) == {*others, newest}
    assert left(1, 1) == {newest}


def test_install_sets_core_pattern_and_uninstall_restores_it(tmp_path: Path) -> None:
    kernel, before = tmp_path / "kernel", {"core_pattern": "|/usr/share/apport/apport %p\n", "core_pipe_limit": "10\n"}
    kernel.mkdir()
    for name, value in before.items():
        (kernel / name).write_text(value)
    environment = {"HOME": str(tmp_path), "GDBEXT_KERNEL": str(kernel), "GDBEXT_CRASHES": str(tmp_path / "kept")}
    environment |= {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("DATA", "CACHE", "CONFIG")}
    script, root = tmp_path / "functions.sh", tmp_path / "root"
    (root / "gdbext").mkdir(parents=True)
    (root / "gdbext/one.py").write_text("")
    script.write_text((ROOT / "install.sh").read_text().partition("\ngdbinit=no\n")[0] + f"\nROOT={root}\ndry=no\n$1\n")
    for _ in range(2):
        assert run(["sh", script, "set_core_handler"], env=environment).status == 0
        assert (kernel / "core_pattern").read_text() == f"|{root}/scripts/dispatch core-handler %P %d\n"
        assert list((root / "gdbext/__pycache__").glob("one.*.pyc")), "ten crashes at once do not compile it ten times"
    assert run(["sh", script, "restore_core_pattern"], env=environment).status == 0
    assert {name: (kernel / name).read_text() for name in before} == before
