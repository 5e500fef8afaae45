"""Pools of libraries that are often beside PyTorch: by functions, by the names of threads, by the library alone."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.diagnosis.waits.recognize import state_of
from gdbext.engine.targets.system.procfs import NO_PROCFS
from support.programs.wait_processes import BITSET, DATA, LOOP, Outside, Process, wait_of

COND = [("libc.so.6", None), ("libc.so.6", "pthread_cond_wait")]
START = [("libc.so.6", "start_thread"), ("libc.so.6", "clone")]
SLEEP = "_ZN10rayon_core5sleep5Sleep5sleep17h0123456789abcdefE"
COLD = "_ZN10rayon_core8registry12WorkerThread15wait_until_cold17h0123456789abcdefE"
RAYON_LOOP = "_ZN10rayon_core8registry13ThreadBuilder3run17h0123456789abcdefE"
BODY = "_ZN2cv12WorkerThread11thread_bodyEv"
PARK = "_ZN5tokio7runtime9scheduler12multi_thread6worker7Context4park17h0123456789abcdefE"
EIGEN = "_ZN5Eigen15ThreadPoolTemplIN3tsl6thread16EigenEnvironmentEE11WaitForWorkEPNS_10EventCount6WaiterEPNS2_4TaskE"
ORT = "_ZN11onnxruntime11concurrency15ThreadPoolTemplINS_3EnvEE10WorkerLoopEi"
UV = "_ZN10tensorpipe25EventLoopDeferredExecutor4loopENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
FORKED = Outside(parent=7)


def sleeping(frames, **more):
    return Process({DATA: bytes(64)}).thread(2, frames, args=(DATA + 40, BITSET, 0), **more).thread(1, [LOOP], rax=0)


def inside(*names, library="app.so", behind=START):
    return [*COND, *((library, name) for name in names), *behind]


@pytest.mark.parametrize(
    ("frames", "pool"),
    [
        (inside(SLEEP, COLD, RAYON_LOOP), pools.RAYON),
        (inside(BODY, library="cv2.abi3.so"), pools.OPENCV),
        (inside(PARK), pools.TOKIO),
        (inside(EIGEN), pools.EIGEN),
        (inside(ORT, library="onnxruntime_pybind11_state.so"), pools.ONNXRUNTIME),
        (inside(UV, library="libtorch_cpu.so"), pools.TENSORPIPE),
        (inside("background_thread_entry", library="libjemalloc.so.2"), pools.JEMALLOC),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_idle_workers_by_their_functions(frames, pool):
    found = state_of(sleeping(frames).snapshot(2))
    assert (found.state, found.pool) == (RunState.IDLE, pool)
    inside_a_job = inside(SLEEP, COLD, *[None] * 4, RAYON_LOOP)
    assert state_of(sleeping(inside_a_job).snapshot(2)).pool is None


@pytest.mark.parametrize(
    ("library", "name", "pool"),
    [
        ("libjax_common.so", "tf_XLAEigen", pools.XLA),
        ("onnxruntime_pybind11_state.so", "python3", pools.ONNXRUNTIME),
        ("libjemalloc.so.2", "jemalloc_bg_thd", pools.JEMALLOC),
        ("_polars_runtime.abi3.so", "async-executor-", pools.POLARS),
        ("libjax_common.so", "python3", None),
        ("app.so", "tf_XLAEigen", None),
        ("app.so", None, None),
    ],
)
def test_idle_workers_of_libraries_without_names(library, name, pool):
    frames = inside(None, None, library=library, behind=[("libstdc++.so.6", None), *START])
    assert state_of(sleeping(frames, name=name).snapshot(2)).pool is pool
    deep = inside(*[None] * 12, library=library)
    assert state_of(sleeping(deep, name=name).snapshot(2)).pool is None, "it may be at work"
    with_another = inside(None, library=library, behind=[("libtorch_cpu.so", "f"), *START])
    assert state_of(sleeping(with_another, name=name).snapshot(2)).pool is None


def missing_in(library, *others, procfs=FORKED, **more):
    frames = [*COND, (library, None), (library, None), LOOP]
    process = Process({DATA: bytes(64)}).thread(1, frames, args=(DATA + 40, BITSET, 0))
    for each in others:
        process.thread(2, each, **more)
    return wait_of(process, procfs=procfs).detail.missing_workers


def test_workers_of_a_library_are_missing_after_fork():
    idle = inside(None, library="libjax_common.so")
    jemalloc = {"args": (DATA + 40, BITSET, 0), "name": "jemalloc_bg_thd"}
    assert missing_in("onnxruntime_pybind11_state.so") == MissingWorkers(pools.ONNXRUNTIME, forked=True)
    assert missing_in("onnxruntime_pybind11_state.so", procfs=NO_PROCFS) is None, "nothing shows a fork"
    assert missing_in("app.so") is None
    assert missing_in("libjax_common.so", idle) is None
    assert missing_in("libjax_common.so", idle, **jemalloc) == MissingWorkers(pools.XLA, forked=True), "another's"
