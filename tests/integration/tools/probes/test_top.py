"""dispatch-top counts exactly what the process dispatched, stops nobody, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.installed.probing import PROBES, is_counting, keeper_of, links_on, places_of, probes_placed
from support.programs import procfs
from support.programs.harness import DISPATCH, INFERIORS, Inferior, run, wait_until
from support.source import contract_schema

pytestmark = [pytest.mark.torch, pytest.mark.program("counted-calls"), PROBES]


@pytest.fixture
def counted(inferior: Callable[..., Inferior]) -> Inferior:
    return inferior("counted-calls")


def turns(inferior: Inferior) -> int:
    return inferior.output().count("done")


def one_turn(inferior: Inferior) -> None:
    before = turns(inferior)
    inferior.send("go")
    wait_until(lambda: turns(inferior) > before, "the calls are made")


def top(inferior: Inferior, work: Callable[[], Any], *args: str) -> dict[str, Any]:
    """The report of a dispatch-top that counts while ``work`` is done."""
    command = [DISPATCH, "--json", "-p", str(inferior.pid), "dispatch-top", "--interval", "600", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
        try:
            wait_until(lambda: probes_placed(tool.pid) or tool.poll() is not None, "the probes are placed")
            work()
            tool.send_signal(signal.SIGINT)
            stdout, stderr = tool.communicate(timeout=120)
        finally:
            tool.kill()
    assert tool.returncode == 0, stderr
    document: dict[str, Any] = json.loads(stdout)
    contract_schema.check(document)
    return document


def by_operator(document: dict[str, Any]) -> dict[tuple[str, str, str], Any]:
    rows = document["top"]["rows"]
    named = {(f"{row['op']}.{row['overload']}".rstrip("."), row["event"], row["key"]): row for row in rows}
    assert len(named) == len(rows)
    return named


def test_every_dispatch_is_counted_with_its_keyset(counted: Inferior) -> None:
    found = top(counted, lambda: one_turn(counted), "mm", "aten::add_.Tensor", "aten::mul.out")
    rows = by_operator(found)
    expected = 2 * counted.truth["calls"]
    assert {name: row["count"] for name, row in rows.items()} == dict.fromkeys(
        [
            ("aten::mm", "call", "AutogradCPU"),
            ("aten::mm", "redispatch", "CPU"),
            ("aten::add_.Tensor", "call", "AutogradCPU"),
            ("aten::add_.Tensor", "redispatch", "ADInplaceOrView"),
            ("aten::add_.Tensor", "redispatch", "CPU"),
            ("aten::mul.out", "call", "AutogradCPU"),
            ("aten::mul.out", "redispatch", "ADInplaceOrView"),
            ("aten::mul.out", "redispatch", "CPU"),
        ],
        expected,
    )
    call = rows["aten::mm", "call", "AutogradCPU"]
    assert call["keyset"]["keys"] == counted.truth["mm"]
    assert call["kernel"].endswith("VariableType::(anonymous namespace)::mm")
    assert rows["aten::mm", "redispatch", "CPU"]["kernel"].endswith("wrapper_CPU_mm")
    assert found["top"]["lost"] == 0


def test_threads_are_told_apart(counted: Inferior) -> None:
    found = top(counted, lambda: one_turn(counted), "--by", "thread", "mm")
    counts = {row["tid"]: row["count"] for row in found["top"]["rows"]}
    expected = 2 * counted.truth["calls"]  # each call is redispatched once
    assert counts == {counted.tid("main"): expected, counted.tid("other"): expected}


def test_the_kernel_leaves_out_other_threads_and_keys(counted: Inferior) -> None:
    other = counted.tid("other")
    found = top(counted, lambda: one_turn(counted), "mm", "aten::add_.Tensor", "--thread", str(other), "--key", "CPU")
    counts = {name: row["count"] for name, row in by_operator(found).items()}
    assert counts == {(name, "redispatch", "CPU"): counted.truth["calls"] for name in ("aten::mm", "aten::add_.Tensor")}
    for words, said in ((("--thread", "1"), "there is no thread"), (("--key", "CPUU"), "did you mean CPU")):
        refused = run([DISPATCH, "-p", str(counted.pid), "dispatch-top", *words])
        assert refused.status == 2, refused
        assert said in refused.stderr


def test_the_lines_that_dispatch(counted: Inferior) -> None:
    rows = top(counted, lambda: one_turn(counted), "--by", "line", "mm")["top"]["rows"]
    source = (INFERIORS / "counted_calls.py").read_text().splitlines()
    number = next(at for at, line in enumerate(source, 1) if "torch.mm(a, b)" in line)
    assert [row["count"] for row in rows] == [4 * counted.truth["calls"]]
    assert rows[0]["line"].endswith(f"counted_calls.py:{number} (work)")


def test_what_is_odd_is_marked(counted: Inferior, tmp_path: Path) -> None:
    def work() -> None:
        before = turns(counted)
        counted.send(f"profile {tmp_path / 'unused'}")
        wait_until(lambda: turns(counted) > before, "the step is done")

    marks = {(row["op"], row["key"]): row["mark"] for row in top(counted, work, "--limit", "200")["top"]["rows"]}
    assert marks["gdbext_counted::twice", "AutogradCPU"] == "boxed fallback"
    assert marks["aten::linear", "AutogradCPU"] == "decomposes"
    assert marks["aten::add", "CPU"] == ""


def test_an_extension_that_is_loaded_later_gets_probes(counted: Inferior) -> None:
    """It has the dispatcher inlined; what it calls through libtorch is counted as before."""

    def work() -> None:
        before = links_on(counted.pid)
        counted.send("load")
        wait_until(lambda: links_on(counted.pid) == before + 1, "the extension has probes")
        counted.send("late")
        wait_until(lambda: "done late" in counted.output(), "the calls are made")

    found = top(counted, work)
    assert 0 < found["top"]["unseen"] < 20  # in torch's own libraries
    rows = by_operator(found)
    assert rows["gdbext_test::guarded", "callBoxed", "AutogradCPU"]["count"] == 10
    assert rows["gdbext_test::plain", "call", "AutogradCPU"]["count"] == 10  # by a typed handle
    assert links_on(counted.pid) == 0
    assert events_in(counted.pid, "liboperators.so") == {"call": 3, "redispatchBoxed": 1}


def events_in(pid: int, library: str) -> Counter[str]:
    """What the places in a library see; nothing there is a lookup that none of them sees."""
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.live.unstopped import RunningProcess
    from gdbext.tools.probes.trace_places import TracePlaces

    target = RunningProcess(pid)
    try:
        session = Session(target)
        paths = [module.path for module in session.modules.modules if module.name == library]
        finder = TracePlaces(session)
        found = Counter(place.event.value for place in finder.of_libraries(paths, False))
        assert not finder.unseen.total()
        return found
    finally:
        target.close()


def test_places_that_are_added_count(counted: Inferior) -> None:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.live.unstopped import RunningProcess
    from gdbext.tools.probes.dispatch_counter import DispatchCounter
    from gdbext.tools.probes.trace_places import TracePlaces

    target = RunningProcess(counted.pid)
    try:
        session = Session(target)
        operator = session.dispatcher.find_one("aten::mm")
        own = [place for place in TracePlaces(session).of([operator]) if place.operator]
        with DispatchCounter(session.memory.architecture, counted.pid, own[:1]) as counter:
            counter.add(own[1:])
            one_turn(counted)
            counts: Counter[tuple[int, str]] = Counter()
            for count in counter.counts():
                counts[count.entry, count.event.value] += count.times
    finally:
        target.close()
    expected = 2 * counted.truth["calls"]
    assert counts == {(operator.address, "call"): expected, (operator.address, "redispatch"): expected}


def test_one_document_a_report(counted: Inferior) -> None:
    outcome = run(
        [
            DISPATCH,
            "--json",
            "-p",
            str(counted.pid),
            "dispatch-top",
            "mm",
            "--interval",
            "0.2",
            "--count",
            "3",
            "--sort",
            "kernel",
        ]
    )
    assert outcome.status == 0, outcome
    documents = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [document["command"] for document in documents] == ["dispatch-top"] * 3


def test_a_screen_until_q(counted: Inferior) -> None:
    ours, theirs = pty.openpty()
    command = [DISPATCH, "-p", str(counted.pid), "dispatch-top", "mm", "--interval", "0.2"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, env={**os.environ, "TERM": "xterm"}) as tool:
        os.close(theirs)
        seen = b""
        try:
            while b"q quit" not in seen:
                seen += os.read(ours, 1 << 16)
            os.write(ours, b"q")
            while tool.poll() is None:
                with contextlib.suppress(OSError):  # it has closed its end
                    seen += os.read(ours, 1 << 16)
        finally:
            tool.kill()
            os.close(ours)
    assert tool.returncode == 0
    assert b"\x1b[?1049h" in seen
    assert b"\x1b[?1049l" in seen


def test_nobody_is_stopped_and_nothing_is_left(counted: Inferior) -> None:
    before = code(counted.pid)

    def work() -> None:
        assert procfs.status(counted.pid)["TracerPid"] == "0"
        one_turn(counted)

    top(counted, work)
    wait_until(lambda: code(counted.pid) == before, "the code is what it was")
    one_turn(counted)


def code(pid: int) -> bytes:
    """The bytes of mm's own functions in the process: a probe is a breakpoint instruction there."""
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.live.unstopped import RunningProcess
    from gdbext.live.operator_functions import OperatorFunctions

    target = RunningProcess(pid)
    try:
        session = Session(target)
        functions = OperatorFunctions(session).extents(session.dispatcher.find_one("aten::mm"))
        assert [event for event, _, _ in functions] == ["call", "redispatch"]
        return b"".join(target.read(address, size) for _, address, size in functions)
    finally:
        target.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_the_tool_is_ended_the_process_runs_on(counted: Inferior, number: signal.Signals) -> None:
    before = code(counted.pid)
    command = [DISPATCH, "-p", str(counted.pid), "dispatch-top", "--interval", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
        try:
            wait_until(lambda: probes_placed(tool.pid), "the probes are placed")
            assert code(counted.pid) != before
            assert links_on(counted.pid) >= 2
            tool.send_signal(number)
            tool.communicate(timeout=60)
        finally:
            tool.kill()
    wait_until(lambda: code(counted.pid) == before, "the probes are gone")
    assert links_on(counted.pid) == 0
    one_turn(counted)


def test_a_kill_while_probes_are_placed_leaves_nothing(counted: Inferior) -> None:
    """Of the tool's process group: the process that places them is in another one."""
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.live.unstopped import RunningProcess

    command = [DISPATCH, "-p", str(counted.pid), "dispatch-top", "--interval", "600"]
    target = RunningProcess(counted.pid)
    try:
        where = places_of(Session(target))
        before = [target.read(address, 4) for address in where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as tool:
            keeper = wait_until(lambda: keeper_of(tool.pid), "probes are being placed")
            os.killpg(tool.pid, signal.SIGKILL)
            tool.communicate(timeout=60)
        wait_until(lambda: not procfs.alive(keeper), "the process that places them ends")
        assert [target.read(address, 4) for address in where] == before
    finally:
        target.close()
    assert links_on(counted.pid) == 0
    one_turn(counted)


def test_when_the_process_that_keeps_the_probes_is_killed_the_tool_counts_on(counted: Inferior) -> None:
    command = [DISPATCH, "--json", "-p", str(counted.pid), "dispatch-top", "mm", "--interval", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        try:
            wait_until(lambda: is_counting(tool.pid), "it counts")
            keeper = keeper_of(tool.pid)
            os.kill(keeper, signal.SIGKILL)
            wait_until(lambda: not procfs.alive(keeper), "it is dead")
            one_turn(counted)
            tool.send_signal(signal.SIGINT)
            stdout, _ = tool.communicate(timeout=120)
        finally:
            tool.kill()
    rows = by_operator(json.loads(stdout))
    assert rows["aten::mm", "call", "AutogradCPU"]["count"] == 2 * counted.truth["calls"]
    assert links_on(counted.pid) == 0


def test_without_the_right_it_says_what_is_missing(counted: Inferior) -> None:
    dropped = ["setpriv", "--bounding-set", "-sys_admin,-bpf,-perfmon", "--inh-caps", "-sys_admin,-bpf,-perfmon"]
    outcome = run([*dropped, DISPATCH, "-p", str(counted.pid), "dispatch-top"])
    assert outcome.status == 1, outcome
    for words in ("kernel probes need CAP_BPF and CAP_PERFMON", "--cap-add=BPF --cap-add=PERFMON", "dispatch-trace OP"):
        assert words in outcome.stderr, outcome
    one_turn(counted)


@pytest.mark.parametrize("debugger", ["gdb", "none"])
def test_a_core_has_nothing_to_count(debugger: str, inferior: Callable[..., Inferior]) -> None:
    outcome = inferior("meta-mm").dispatch("dispatch-top", core=True, debugger=debugger, json=False, check=False)
    assert outcome.status == 2, outcome
    assert "dispatch-top" in outcome.stderr


def test_an_unknown_operator_is_refused_before_anything_is_counted(counted: Inferior) -> None:
    outcome = run([DISPATCH, "-p", str(counted.pid), "dispatch-top", "--interval", "600", "aten::matmull"])
    assert outcome.status == 2, outcome
    assert "aten::matmul" in outcome.stderr


def test_single_probes_count_the_same(counted: Inferior, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on kernels before 6.6: this one is asked not to place many at once."""
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.live.unstopped import RunningProcess
    from gdbext.errors import ProbesRefused
    from gdbext.tools.probes.bpf.bpf_kernel import Circumstances
    from gdbext.tools.probes.dispatch_counter import DispatchCounter
    from gdbext.tools.probes.trace_places import TracePlaces

    monkeypatch.setattr(Circumstances, "lacks_many", property(lambda _: True))
    target = RunningProcess(counted.pid)
    try:
        session = Session(target)
        operator = session.dispatcher.find_one("aten::mm")
        architecture, places = session.memory.architecture, TracePlaces(session)
        with pytest.raises(ProbesRefused, match="one by one"):
            DispatchCounter(architecture, counted.pid, places.everything())
        own = [place for place in places.of([operator]) if place.operator]
        with DispatchCounter(architecture, counted.pid, own, [operator.address]) as counter:
            one_turn(counted)
            counts = {count.event.value: 0 for count in counter.counts()}
            for count in counter.counts():
                counts[count.event.value] += count.times
    finally:
        target.close()
    expected = 2 * counted.truth["calls"]
    assert counts == {"call": expected, "redispatch": expected}
    assert links_on(counted.pid) == 0


def test_samples_say_whether_dispatches_go_on(counted: Inferior) -> None:
    looked = ("-p", str(counted.pid), "--debugger", "none", "dispatch-diagnose", "--samples", "2", "--interval", "0.3")
    quiet = run([DISPATCH, "--json", *looked]).document
    assert quiet["samples"]["calls"] == 0
    assert any(finding["summary"] == "No operator was called meanwhile." for finding in quiet["findings"])
