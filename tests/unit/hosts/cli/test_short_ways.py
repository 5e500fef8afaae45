"""What may be typed instead of the whole command line, and how messages call the program."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext import errors
from gdbext.cache import find_program
from gdbext.engine import terminal
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.terminal import CommandLine, quoted, typed_name
from gdbext.errors import TargetError, UsageError
from gdbext.hosts.cli import launcher
from gdbext.hosts.cli.debugger_runner import runnable
from gdbext.hosts.cli.options import Options, parse, spelled_out, without_debugger
from gdbext.tools import table
from support.recorded import recordings
from support.source import contract_schema, suggested_commands


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("7392", "-p 7392"),
        ("7392 bt --all", "-p 7392 bt --all"),
        ("ranks 7392", "ranks -p 7392"),
        ("7392 ranks", "ranks -p 7392"),
        ("-p 7392 watch --save DIR", "watch -p 7392 --save DIR"),
        ("watch --help", "watch --help"),
        ("attach 7392", "-p 7392"),
        ("attach 7392 bt", "-p 7392 bt"),
        ("sh 7392", "--executable sh -p 7392"),
        ("/bin/sh 7392 bt --all", "--executable /bin/sh -p 7392 bt --all"),
        ("sh core.7", "--executable sh -c core.7"),
        ("core.7 bt", "-c core.7 bt"),
        ("hung.rec", "-r hung.rec"),
        ("sh -c core.7", "--executable sh -c core.7"),
        ("-q -c core.7 sh", "--executable sh -q -c core.7"),
        ("sh --core=core.7 bt", "--executable sh --core=core.7 bt"),
        ("sh --pid=7392", "--executable sh --pid=7392"),
        ("-q core.7", "-q -c core.7"),
        ("/bin/sh train.sh", "-- /bin/sh train.sh"),
        ("help bt", "bt --help"),
        ("-V", "--version"),
        ("bt -p 7", "bt -p 7"),
        ("dispatch-bt -p 7", "dispatch-bt -p 7"),
        ("-p 7", "-p 7"),
        ("no-such-program-anywhere", "no-such-program-anywhere"),
        ("/", "/"),
    ],
)
def test_short_ways(typed: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert spelled_out(typed.split()) == meant.split()


@pytest.mark.parametrize(
    "typed",
    [
        "sh --json",
        "sh train.sh 7392",
        "sh train.sh core.7",
        "sh train.sh --timeout 5",
        "-q sh train.sh",
        "sh bt hung.rec",
        "sh bt",
        "sh dispatch-bt",
        "sh ranks",
        "sh train.sh attach",
        "sh --help",
        "sh --samples",
        "sh -p7392",
        "sh -ccore.7",
        "sh --resume=core.7",
        "--args sh train.sh",
    ],
)
def test_nothing_is_started_by_words_that_may_mean_something_else(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(UsageError, match="not clear whether to start sh"):
        spelled_out(typed.split())


def test_what_may_be_a_core_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty, cut, of the other byte order, a pipe, not there: none of these words is an argument of a program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name, content in (
        ("empty", b""),
        ("cut", b"\x7fELF\x02\x01"),
        ("big", b"\x7fELF\x02\x02" + bytes(11) + b"\4"),
        ("packed", b"\x28\xb5\x2f\xfd"),
        ("half", b"\x28\xb5"),
    ):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "hung").write_bytes(b"\x89gdbrec\n")
    (tmp_path / "hal").write_bytes(b"\x89gdb")
    os.mkfifo(tmp_path / "pipe")
    cores = ("empty", "cut", "big", "packed", "half", "pipe", "/dev/null", "core", "core7", "core_7", "a.core.xz")
    for name in (*cores, "systemd", "coredumpctl:7"):
        assert spelled_out(["sh", name]) == ["--executable", "sh", "-c", name]
        assert spelled_out([name, "sh", "bt"]) == ["--executable", "sh", "-c", name, "bt"]
    for name in ("hung", "hal"):
        assert spelled_out(["sh", name]) == ["--executable", "sh", "-r", name]


def test_an_executable_need_not_be_one_that_could_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gdb takes a name of this folder without "./"; coredumpctl names a program that was deleted since."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.out").write_bytes(b"\x7fELF\x02\x01" + bytes(10) + b"\x03\0")
    assert spelled_out(["a.out", "core.7"]) == ["--executable", "a.out", "-c", "core.7"]
    assert spelled_out(["/gone/a.out", "-c", "core.7"]) == ["--executable", "/gone/a.out", "-c", "core.7"]
    assert spelled_out(["-core", "core.7", "a.out"]) == ["--executable", "a.out", "--core", "core.7"]
    assert spelled_out(["btt", "core.7"]) == ["btt", "core.7"]


@pytest.mark.parametrize("typed", ["train.py --epochs 10", "python3 train.py --epochs 10", "-q train.py"])
def test_a_refusal_says_how_to_start_it(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert launcher.main(typed.split(), "gdbext") == 2
    assert re.search(r"try: .*gdbext (-q )?-- python3? train.py", capfd.readouterr().err)


def test_a_word_without_a_meaning_gets_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    for word in ("dispach-bt", "python3", "x"):
        assert launcher.main([word], "gdbext") == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert re.fullmatch(rf"gdbext: there is no command '{word}'; did you mean \S+, \S+ or \S+\?", line)


def test_a_script_is_started_by_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    python = "python" if find_program("python") else "python3"
    assert spelled_out(["train.py", "fast"]) == ["--", python, "train.py", "fast"]
    assert spelled_out(["python3", "train.py"]) == ["--", "python3", "train.py"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("-- python train.py", "-- python train.py"),
        ("-p 7", "-p 7"),
        ("watch --debugger none -p 7", "watch -p 7"),
        ("--debugger none ranks -p 7", "ranks -p 7"),
    ],
)
def test_a_debugger_that_a_program_does_not_need_is_left_out(typed: str, meant: str) -> None:
    assert without_debugger(typed.split()) == meant.split()


@pytest.mark.parametrize("typed", ["--debugger none 7392 bt --all", "--json 7392 bt --all", "-q bt -p 7392 --all"])
def test_a_number_behind_options_is_a_process(typed: str) -> None:
    options = Options()
    parse(typed.split(), options)
    assert (options.pid, options.command) == (7392, "dispatch-bt")
    assert "--all" in options.argv


def test_a_number_is_no_second_source() -> None:
    with pytest.raises(UsageError, match="no command '5'"):
        parse(["-p", "7392", "5"], Options())


def test_an_error_suggests_whole_commands() -> None:
    text = "dispatch-op: name one\n  why: dispatch-op needs one\n  try: dispatch-op mm   or: all-threads"
    whole = "gdbext -p 7 dispatch-op mm   or: gdbext -p 7 all-threads"
    assert launcher._as_called(text, "gdbext", CommandLine("gdbext", "-p 7")) == (
        f"dispatch-op: name one\n  why: dispatch-op needs one\n  try: {whole}"
    )


def test_an_error_names_our_programs_as_they_are_called() -> None:
    text = "say what it is about\n  try: dispatch report --help   or   scripts/dispatch measure DIR   or   dispatch-bt"
    assert launcher._as_called(text, "gdbext").splitlines()[1] == (
        "  try: gdbext report --help   or   gdbext measure DIR   or   dispatch-bt"
    )


def test_every_command_has_its_short_name() -> None:
    for row in table.commands():
        short = row.name.removeprefix("dispatch-").removeprefix("all-")
        assert table.find(short).name == row.name
        assert table.is_command(short)
    assert not table.is_command("python3")


def test_what_was_typed_is_blamed() -> None:
    for words in (["-x"], ["-p", "7", "--bogus", "bt"], ["--bogus"]):
        with pytest.raises(UsageError) as caught:
            parse(words, Options())
        typed = next(word for word in words if word in ("-x", "--bogus"))
        assert typed in caught.value.what
        assert "dispatch-diagnose" not in caught.value.what


@pytest.mark.parametrize(("when", "colored"), [("always", True), ("never", False)])
def test_colors_as_asked(when: str, colored: bool, capfd: pytest.CaptureFixture[str]) -> None:
    launcher.main(["-r", str(recordings.FOLDER / "python-lock-abba.rec"), "--color", when])
    assert ("\x1b[" in capfd.readouterr().out) == colored


@pytest.mark.parametrize(("name", "status"), [("python-lock-abba", 3), ("kernel-crash", 4), ("idle", 0)])
def test_the_exit_status_tells_the_verdict(name: str, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    recording = str(recordings.FOLDER / f"{name}.rec")
    assert launcher.main(["-r", recording, "--exit-code"]) == status
    assert launcher.main(["-r", recording]) == 0
    capfd.readouterr()


def test_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert typed_name("/somewhere/else/gdbext") == "/somewhere/else/gdbext"
    assert typed_name("site-packages/gdbext/__main__.py") == "python3 -m gdbext"
    assert typed_name("my tools/gdbext.pyz") == f"{Path(sys.executable).name} 'my tools/gdbext.pyz'"
    (tmp_path / "dispatch").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(terminal.TYPED, f"{tmp_path}/dispatch")
    assert typed_name("start.py") == "dispatch"
    assert terminal.TYPED not in os.environ
    assert quoted("a b") == "'a b'"


def test_a_debugger_takes_commands_alone() -> None:
    assert CommandLine().command("dispatch-bt") == "dispatch-bt"
    assert CommandLine("gdbext", "-p 7").command("dispatch-bt") == "gdbext -p 7 dispatch-bt"
    assert CommandLine("gdbext").outside("ranks -p 7") == "gdbext ranks -p 7"


def test_a_program_that_was_started_is_started_again() -> None:
    options = Options()
    parse(["--", "python", "my train.py"], options)
    assert not options.called.may_run  # there is nothing left to keep, or to ask of it
    again = options.called.command("dispatch-bt --native --thread 77")
    assert again == "scripts/dispatch dispatch-bt --native -- python 'my train.py'"
    assert (
        options.called.command("all-threads --tasks") == "scripts/dispatch all-threads --tasks -- python 'my train.py'"
    )


def test_messages_call_the_program_as_it_was_called(capfd: pytest.CaptureFixture[str]) -> None:
    launcher.main(["--nonsense"], "/opt/x/gdbext")
    assert capfd.readouterr().err.startswith("gdbext: ")
    launcher.main([], "gdbext")
    assert capfd.readouterr().out.startswith("usage: gdbext ")


def suggestions() -> Iterator[tuple[str, str, list[str]]]:
    """(recording, line, words of the command) of all advice, and of the help in errors, of the recorded reports."""
    for name in recordings.names():
        document = json.loads((recordings.FOLDER / f"{name}.json").read_text())["document"]
        lines = [
            *(document["verdict"] or {}).get("advice", ()),
            *(error["help"] for error in document.get("errors", ())),
        ]
        for line in lines:
            for words in suggested_commands.suggested(line):
                yield name, line, words


def test_what_reports_suggest_is_taken() -> None:
    found = list(suggestions())
    assert len(found) > 80
    assert [line for _, line, words in found if suggested_commands.refusal(words)] == []


LIVE = frozenset(("-p", "--samples", "--children", "scripts/dispatch"))
"""What needs a process, or is about others."""
DEEP = "boxed-recursion-fallback-0"
"""25,000 frames, each report of which takes six seconds: its suggestions are of the kinds that others have."""


def test_what_is_suggested_can_be_pasted(capfd: pytest.CaptureFixture[str]) -> None:
    """One of each kind: the same command and options, with other numbers and names."""
    shapes: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for name, _, words in suggestions():
        if name != DEEP and not LIVE & set(words):
            shapes.setdefault((words[0], *(word for word in words if word.startswith("-"))), (name, words))
    assert len(shapes) > 5
    for name, words in shapes.values():
        recording = str(recordings.FOLDER / f"{name}.rec")
        assert launcher.main(["-r", recording, "--json"], "try-this") == 0
        document = json.loads(capfd.readouterr().out)
        pasted = [shlex.split(line.rpartition(": ")[2]) for line in document["verdict"]["advice"]]
        meant = ["try-this", "-r", recording, *words]
        assert meant in pasted, (meant, pasted)
        assert launcher.main(meant[1:], meant[0]) == 0, (meant, capfd.readouterr())
        capfd.readouterr()


def test_what_an_error_suggests_has_the_program_as_it_was_called() -> None:
    text = "no such process\n  try: find it with: dispatch ps, or scripts/dispatch -p PID; dispatch-info says why"
    assert launcher._as_called(text, "python3 gdbext.pyz") == (
        "no such process\n  try: find it with: python3 gdbext.pyz ps, or python3 gdbext.pyz -p PID; "
        "dispatch-info says why"
    )


def test_quiet_leaves_standard_error_to_what_went_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    recording = str(recordings.FOLDER / "idle.rec")
    assert launcher.main(["-q", "-r", recording]) == 0
    assert capfd.readouterr().err == ""
    assert launcher.main(["-q", "-r", "/nowhere.rec"]) == 1
    assert "/nowhere.rec" in capfd.readouterr().err


def test_a_script_is_started_by_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, plain = tmp_path / "script", tmp_path / "plain"
    script.write_text("#!/bin/sh -e\nexit 3\n")
    plain.write_text("exit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert runnable(["script", "x"]) == ["/bin/sh", "-e", str(script), "x"]
    assert runnable(["sh"]) == ["sh"]
    assert runnable([]) == []
    with pytest.raises(TargetError, match="there is no program nowhere"):
        runnable(["nowhere"])
    with pytest.raises(TargetError, match="is not a program"):
        runnable([str(plain)])


@pytest.mark.parametrize(
    ("uid", "scope", "capable", "helps", "never"),
    [
        (1000, 0, False, "sudo scripts/dispatch -p 7", "ptrace_scope"),
        (0, 0, False, "--cap-add=SYS_PTRACE", "sudo"),
        (0, 3, True, "only a reboot", "sudo"),
        (0, 0, True, "outside of the container", "sudo"),
    ],
)
def test_the_remedy_that_fits_a_refusal(
    monkeypatch: pytest.MonkeyPatch, uid: int, scope: int, capable: bool, helps: str, never: str
) -> None:
    monkeypatch.setattr(proc_checks.os, "geteuid", lambda: uid)
    monkeypatch.setattr(proc_checks, "_ptrace_scope", lambda: scope)
    monkeypatch.setattr(proc_checks, "has_ptrace_capability", lambda: capable)
    monkeypatch.setattr(proc_checks, "status_fields", lambda _: {"Uid": "0 0 0 0"})
    found = proc_checks.refusal(7)
    assert helps in found.help
    assert never not in found.help
    assert "gcore" not in found.help


def test_yama_among_the_processes_of_one_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a file like the kernel's own (Documentation/admin-guide/LSM/Yama.rst): many kernels have none."""
    file = tmp_path / "ptrace_scope"
    file.write_text("1\n")
    monkeypatch.setattr(proc_checks.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(proc_checks, "PTRACE_SCOPE", str(file))
    monkeypatch.setattr(proc_checks, "status_fields", lambda _: {"Uid": "1000 1000", "CapEff": "0"})
    assert proc_checks.refusal(7).help == (
        "sudo scripts/dispatch -p 7, or let all your processes be looked at: sudo sysctl kernel.yama.ptrace_scope=0"
    )


def test_keysets_need_no_process(capfd: pytest.CaptureFixture[str]) -> None:
    """The number of a key depends on the release: a backend was added between these two."""
    for words, bits, version in (("Meta --torch 2.13", "0x18000", "2.13.0"), ("CPU --torch 2.1.0", "0x8001", "2.1.0")):
        assert launcher.main(["keyset", *words.split(), "--json"]) == 0
        document = json.loads(capfd.readouterr().out)
        contract_schema.check(document)
        assert (document["keyset"]["bits"], document["target"]) == (bits, None)
        assert document["keyset"]["torch"].startswith(version)
    assert launcher.main(["keyset", "0x18000"]) == 0
    assert "as in PyTorch" in capfd.readouterr().out
    for words, said in (("CPU --torch 9.9", "--torch one of 1.13"), ("$rax", "is in a process")):
        assert launcher.main(["keyset", *words.split()]) == 2
        assert said in capfd.readouterr().err
    assert launcher.main(["bt"]) == 2


def test_ranks_without_any_report_say_it_once(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert launcher.main(["ranks", "--reports", str(tmp_path / "nowhere")]) == 1
    why = "nowhere: its report cannot be read: No such file or directory"
    assert capfd.readouterr().out.splitlines() == [f"There is no report of any rank: {why}."]
    launcher.main(["ranks", "--reports", str(tmp_path / "nowhere"), "--json"])
    assert json.loads(capfd.readouterr().out)["verdict"]["kind"] == "no-report"


@pytest.mark.parametrize(("uid", "said"), [(0, "cat x"), (1000, "as root: cat x")])
def test_root_is_not_told_to_be_root(uid: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert errors.as_root("cat x") == said
    assert errors.or_root("be that user").endswith("or as root") == (uid != 0)
    sudo = "sudo" in proc_checks.refusal(1).help  # of a process of root's
    assert sudo == (uid != 0)
