"""Calls of CUDA's runtime and driver, by the functions and libraries on a stack."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.device_wait import DeviceWait, DeviceWork
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.waits import pool_table
from gdbext.diagnosis.waits.recognize import state_of
from gdbext.engine.vocabulary import Certainty
from gdbext.torch import assumed_symbols
from support.programs.wait_processes import DATA, LOOP, PC, Process, Python, gil, wait_of

POLL = {"call": 7, "args": (DATA, 1, 2**64 - 1)}
DRIVER, RUNTIME, TORCH = "libcuda.so.1", "libcudart.so.13", "libtorch_cuda.so"
NCCL = ("libnccl.so.2", "ncclAllReduce")
PYTORCH = (TORCH, "_ZN2at6native24_local_scalar_dense_cudaERKNS_6TensorE")
BOTH = [(DRIVER, "cuStreamSynchronize"), (RUNTIME, None), (RUNTIME, "cudaStreamSynchronize"), PYTORCH]


def in_driver(*outer):
    return [("libc.so.6", "poll"), (DRIVER, None), (DRIVER, None), *outer]


def device_of(frames):
    return wait_of(Process({DATA: bytes(64)}).thread(1, [*frames, LOOP], **POLL)).detail.device


@pytest.mark.parametrize(
    ("outer", "call", "driver_call", "work"),
    [
        (BOTH, "cudaStreamSynchronize", "cuStreamSynchronize", DeviceWork.STREAM),
        ([(RUNTIME, "cudaMemcpy_ptds"), PYTORCH], "cudaMemcpy_ptds", "", DeviceWork.COPY),  # a variant
        ([(TORCH, "launch")], "", "", DeviceWork.UNKNOWN),  # a function of the driver without a name
        ([(DRIVER, "cuMemAlloc_v2"), (NCCL[0], None), NCCL, PYTORCH], "cuMemAlloc_v2", "", DeviceWork.MEMORY),
    ],
)
def test_who_called_what(outer, call, driver_call, work):
    found = device_of(in_driver(*outer))
    assert (found.call, found.driver_call, found.caller) == (call, driver_call, NCCL[0] if NCCL in outer else TORCH)
    assert (found.work, found.polls, found.certainty) == (work, False, Certainty.UNKNOWN)
    name = f"{call}, in ncclAllReduce" if found.nccl_call else call or "an unnamed driver call"
    assert (found.nccl_call, found.phrase) == ("ncclAllReduce" * (NCCL in outer), f"waits for the device ({name})")


def test_a_launch_that_blocks_waits_for_the_device_one_that_runs_does_not_and_a_wait_may_spin():
    frames = [(DRIVER, None), (DRIVER, "cuLaunchKernel"), (RUNTIME, "cudaLaunchKernel"), PYTORCH, LOOP]
    assert device_of(frames).work is DeviceWork.LAUNCH
    process = Process({DATA: bytes(64)}).thread(1, frames, call=-1, rax=0, registers={"rip": PC - 8})
    assert state_of(process.snapshot(1)).state is RunState.RUNNING
    frames = [(DRIVER, None), (DRIVER, None), (RUNTIME, "cudaEventSynchronize"), PYTORCH, LOOP]
    process = Process({DATA: bytes(64)}).thread(1, frames, call=-1, rax=0)
    state = state_of(process.snapshot(1))
    assert (state.state, state.wait.detail.device.polls, state.wait.detail.device.work) == (
        RunState.WAITING,
        True,
        DeviceWork.EVENT,
    )


def test_threads_of_the_driver_itself_are_idle_and_those_with_a_callback_are_not():
    start = [("libc.so.6", "start_thread")]
    process = Process({DATA: bytes(64)}).thread(1, [*in_driver((RUNTIME, "cudaFree")), LOOP], **POLL)
    process.thread(2, [*in_driver(), *start], **POLL)
    process.thread(3, [*in_driver(("app.so", "callback"), (DRIVER, None)), *start], **POLL)
    assert state_of(process.snapshot(2)).pool is pool_table.CUDA_DRIVER
    assert state_of(process.snapshot(3)).state is RunState.WAITING


@pytest.mark.parametrize(
    ("row", "call"),
    [
        (assumed_symbols.ALLOCATOR_EVENTS, "cudaEventSynchronize"),
        (assumed_symbols.ALLOCATOR_RELEASE, "cudaFree"),
        (assumed_symbols.ALLOCATOR_BLOCK, "cudaMalloc"),
        (assumed_symbols.GRAPH_REPLAY, "cudaGraphLaunch"),
        (assumed_symbols.GRAPH_CAPTURE, "cudaStreamEndCapture"),
    ],
)
def test_why_pytorch_makes_the_call(row, call):
    for mangled in row.examples:
        outer = ("libtorch_cuda.so", assumed_symbols.ALLOCATOR_BLOCK.examples[0])
        found = device_of(in_driver((RUNTIME, call), (TORCH, mangled), outer))
        assert (found.call, found.purpose) == (call, row.purpose), "the innermost tells most"
    assert device_of(in_driver((RUNTIME, call), PYTORCH)).purpose == ""


@pytest.mark.parametrize(("holder", "locked", "holds"), [(1, True, True), (2, True, False), (1, False, False)])
def test_who_holds_the_gil(holder, locked, holds):
    process = Process({DATA: bytes(64)}).thread(1, [*in_driver((RUNTIME, "cudaFree")), LOOP], **POLL)
    found = wait_of(process, python=Python(gil(holder_tid=holder, locked=locked)))
    assert found.detail.device.holds_gil is holds


def test_a_call_in_words():
    wait = DeviceWait("cudaStreamSynchronize", DeviceWork.STREAM, device=1)
    assert wait.phrase == "waits for the device (cudaStreamSynchronize on cuda:1)"
    texts = {0: "the default stream", 2: "the per-thread default stream", 0x7F00: "stream 0x7f00"}
    for handle, text in texts.items():
        assert wait._replace(stream=handle).object == f"{text} of cuda:1"
    assert wait._replace(stream=0x7F00, stream_id=35).object == "stream 35 of cuda:1"
