"""What may be typed instead of the whole command line, and how messages call the program."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
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
from support.source import contract_schema


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is empty at first, and the system's programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("7392", "-p 7392"),
        ("7392 ranks", "ranks -p 7392"),
        ("-p 7392 watch --save DIR", "watch -p 7392 --save DIR"),
        ("watch --help", "watch --help"),
        ("attach 7392", "-p 7392"),
        ("sh 7392", "--executable sh -p 7392"),
        ("sh core.7", "--executable sh -c core.7"),
        ("hung.rec", "-r hung.rec"),
        ("sh -c core.7", "--executable sh -c core.7"),
        ("-q -c core.7 sh", "--executable sh -q -c core.7"),
        ("sh --pid=7392", "--executable sh --pid=7392"),
        ("-q core.7", "-q -c core.7"),
        ("/bin/sh train.sh", "-- /bin/sh train.sh"),
        ("help bt", "bt --help"),
        ("-V", "--version"),
        ("bt -p 7", "bt -p 7"),
        ("no-such-program-anywhere", "no-such-program-anywhere"),
        ("/", "/"),
    ],
)
def test_short_ways(typed: str, meant: str) -> None:
    assert spelled_out(typed.split()) == meant.split()


def test_nothing_is_started_by_words_that_may_mean_something_else() -> None:
    behind = ("--json", "train.sh 7392", "bt hung.rec", "bt", "ranks", "train.sh attach", "--help", "-p7392")
    for typed in ("-q sh train.sh", "--args sh train.sh", "sh --resume=core.7", *(f"sh {words}" for words in behind)):
        with pytest.raises(UsageError, match="unclear whether to start sh"):
            spelled_out(typed.split())


def test_what_may_be_a_core_is_examined(tmp_path: Path) -> None:
    """Empty, cut, of the other byte order, a pipe, not there: none of these words is an argument of a program."""
    files = {"empty": b"", "cut": b"\x7fELF\x02\x01", "big": b"\x7fELF\x02\x02" + bytes(11) + b"\4"}
    files |= {"packed": b"\x28\xb5\x2f\xfd", "half": b"\x28\xb5", "hung": b"\x89gdbrec\n", "hal": b"\x89gdb"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    cores = ("empty", "cut", "big", "packed", "half", "pipe", "/dev/null", "core", "core7", "core_7", "a.core.xz")
    for name in (*cores, "systemd", "coredumpctl:7"):
        assert spelled_out(["sh", name]) == ["--executable", "sh", "-c", name]
        assert spelled_out([name, "sh", "bt"]) == ["--executable", "sh", "-c", name, "bt"]
    for name in ("hung", "hal"):
        assert spelled_out(["sh", name]) == ["--executable", "sh", "-r", name]


def test_an_executable_need_not_be_one_that_could_be_started(tmp_path: Path) -> None:
    """gdb takes a name of this folder without "./"; coredumpctl names a program that was deleted since."""
    (tmp_path / "a.out").write_bytes(b"\x7fELF\x02\x01" + bytes(10) + b"\x03\0")
    assert spelled_out(["a.out", "core.7"]) == ["--executable", "a.out", "-c", "core.7"]
    assert spelled_out(["/gone/a.out", "-c", "core.7"]) == ["--executable", "/gone/a.out", "-c", "core.7"]
    assert spelled_out(["-core", "core.7", "a.out"]) == ["--executable", "a.out", "--core", "core.7"]
    assert spelled_out(["btt", "core.7"]) == ["btt", "core.7"]


def test_a_refusal_says_how_to_start_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").touch()
    for typed in ("train.py --epochs 10", "python3 train.py --epochs 10", "-q train.py"):
        assert launcher.main(typed.split(), "gdbext") == 2
        assert re.search(r"try: .*gdbext (-q )?-- python3? train.py", capfd.readouterr().err)


def test_words_without_meaning_get_one_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    for word in ("dispach-bt", "python3", "x"):
        assert launcher.main([word], "gdbext") == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert re.fullmatch(rf"gdbext: there is no command '{word}'; did you mean \S+, \S+ or \S+\?", line)


@pytest.mark.parametrize("command", ["dispatch-trace", "dispatch-values", "dispatch-top", "bt"])
def test_help_needs_no_process(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["-p", str(os.getpid()), command, "--help"]) == 0
    assert capfd.readouterr().out.startswith("usage: ")


def test_a_script_is_started_by_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    python = "python" if find_program("python") else "python3"
    assert spelled_out(["train.py", "fast"]) == ["--", python, "train.py", "fast"]
    assert spelled_out(["python3", "train.py"]) == ["--", "python3", "train.py"]


def test_a_debugger_that_a_program_does_not_need_is_left_out() -> None:
    for typed in ("-- python train.py", "-p 7"):
        assert without_debugger(typed.split()) == typed.split()
    for typed in ("watch --debugger none -p 7", "--debugger none watch -p 7"):
        assert without_debugger(typed.split()) == ["watch", "-p", "7"]


def test_a_number_behind_options_is_a_process() -> None:
    for typed in ("--debugger none 7392 bt --all", "--pid=7392 bt --all --timeout=60", "bt -p 7392 --all"):
        parse(typed.split(), options := Options())
        assert (options.pid, options.command) == (7392, "dispatch-bt")
        assert "--all" in options.argv


def test_an_error_names_our_programs_as_they_are_called() -> None:
    def called(advice: str, *more: CommandLine) -> str:
        error = "dispatch-op: name one\n  try: "
        said = launcher._as_called(f"{error}{advice}", "gdbext", *more)
        assert said.startswith(error)
        return said.removeprefix(error)

    found = called("dispatch-op mm   or: all-threads", CommandLine("gdbext", "-p 7"))
    assert found == "gdbext -p 7 dispatch-op mm   or: gdbext -p 7 all-threads"
    found = called("dispatch ps, or scripts/dispatch measure DIR; dispatch-bt")
    assert found == "gdbext ps, or gdbext measure DIR; dispatch-bt"


def test_every_command_has_its_short_name() -> None:
    for row in table.commands():
        short = row.name.removeprefix("dispatch-").removeprefix("all-")
        assert table.find(short).name == row.name
        assert table.is_command(short)
    assert not table.is_command("python3")


def test_what_was_typed_is_blamed() -> None:
    for typed, words in (("-x", ["-x"]), ("--bogus", ["-p", "7", "--bogus", "bt"]), ("'5'", ["-p", "7392", "5"])):
        with pytest.raises(UsageError) as caught:
            parse(words, Options())
        assert typed in caught.value.what
        assert "dispatch-diagnose" not in caught.value.what


def test_the_exit_status_and_colors_as_asked(capfd: pytest.CaptureFixture[str]) -> None:
    for typed, status, colored in (
        ("python-lock-abba.rec --exit-code --color always", 3, True),
        ("kernel-crash.rec --exit-code", 4, False),
        ("idle.rec --exit-code", 0, False),
        ("python-lock-abba.rec --color never", 0, False),
    ):
        assert launcher.main(["-r", *f"{recordings.FOLDER}/{typed}".split()]) == status
        assert ("\x1b[" in capfd.readouterr().out) == colored


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


def test_a_command_is_suggested_as_it_can_be_typed() -> None:
    assert CommandLine().command("dispatch-bt") == "dispatch-bt"
    assert CommandLine("gdbext", "-p 7").command("dispatch-bt") == "gdbext -p 7 dispatch-bt"
    assert CommandLine("gdbext").outside("ranks -p 7") == "gdbext ranks -p 7"
    parse(["--", "python", "my train.py"], options := Options())
    assert not options.called.may_run  # there is nothing left to keep, or to ask of it
    again = options.called.command("dispatch-bt --native --thread 77")
    assert again == "scripts/dispatch dispatch-bt --native -- python 'my train.py'"


@pytest.mark.parametrize("name", ["meta-mm", "gil-mutex", "kernel-crash"])
def test_what_is_suggested_can_be_pasted(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    recording = str(recordings.FOLDER / f"{name}.rec")
    assert launcher.main(["-r", recording, "--json"], "try-this") == 0
    advice = json.loads(capfd.readouterr().out)["verdict"]["advice"]
    pasted = [shlex.split(line.rpartition(": ")[2]) for line in advice if f"try-this -r {recording}" in line]
    assert pasted, advice
    for program, *words in pasted:
        assert launcher.main(words, program) == 0, (words, capfd.readouterr())


def test_standard_error_is_for_what_went_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    """The program is called there as it was called; -q leaves out the rest."""
    launcher.main(["--nonsense"], "/opt/x/gdbext")
    assert capfd.readouterr().err.startswith("gdbext: ")
    launcher.main([], "gdbext")
    assert capfd.readouterr().out.startswith("usage: gdbext ")
    for recording, status in ((f"{recordings.FOLDER}/idle.rec", 0), ("/nowhere.rec", 1)):
        assert launcher.main(["-q", "-r", recording]) == status
        said = capfd.readouterr().err
        assert recording in said if status else said == ""


def test_a_script_is_started_by_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, plain = tmp_path / "script", tmp_path / "plain"
    script.write_text("#!/bin/sh -e\nexit 3\n")
    plain.write_text("exit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert runnable(["script", "x"]) == ["/bin/sh", "-e", str(script), "x"]
    assert [runnable(words) for words in (["sh"], [])] == [["sh"], []]
    for word, said in (("nowhere", "there is no program nowhere"), (str(plain), "is not executable")):
        with pytest.raises(TargetError, match=said):
            runnable([word])


def test_the_remedy_that_fits_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a file like the kernel's own (Documentation/admin-guide/LSM/Yama.rst): many kernels have none."""
    monkeypatch.setattr(proc_checks, "PTRACE_SCOPE", str(tmp_path / "ptrace_scope"))
    for uid, owner, scope, capable, helps, never in (
        (1000, 0, 0, False, "sudo scripts/dispatch -p 7", "ptrace_scope"),
        (1000, 1000, 1, False, "sudo sysctl kernel.yama.ptrace_scope=0", "--cap-add"),
        (0, 0, 0, False, "--cap-add=SYS_PTRACE", "sudo"),
        (0, 0, 3, True, "only a reboot", "sudo"),
        (0, 0, 0, True, "outside of the container", "sudo"),
    ):
        (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
        monkeypatch.setattr(proc_checks.os, "geteuid", lambda uid=uid: uid)
        monkeypatch.setattr(proc_checks, "has_ptrace_capability", lambda capable=capable: capable)
        monkeypatch.setattr(proc_checks, "status_fields", lambda _, owner=owner: {"Uid": " ".join(4 * [f"{owner}"])})
        found = proc_checks.refusal(7)
        assert helps in found.help
        assert never not in found.help
        assert "gcore" not in found.help


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
    for words, said in (("CPU --torch 9.9", "--torch one of 1.13"), ("$rax", "needs a process")):
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
    assert ("sudo" in proc_checks.refusal(1).help) == (uid != 0), "it is a process of root's"
