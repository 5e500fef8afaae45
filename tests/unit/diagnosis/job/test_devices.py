"""Waits for a device, beside what the recorded programs wrote down: torch 2.6.0 and 2.15.0 on a made-up device."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gdbext.diagnosis.job.devices import (
    DeviceCore,
    DeviceSection,
    DeviceSystemSection,
    ReplayedGraph,
    _trigger,
    core_settings,
)
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.targets.system.nvidia import NvidiaFacts, NvidiaFigures
from gdbext.engine.vocabulary import Hexadecimal
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.state import cuda_state
from gdbext.torch.state.cuda_state import CudaGraph, CudaStream, CudaStreams, PendingMemory
from gdbext.torch.state.thread_variable import ThreadVariables
from support.recorded.recordings import Replay

FIRST = NvidiaFigures(0, "made up", 3, False, 100, 7, 118_000, 700_000, 1980, 2619, 30 << 30, 80 << 30, 2)
SECOND = NvidiaFigures(1, "made up", 4, True, None, None, None, None, 1980, 2619, 30 << 30, 80 << 30, 2)
WAITS = ("device-waits-2.6.0", "device-waits-2.15.0")


@pytest.fixture(scope="module", params=WAITS)
def hung(request: pytest.FixtureRequest) -> Replay:
    """Nobody here changes it: each recording is judged once."""
    return Replay(request.param)


def device_waits(hung: Replay) -> dict[str, dict[str, Any]]:
    """Role → the member "device" of its wait."""
    roles = {each["tid"]: role for role, each in hung.truth["threads"].items()}
    return {
        roles[each["tid"]]: each["wait"]["device"]
        for each in hung.diagnosis["threads"]
        if each["tid"] in roles and each["wait"] and "device" in each["wait"]
    }


def test_each_call_with_the_stream_or_event_that_the_program_passed(hung: Replay) -> None:
    found, truth = device_waits(hung), hung.truth["threads"]
    assert {role: each["call"] for role, each in found.items()} == {
        role: each["call"] for role, each in truth.items() if "call" in each
    }
    for role in ("stream", "item"):
        handle = truth[role]["stream"]
        known = hung.truth["streams"][str(handle)]
        assert found[role]["stream"] == f"{handle:#x}"
        assert (found[role]["stream_id"], found[role]["device"]) == (known["id"], known["device"])
        assert found[role]["certainty"] == "exact"
    assert (found["graph"]["work"], found["graph"]["purpose"]) == ("graph", "a CUDA graph is replayed")
    graph = found["graph"]
    assert (graph["stream"], graph["certainty"]) == (f"{truth['graph']['stream']:#x}", "inferred")
    assert (graph["stream_id"], graph["device"]) == (known["id"], known["device"])
    assert found["spinning"]["event"] == f"{truth['spinning']['event']:#x}"
    assert (found["spinning"]["work"], found["spinning"]["polls"]) == ("event", True)


def test_a_handle_that_went_through_code_that_does_not_tell_is_unknown(hung: Replay) -> None:
    """ctypes loads the arguments from an array: which one is the stream, its code does not say."""
    main = device_waits(hung)["main"]
    assert (main["stream"], main["event"], main["certainty"]) == (None, None, "unknown")
    assert (main["device"], main["caller"][:6]) == (0, "libffi")


def test_the_gil_in_a_call_of_the_driver(hung: Replay) -> None:
    verdict = hung.diagnosis["verdict"]
    main, waiter = hung.tid("main"), hung.tid("waiter")
    assert (verdict["kind"], verdict["threads"][0]) == ("gil-in-device-call", main)
    assert waiter in verdict["threads"]
    assert "with the GIL in hand, for which 2 threads wait" in verdict["summary"]
    holders = [role for role, each in device_waits(hung).items() if each["holds_gil"]]
    assert holders == ["main"]


def test_a_host_function_that_wants_the_gil_is_named(hung: Replay) -> None:
    (callback,) = device_waits(hung)["main"]["host_functions"]
    named = {each["tid"] for each in hung.truth["threads"].values()}
    assert callback not in named  # a thread of the driver, which Python did not start
    verdict = hung.diagnosis["verdict"]
    assert callback in verdict["threads"]
    assert "runs a host function that the program launched" in verdict["summary"]
    assert any("cudaLaunchHostFunc" in line for line in verdict["advice"])


def test_the_evidence_names_where_a_stream_was_read(hung: Replay) -> None:
    waits = {each["tid"]: each["wait"] for each in hung.diagnosis["threads"]}
    item = waits[hung.tid("item")]
    handle = item["device"]["stream"]
    assert f"the stream {handle} is what the calling code passed to cudaStreamSynchronize" in item["evidence"]
    number = hung.truth["streams"][str(int(handle, 16))]["id"]
    assert f"PyTorch's pool of streams has it: number {number} of cuda:0" in item["evidence"]
    assert "cuda:0 is the only device that PyTorch sees" in waits[hung.tid("main")]["evidence"]


def test_a_replayed_graph_goes_into_the_current_stream_of_the_thread(hung: Replay) -> None:
    """The stream itself was in a register that is gone, after a jump to another function."""
    (graph,) = [each["wait"] for each in hung.diagnosis["threads"] if each["tid"] == hung.tid("graph")]
    handle = graph["device"]["stream"]
    assert f"PyTorch replays a graph into the thread's current stream, which is {handle}: inferred" in graph["evidence"]
    (replayed,) = hung.diagnosis["device"]["replayed"]
    assert replayed["tid"] == hung.tid("graph")
    assert [replayed["graph"]["stream_id"], replayed["graph"]["pool"]] == hung.truth["replayed"]


def test_a_graph_that_is_not_where_it_should_be_is_unknown(
    replay: type[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_state, "_GRAPH_PLACES", ((40, 64),))
    hung = replay(WAITS[1])
    section = hung.document("dispatch-diagnose")["device"]
    assert section["replayed"] == []
    (problem,) = section["problems"]
    assert problem.startswith(f"the CUDA graph that thread {hung.tid('graph')} replays: there is no CUDA graph at 0x")


def test_a_function_of_pytorch_that_leaves_by_a_jump_passes_nothing_to_cuda(
    replay: type[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``c10::cuda::GetDeviceCount`` jumps to CUDA's function: the call is CUDA's, with arguments that nobody knows."""
    other = Function(0x7000, 0x10, ("_ZN4mine7wrapperEi",), cast(Module, None))
    monkeypatch.setattr(CallSites, "direct_target", lambda *_: other.start)
    monkeypatch.setattr(CallSites, "function_at", lambda *_: other)
    found = device_waits(replay(WAITS[1]))["stream"]
    assert (found["call"], found["work"], found["stream"]) == ("cudaStreamSynchronize", "stream", None)


@pytest.mark.parametrize("argument", [0x800, 1 << 57])
def test_what_is_no_pointer_is_no_handle(replay: type[Replay], monkeypatch: pytest.MonkeyPatch, argument: int) -> None:
    monkeypatch.setattr(CallSites, "argument", lambda *_: argument)
    found = device_waits(replay(WAITS[1]))
    assert found["spinning"]["event"] is found["stream"]["stream"] is None
    assert found["spinning"]["certainty"] == found["stream"]["certainty"] == "unknown"


@pytest.mark.parametrize(("number", "handle"), [(35, 0), (-(1 << 63), 1 << 63)])
def test_a_current_stream_that_cannot_be_is_unknown(
    replay: type[Replay], monkeypatch: pytest.MonkeyPatch, number: int, handle: int
) -> None:
    monkeypatch.setattr(CudaStreams, "current", lambda *_: (CudaStream(number, 0, handle),))
    hung = replay(WAITS[1])
    section = hung.document("dispatch-diagnose")["device"]
    assert section["current_streams"] == []
    assert f"stream {number:#x} of cuda:0 cannot be at {handle:#x}" in section["problems"][0]


def test_counts_that_make_no_sense_are_not_shown(replay: type[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_state._Pending, "read", lambda _: PendingMemory(0, (), 0, 1 << 50, 0))
    section = replay(WAITS[1]).document("dispatch-diagnose")["device"]
    assert (section["memory"], section["problems"]) == (
        [],
        ["the caching allocator: its counts of failures make no sense"],
    )


def test_graphs_in_the_report() -> None:
    graph = CudaGraph(Hexadecimal(0x7F00), 1, 35, (0, 3))
    memory = PendingMemory(1, (), 2, 0, 0, (graph,))
    section = DeviceSection(2, (), core_settings({}), (memory,), replayed=(ReplayedGraph(7, graph),))
    assert section.lines == (
        "thread 7 replays a CUDA graph that was captured on stream 35 of cuda:1, with memory of the private "
        "pool (0, 3)",
        "cuda:1: a CUDA graph is being captured on stream 35, into the private pool (0, 3)",
        "cuda:1: a CUDA graph is captured, or a private pool is used (1 at once)",
    )


def test_why_the_allocator_waits(hung: Replay) -> None:
    found = device_waits(hung)["allocator"]
    assert found["purpose"] == "the caching allocator waits for the events of blocks that other streams used"
    thread = next(each for each in hung.diagnosis["threads"] if each["tid"] == hung.tid("allocator"))
    assert thread["dispatch"][0]["op"] == "aten::empty"


def test_the_block_that_waits_for_the_event_of_another_stream(hung: Replay) -> None:
    (memory,) = hung.diagnosis["device"]["memory"]
    (event,) = memory["events"]
    assert {**event, "block": int(event["block"], 16), "event": None} == {**hung.truth["pending"], "event": None}
    assert event["event"] is None, "the thread that allocates has taken it, and waits for it"
    assert (memory["device"], memory["captures"], memory["ooms"]) == (0, 0, 0)
    title, line = hung.text("dispatch-diagnose").partition("The device, as the host knows it\n")[1:]
    assert title
    assert "\ncuda:0: 1 freed block (24.0 MiB) of the allocator waits for events of stream 3" in line


def test_the_streams_into_which_threads_launch(hung: Replay) -> None:
    section = hung.diagnosis["device"]
    current = {each["tid"]: each for each in section["current_streams"]}
    known = {each["id"]: int(handle) for handle, each in hung.truth["streams"].items()}
    item = current[hung.tid("item")]
    assert int(item["stream"], 16) == hung.truth["threads"]["item"]["stream"] == known[item["stream_id"]]
    allocator = current[hung.tid("allocator")]
    assert int(allocator["stream"], 16) == known[allocator["stream_id"]] != int(item["stream"], 16)
    assert (current[hung.tid("main")]["stream_id"], current[hung.tid("main")]["stream"]) == (0, "0x0")
    assert hung.tid("waiter") not in current  # in no call of CUDA
    assert (section["devices"], section["problems"]) == (1, [])


def test_a_stream_from_elsewhere_is_an_address(hung: Replay) -> None:
    streams = CudaStreams(hung.session.symbolizer, ThreadVariables(hung.session.memory, hung.session.symbolizer))
    assert streams._stream(-(1 << 63), 0).handle == 1 << 63


def test_arrays_of_another_size_are_not_read(replay: type[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    place = CudaStreams._place

    def other(self: CudaStreams, variable: Any, least: int) -> tuple[int, int]:
        address, size = place(self, variable, least)
        return address, size + (64 if "counters" in variable.names[0] else 0)

    monkeypatch.setattr(CudaStreams, "_place", other)
    hung = replay(WAITS[1])
    report = hung.document("dispatch-diagnose")
    assert report["device"]["problems"][:1] == [
        "PyTorch's streams: the arrays of CUDA streams have other sizes in this build"
    ]
    waits = [each["wait"]["device"] for each in report["threads"] if each["wait"] and "device" in each["wait"]]
    assert waits
    assert {each["stream_id"] for each in waits} == {None}
    assert any(each["stream"] for each in waits)  # the handle itself was read where it is passed


@pytest.mark.parametrize(
    ("constant", "value", "problem"),
    [
        ("_BLOCK_SHIFTS", (16, 24), "where the allocator keeps its active blocks is not known in this build"),
        ("_CUDA_DEVICE", 2, "which events 1 freed blocks of cuda:0 wait for is not known"),
        ("_BLOCK_COUNT", 64, "which events 1 freed blocks of cuda:0 wait for is not known"),
    ],
)
def test_an_allocator_of_another_build_is_unknown(
    replay: type[Replay], monkeypatch: pytest.MonkeyPatch, constant: str, value: Any, problem: str
) -> None:
    """Its statistics, its blocks and its events have to agree."""
    monkeypatch.setattr(cuda_state, constant, value)
    section = replay(WAITS[1]).document("dispatch-diagnose")["device"]
    assert (section["memory"], section["problems"][-1]) == ([], f"the caching allocator: {problem}")


def test_torch_without_cuda_has_no_device(replay: type[Replay]) -> None:
    assert "device" not in replay("meta-mm").diagnosis


def test_cores_of_the_device_as_the_environment_says() -> None:
    assert core_settings({}) == DeviceCore(False, False, "corepipe.cuda.%h.%p", "core_%t_%h_%p.nvcudmp")
    asked = core_settings(
        {
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "CUDA_COREDUMP_PIPE": "/tmp/pipe.%p",
            "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory,skip_abort",
        }
    )
    assert (asked.user_triggered, asked.on_exception, asked.pipe) == (True, False, "/tmp/pipe.%p")
    assert asked.keeps_running
    off = core_settings({"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "0", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1"})
    assert (off.user_triggered, off.on_exception, off.keeps_running) == (False, True, False)


@pytest.mark.parametrize(
    ("pipe", "glob"), [("", "/cwd/corepipe.cuda.*.{pid}"), ("/tmp/%h/pipe.%p", "/root/tmp/*/pipe.{pid}")]
)
def test_the_command_that_asks_for_a_core_of_the_device(hung: Replay, pipe: str, glob: str) -> None:
    target = hung.session.target
    core = core_settings({"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1", "CUDA_COREDUMP_PIPE": pipe})
    command = f"echo 1 | tee /proc/{target.pid}{glob.format(pid=target.pid)}"
    assert _trigger(core, target) == command
    assert _trigger(core_settings({}), target) == ""
    section = DeviceSection(1, (), core._replace(trigger=command))
    assert section.advice[0].endswith(f"(the process may be aborted after it): {command}")
    assert "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1, which this one was not" in hung.text("dispatch-diagnose")


def test_the_systems_words_in_the_report(hung: Replay) -> None:
    """Nobody asks this machine's driver of a recording."""
    section = hung.document("dispatch-diagnose", "--device")["device_system"]
    assert section["facts"]["problems"] == ["the driver is asked of a live process only"]
    text = DeviceSystemSection(NvidiaFacts("580.65", (FIRST, SECOND), ("NVRM: Xid 79",), (), ("NVML: …",))).lines
    assert text == (
        "NVML's device 0 (made up, /dev/nvidia3): busy 100 % of the time, 118 of 700 W, 1980 MHz (memory 2619), "
        "30.0 GiB of 80.0 GiB used, 2 uncorrected ECC errors, a kernel that spins, as a collective does that waits for "
        "others (inferred from busy time and power)",
        "NVML's device 1 (made up, /dev/nvidia4): MIG is on: what its parts do is not told, 1980 MHz (memory 2619), "
        "30.0 GiB of 80.0 GiB used, 2 uncorrected ECC errors",
        "kernel log: NVRM: Xid 79",
        "the process has no file of an NVIDIA device open",
        "unknown: NVML: …",
    )
