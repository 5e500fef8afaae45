"""Waits for a device, beside what the recorded programs wrote down: torch 2.6.0 and 2.15.0 on a made-up device."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gdbext.diagnosis.job.devices import DeviceSection, DeviceSystemSection, ReplayedGraph, _trigger, core_settings
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.targets.system.nvidia import NvidiaFacts, NvidiaFigures
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.state import cuda_state
from gdbext.torch.state.cuda_state import CudaGraph, CudaStream, CudaStreams, PendingMemory
from gdbext.torch.state.thread_variable import ThreadVariables
from support.recorded.recordings import Replay

FIRST = NvidiaFigures(0, "made up", 3, False, 100, 7, 118_000, 700_000, 1980, 2619, 30 << 30, 80 << 30, 2)
SECOND = NvidiaFigures(1, "made up", 4, True, None, None, None, None, 1980, 2619, 30 << 30, 80 << 30, 2)
USER = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"
WAITS = ("device-waits-2.6.0", "device-waits-2.15.0")


@pytest.fixture(scope="module", params=WAITS)
def hung(request: pytest.FixtureRequest) -> Replay:
    return Replay(request.param)


def device_waits(hung: Replay) -> dict[str, dict[str, Any]]:
    """Role → the member "device" of its wait."""
    roles = {each["tid"]: role for role, each in hung.truth["threads"].items()}
    return {
        roles[each["tid"]]: each["wait"]["device"]
        for each in hung.diagnosis["threads"]
        if each["tid"] in roles and each["wait"] and "device" in each["wait"]
    }


def current_stream(number: int, handle: int) -> Any:
    return lambda *_: (CudaStream(number, 0, handle),)


def test_each_call_with_the_stream_or_event_that_the_program_passed(hung: Replay) -> None:
    found, truth = device_waits(hung), hung.truth["threads"]
    assert found["allocator"]["purpose"].startswith("the caching allocator waits for the events of blocks")
    calls = {role: each["call"] for role, each in truth.items() if "call" in each}
    assert {role: each["call"] for role, each in found.items()} == calls
    for role in ("stream", "item"):
        handle = truth[role]["stream"]
        known = hung.truth["streams"][str(handle)]
        assert found[role]["stream"] == f"{handle:#x}"
        assert (found[role]["stream_id"], found[role]["device"]) == (known["id"], known["device"])
        assert found[role]["certainty"] == "exact"
    graph = found["graph"]
    assert (graph["work"], graph["purpose"]) == ("graph", "a CUDA graph is replayed")
    assert (graph["stream"], graph["certainty"]) == (f"{truth['graph']['stream']:#x}", "inferred")
    assert (graph["stream_id"], graph["device"]) == (known["id"], known["device"])
    assert found["spinning"]["event"] == f"{truth['spinning']['event']:#x}"
    assert (found["spinning"]["work"], found["spinning"]["polls"]) == ("event", True)


def test_the_gil_in_a_call_of_the_driver(hung: Replay) -> None:
    """The main thread holds it in a call by ctypes, whose code does not tell which argument is the stream; a thread of
    the driver wants it for a host function."""
    verdict, calls = hung.diagnosis["verdict"], device_waits(hung)
    assert (verdict["kind"], verdict["threads"][0]) == ("gil-in-device-call", hung.tid("main"))
    (callback,) = calls["main"]["host_functions"]
    assert callback not in {each["tid"] for each in hung.truth["threads"].values()}
    assert {hung.tid("waiter"), callback} <= set(verdict["threads"])
    assert "while holding the GIL, which 2 threads want" in verdict["summary"]
    assert "runs a host function that the program launched" in verdict["summary"]
    assert any("cudaLaunchHostFunc" in line for line in verdict["advice"])
    assert [role for role, each in calls.items() if each["holds_gil"]] == ["main"]
    assert [calls["main"][each] for each in ("stream", "event", "certainty", "device")] == [None, None, "unknown", 0]


def test_a_function_that_leaves_by_a_jump_passes_nothing(replay: type[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
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


FAR = 1 << 63
SENSELESS = PendingMemory(0, (), 0, 1 << 50, 0)
FAR_PROBLEM = f"stream {-FAR:#x} of cuda:0 cannot be at {FAR:#x}"
PLACES_UNKNOWN = "the caching allocator: the place of the allocator's active blocks is unknown in this build"
BLOCKS_UNKNOWN = "the caching allocator: the events that 1 freed blocks of cuda:0 wait for are unknown"


@pytest.mark.parametrize(
    ("owner", "name", "value", "lacks", "problem"),
    [
        (cuda_state, "_GRAPH_PLACES", ((40, 64),), "replayed", "replays: there is no CUDA graph at 0x"),
        (CudaStreams, "current", current_stream(35, 0), "current_streams", "stream 0x23 of cuda:0 cannot be at 0x0"),
        (CudaStreams, "current", current_stream(-FAR, FAR), "current_streams", FAR_PROBLEM),
        (cuda_state._Pending, "read", lambda _: SENSELESS, "memory", "allocator: its failure counts are implausible"),
        (cuda_state, "_BLOCK_SHIFTS", (16, 24), "memory", PLACES_UNKNOWN),
        (cuda_state, "_CUDA_DEVICE", 2, "memory", BLOCKS_UNKNOWN),
        (cuda_state, "_BLOCK_COUNT", 64, "memory", BLOCKS_UNKNOWN),
    ],
)
def test_what_does_not_agree_is_unknown(
    replay: type[Replay], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any, lacks: str, problem: str
) -> None:
    monkeypatch.setattr(owner, name, value)
    section = replay(WAITS[1]).document("dispatch-diagnose")["device"]
    assert section[lacks] == []
    assert problem in section["problems"][-1]


def test_graphs_in_the_report() -> None:
    graph = CudaGraph(0x7F00, 1, 35, (0, 3))
    memory = PendingMemory(1, (), 2, 0, 0, (graph,))
    section = DeviceSection(2, (), core_settings({}), (memory,), replayed=(ReplayedGraph(7, graph),))
    assert section.lines == (
        "thread 7 replays a CUDA graph that was captured on stream 35 of cuda:1, with memory of the private "
        "pool (0, 3)",
        "cuda:1: a CUDA graph is being captured on stream 35, into the private pool (0, 3)",
        "cuda:1: a CUDA graph is being captured or a private pool is in use (1 at once)",
    )


def test_arrays_of_another_size_are_not_read(replay: type[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    place = CudaStreams._address_and_size

    def other(self: CudaStreams, variable: Any, least: int) -> tuple[int, int]:
        address, size = place(self, variable, least)
        return address, size + (64 if "counters" in variable.names[0] else 0)

    monkeypatch.setattr(CudaStreams, "_address_and_size", other)
    hung = replay(WAITS[1])
    problem = "PyTorch's streams: the arrays of CUDA streams have unexpected sizes in this build"
    assert hung.diagnosis["device"]["problems"][0] == problem
    assert {each["stream_id"] for each in device_waits(hung).values()} == {None}
    assert any(each["stream"] for each in device_waits(hung).values())  # the handle was read where it is passed


def test_what_the_allocator_and_threads_that_launch_have_in_hand(hung: Replay) -> None:
    section = hung.diagnosis["device"]
    (memory,) = section["memory"]
    (event,) = memory["events"]  # the thread that allocates has taken its event, and waits for it
    assert {**event, "block": int(event["block"], 16)} == {**hung.truth["pending"], "event": None}
    assert [memory[name] for name in ("device", "captures", "ooms")] == [0, 0, 0]
    (replayed,) = section["replayed"]
    assert replayed["tid"] == hung.tid("graph")
    assert [replayed["graph"][name] for name in ("stream_id", "pool")] == hung.truth["replayed"]
    current = {each["tid"]: (each["stream_id"], int(each["stream"], 16)) for each in section["current_streams"]}
    known = {each["id"]: int(handle) for handle, each in hung.truth["streams"].items()}
    assert current[hung.tid("item")][1] == hung.truth["threads"]["item"]["stream"]
    for role in ("item", "allocator"):
        number, handle = current[hung.tid(role)]
        assert handle == known[number]
    assert current[hung.tid("main")] == (0, 0)
    assert hung.tid("waiter") not in current  # in no call of CUDA
    streams = CudaStreams(hung.session.symbolizer, ThreadVariables(hung.session.memory, hung.session.symbolizer))
    assert streams._stream(-(1 << 63), 0).handle == 1 << 63, "a stream from elsewhere is an address"
    text = hung.text("dispatch-diagnose").partition("The device, as seen from the host\n")[2]
    assert "\ncuda:0: 1 freed block (24.0 MiB) of the allocator waits for events of stream 3" in text


@pytest.mark.parametrize(
    ("environ", "user", "exception", "running"),
    [
        ({}, False, False, False),
        ({USER: "1", "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory,skip_abort"}, True, False, True),
        ({USER: "0", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1"}, False, True, False),
    ],
)
def test_cores_of_the_device(environ: dict[str, str], user: bool, exception: bool, running: bool) -> None:
    core = core_settings(environ)
    assert (core.user_triggered, core.on_exception, core.keeps_running) == (user, exception, running)
    assert (core.pipe, core.file) == ("corepipe.cuda.%h.%p", "core_%t_%h_%p.nvcudmp")


@pytest.mark.parametrize(
    ("pipe", "glob"), [("", "/cwd/corepipe.cuda.*.{}"), ("/tmp/%h/pipe.%p", "/root/tmp/*/pipe.{}")]
)
def test_the_command_that_asks_for_a_core_of_the_device(hung: Replay, pipe: str, glob: str) -> None:
    target = hung.session.target
    core = core_settings({USER: "1", "CUDA_COREDUMP_PIPE": pipe})
    command = f"echo 1 | tee /proc/{target.pid}{glob.format(target.pid)}"
    assert (_trigger(core, target), _trigger(core_settings({}), target)) == (command, "")
    (advice, *_) = DeviceSection(1, (), core._replace(trigger=command)).advice
    assert advice.endswith(f"(the process may be aborted afterwards): {command}")
    assert f"{USER}=1; this one was not" in hung.text("dispatch-diagnose")


def test_the_systems_words_in_the_report(hung: Replay) -> None:
    section = hung.document("dispatch-diagnose", "--device")["device_system"]
    assert section["facts"]["problems"] == ["the driver can be queried only about a live process"]
    text = DeviceSystemSection(NvidiaFacts("580.65", (FIRST, SECOND), ("NVRM: Xid 79",), (), ("NVML: …",))).lines
    assert text == (
        "NVML's device 0 (made up, /dev/nvidia3): busy 100% of the time, 118 of 700 W, 1980 MHz (memory 2619), "
        "30.0 GiB of 80.0 GiB used, 2 uncorrected ECC errors, a spinning kernel, like a collective that waits for "
        "others (inferred from busy time and power)",
        "NVML's device 1 (made up, /dev/nvidia4): MIG is on: its instances are not examined, 1980 MHz (memory 2619), "
        "30.0 GiB of 80.0 GiB used, 2 uncorrected ECC errors",
        "kernel log: NVRM: Xid 79",
        "the process has no file of an NVIDIA device open",
        "unknown: NVML: …",
    )
