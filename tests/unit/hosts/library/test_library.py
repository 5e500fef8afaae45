"""The library over recordings: it says what the commands say, under the names of the JSON document."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gdbext
from gdbext.engine.targets import budget
from gdbext.hosts.library import process as library_process
from gdbext.hosts.library.threads import Threads
from gdbext.render import plain_json
from gdbext.tools.operators.lookup import LookupSection
from tests.unit.render.test_pages import Tags

ROOT = Path(__file__).resolve().parents[4]
RECORDINGS = ROOT / "tests" / "recordings"
PAGE = (ROOT / "docs" / "library.md").read_text()


def opened(name: str) -> gdbext.Process:
    return gdbext.open(recording=str(RECORDINGS / f"{name}.rec"))


def as_json(value: object) -> Any:
    return plain_json.plain(value)


THREAD = ("tid", "name", "python_name", "signal", "frame_count", "dispatch_doubt", "notes", "state")
STEP = ("level", "event", "op", "overload", "keyset", "key", "table_index", "stage", "confidence")
VERDICT = ("kind", "summary", "threads", "op", "key", "stage", "advice")
KERNEL = ("function", "valid", "boxed", "unboxed", "sym_unboxed", "fallthrough", "debug")


def check(value: object, document: dict[str, Any], *fields: str) -> None:
    assert {field: as_json(getattr(value, field)) for field in fields} == {field: document[field] for field in fields}


@pytest.mark.parametrize("name", ["meta-mm", "python-lock-abba"])
def test_threads_have_the_fields_of_the_document(name: str) -> None:
    with opened(name) as process:
        document = process.run("all-threads").document["threads"]
        assert [thread.tid for thread in process.threads] == [each["tid"] for each in document]
        for thread, each in zip(process.threads, document):
            check(thread, each, *THREAD)
            assert len(thread.dispatch) == len(each["dispatch"])
            for step, theirs in zip(thread.dispatch, each["dispatch"]):
                check(step, theirs, *STEP)
            for frame, line in zip(thread.python_frames, each["python_frames"]):
                check(frame, line, "function", "file", "line")
            assert (thread.wait is None) == (each["wait"] is None)
            if thread.wait is not None:
                found = (thread.wait.kind.value, f"{thread.wait.address:#x}", thread.wait.certainty.value)
                assert found == tuple(each["wait"][field] for field in ("kind", "address", "certainty"))
        verdict, theirs = process.diagnose(), process.diagnose().document
        check(verdict.verdict, theirs["verdict"], *VERDICT)
        assert [each.kind.value for each in verdict.findings] == [each["kind"] for each in theirs["findings"]]


@pytest.mark.parametrize("name", sorted({*gdbext.__all__} - {"Owner"}))  # that is for annotations
def test_what_the_package_exports_is_there(name: str) -> None:
    assert getattr(gdbext, name) is not None


def test_threads_are_a_sequence_and_wrong_commands_are_refused() -> None:
    with opened("python-lock-abba") as process:
        assert len(process.threads) == 3
        assert isinstance(process.threads[1:], Threads)
        assert process.threads[1:][0].tid == process.threads[1].tid
        with pytest.raises(KeyError):
            process.threads.by_tid(1)
        for words, said in ((["dispatch-nothing"], "there is no command"), (["dispatch-bt", "--nothing"], "--nothing")):
            with pytest.raises(gdbext.GdbextError, match=said):
                process.run(*words)


def test_wrong_usage_is_refused_before_anything_is_opened() -> None:
    core, recording = {"core": "core"}, {"recording": "a.rec"}
    wrong: list[dict[str, Any]] = [{}, {"pid": 1, **core}, {**core, "hold": True}, {**recording, "stop": False}]
    wrong += [{"pid": 1, "stop": False, "hold": True}, {"pid": 1, "sysroot": "/"}]
    wrong += [{**recording, "timeout": 0}, {**recording, "memory_limit": -1.0}]
    for each in wrong:
        with pytest.raises(gdbext.GdbextError):
            gdbext.open(**each)


def test_an_operator_has_the_fields_of_the_document() -> None:
    with opened("meta-mm") as process:
        theirs = process.run("dispatch-op", "aten::mm").document["operators"][0]
        operator = process.torch.operators["aten::mm"]
        check(operator, theirs, "op", "overload", "schema", "debug")
        assert list(operator.table) == [entry["key"] for entry in theirs["table"]]
        for entry in theirs["table"]:
            check(operator.table[entry["key"]], entry, *KERNEL, "reason", "path", "source")
        for registration, entry in zip(operator.registrations, theirs["registrations"]):
            check(registration, entry, *KERNEL, "key", "alias", "active", "inferred_schema")
        assert tags_of(operator._repr_html_()) <= {"b", "table", "tr", "th", "td"}
        answer = process.run("dispatch-lookup", "aten::mm", "Meta,AutogradMeta")
        links, theirs = answer.report.section(LookupSection).chain, answer.document["lookup"]["chain"]
        for link, entry in zip(links, theirs):
            check(link.kernel, entry["kernel"], *KERNEL[:-1], "registered_at", "reason", "path")
        assert len(links) == len(theirs) > 1
        assert "aten::mm" in process.torch.operators
        with pytest.raises(KeyError):
            process.torch.operators["aten::nothing"]


def test_frames_are_those_of_the_thread() -> None:
    with opened("meta-mm") as process:
        whole = process.run("all-threads", "--stacks").document["threads"][0]["frames"]
        main = process.threads[0]
        assert [frame.function for frame in main.frames][:20] == [each["function"] for each in whole][:20]
        assert {frame.kind.value for frame in main.frames} == {"native", "python"}
        frame = process.python.frame(process.pid)
        assert frame.function == process.threads.by_tid(process.pid).python[0].function
        with pytest.raises(gdbext.GdbextError, match="runs no Python"):
            process.python.frame(1)
        with pytest.raises(IndexError):
            process.python.frame(process.pid, 1000)


def tags_of(text: str) -> set[str]:
    tags = Tags(text, void={"br"})
    assert tags.open == []
    return tags.seen


def test_what_notebooks_show_is_escaped() -> None:
    with opened("meta-mm") as process:
        thread = process.threads[0]
        strange = thread._replace(python_name="<script>alert(1)</script>\x1b[31m")
        shown = gdbext.Thread.of(process._session, strange, process._limits)
        assert tags_of(shown._repr_html_()) <= {"b", "table", "tr", "th", "td"}
        assert "\x1b" not in shown._repr_html_() + repr(shown)
        for each in (process, process.threads, thread, thread.python, process.diagnose(), process.run("dispatch-bt")):
            assert tags_of(each._repr_html_()) <= {"b", "table", "tr", "th", "td", "pre", "br"}


def examples() -> list[str]:
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE)
    return ["\n".join(line[4:] for line in block.split("\n")).strip() for block in blocks if "gdbext." in block]


assert len(examples()) >= 5


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.split('"')[1])
def test_the_examples_of_the_page_run(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECORDINGS)
    exec(compile(example, "library.md", "exec"), {"gdbext": gdbext})


def test_importing_it_imports_nothing() -> None:
    code = "import sys; import gdbext; print([name for name in sys.modules if name.startswith('gdbext.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert {"open", "Process", "Thread"} <= set(dir(gdbext))
    with pytest.raises(AttributeError, match="nothing"):
        _ = gdbext.nothing


@pytest.mark.parametrize(
    ("limits", "said", "named"),
    [
        ({"timeout": 5}, "no report within 5 s", "timeout"),
        ({"memory_limit": 0.05}, "exceeds its memory limit", "memory_limit"),
    ],
)
def test_a_call_that_takes_too_much_ends(limits: Any, said: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is open and can be asked again; the program's own signals are left alone."""

    def forever(session: object) -> None:
        while True:
            str(session)

    before = signal.getsignal(signal.SIGALRM)
    clock = SimpleNamespace(monotonic=lambda: 0)
    monkeypatch.setattr(budget, "time", clock)
    with gdbext.open(recording=str(RECORDINGS / "idle.rec"), **limits) as process:
        with monkeypatch.context() as patched:
            if named == "timeout":
                patched.setattr(clock, "monotonic", itertools.count().__next__)
            else:
                patched.setattr(budget, "_private_memory", itertools.count(step=1 << 26).__next__)
            patched.setattr(library_process, "inspect_threads", forever)
            with pytest.raises(gdbext.GdbextError, match=said) as caught:
                process.threads  # noqa: B018
        assert named in caught.value.help
        assert len(process.run("dispatch-keyset", "CPU").document["keyset"]) > 0
    assert signal.getsignal(signal.SIGALRM) == before
