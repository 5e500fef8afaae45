"""The text of every view, word for word: tests/golden/*.txt, of recorded processes and of reports made here.

When a text is meant to change: pytest tests/unit --update-golden, then read what git shows to have changed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.commands import bt
from gdbext.diagnosis.report import Ending, EndingKind, Report, Section, json_report, render_text
from gdbext.engine.vocabulary import ErrorReport
from gdbext.tools import breaks, frames
from gdbext.tools import compile as compilation
from gdbext.tools.autograd import autograd
from gdbext.tools.breaks.breaks_section import BreakRequest, BreaksSection, PlacedBreakpoint, RequestedBreakpoints
from gdbext.tools.frames import FramesSection
from gdbext.tools.info import held_memory, settings_view
from gdbext.tools.info.held_memory import HeldMemory, LargeStorage, MemorySection
from gdbext.tools.probes import latency_meter, top_view
from gdbext.tools.probes.latency_meter import LatencyBucket, LatencyRow, LatencySection
from gdbext.tools.probes.summary import DispatchSubject, TopRow, TopSection
from gdbext.tools.tensor import tensor_section
from gdbext.tools.trace import trace_section
from gdbext.tools.trace.trace_section import InnermostStep, OpenDispatch, OpenThread, TraceSection
from gdbext.tools.values import values_section
from gdbext.tools.values.values_section import ValuesSection
from gdbext.torch.stack import DispatchEvent, DispatchStage
from gdbext.torch.state.cuda_state import CudaMemory
from gdbext.torch.state.setting_sources import Setting, SettingsSection
from support.fakes import made_autograd, made_compile, made_tensors
from support.recorded.recordings import Replay
from support.source import contract_schema

GOLDEN = Path(__file__).resolve().parents[2] / "golden"

RECORDED = {
    "diagnose-meta-mm": ("meta-mm", "dispatch-diagnose"),
    "diagnose-why-gil-mutex": ("gil-mutex", "dispatch-diagnose", "--why"),
    "diagnose-boxed-recursion": ("boxed-recursion-kernel-300", "dispatch-diagnose"),
    "diagnose-kernel-crash": ("kernel-crash", "dispatch-diagnose"),
    "diagnose-dataloader": ("dataloader", "dispatch-diagnose"),
    "diagnose-missing-kernel": ("missing-kernel", "dispatch-diagnose"),
    "diagnose-fork-mutex": ("fork-mutex", "dispatch-diagnose"),
    "diagnose-gloo-mismatch": ("gloo-mismatch", "dispatch-diagnose"),
    "diagnose-python-lock-abba": ("python-lock-abba", "dispatch-diagnose"),
    "diagnose-idle": ("idle", "dispatch-diagnose"),
    "collectives-gloo-mismatch": ("gloo-mismatch", "dispatch-collectives"),
    "bt-meta-mm": ("meta-mm", "dispatch-bt"),
    "bt-why-meta-mm": ("meta-mm", "dispatch-bt", "--all", "--why"),
    "bt-native-nested-normal": ("nested-normal", "dispatch-bt", "--all", "--native"),
    "threads-waits": ("waits", "all-threads"),
    "threads-stacks-gil-mutex": ("gil-mutex", "all-threads", "--stacks"),
    "tls-meta-mm": ("meta-mm", "dispatch-tls"),
    "info-meta-mm": ("meta-mm", "dispatch-info"),
    "op-meta-mm": ("meta-mm", "dispatch-op", "aten::mm"),
    "lookup-meta-mm": ("meta-mm", "dispatch-lookup", "aten::mm", "Meta,AutogradMeta"),
    "keyset-meta-mm": ("meta-mm", "dispatch-keyset", "Meta,AutogradMeta"),
}
"""Name of the text → recording, command and its words."""

LACKS = re.compile(
    r"(\n\nCould not be read:(?=\n  recording: [^\n]*\n[^\n]*\n$))?"
    r"\n  recording: it lacks [^\n]*\n[^\n]*(?=\n$)"
)
"""What a report says of a recording that was made before the code read as much as now."""
ENDING = Ending(EndingKind.EXITED, "the process exited with status 0")
INNERMOST = InnermostStep(DispatchEvent.CALL, "aten::mm", None, DispatchStage.IN_KERNEL, "meta_mm")
OPENED = (OpenDispatch("call", "aten::mm", "Meta", "entered"),)
OPEN = OpenThread(7, OPENED, INNERMOST, "the kernel has not returned")
NOTES = ("2 stops were not understood",)
TRACE_OPEN = TraceSection(3, ("aten::mm",), 9, ENDING, (OPEN,), notes=NOTES, output="trace.json")
REQUESTED = RequestedBreakpoints(
    BreakRequest("kernel", ("mm", "bm\x1bm"), key="CPU", continue_=True),
    (
        PlacedBreakpoint(1, None, None, None, "", "an operator is registered"),
        PlacedBreakpoint(2, None, None, None, "aten::mm call"),
        PlacedBreakpoint(3, 0x1000, "aten::mm", "kernel", "at::native::mm", None, "key == 1", 4),
    ),
)
MM = DispatchSubject("aten::mm", "", "call", None, "CPU", "mm\x1b[1m")
UNKNOWN = DispatchSubject(None, None, None, None, None, None)
TOP = (
    TopRow(DispatchSubject("aten::add", "Tensor", "call", None, "CPU", "at::native::add"), None, None, 2400, 1200.0),
    TopRow(DispatchSubject("mine::o\x1bdd", "", "redispatch", None, None, None), None, None, 66, 33.04, "no kernel"),
)
BUCKETS = (LatencyBucket(1.024, 1.28, 1), LatencyBucket(1.792, 2.048, 2), LatencyBucket(8.192, 10.24, 4))
LATENCIES = (
    LatencyRow(MM, 7, 1, 3.5, 4.096, 2000.0, 3e6, BUCKETS),
    LatencyRow(UNKNOWN, 0, 2, None, None, None, None, ()),
)
UNSEEN_IN = ("7 in libtorch_cpu.so", "1 in ops.so")
TOP_THREADS = (TopRow(UNKNOWN, 7, "python3", 3, 1.5),)
GONE = ErrorReport("a function is gone", "breakpoint 2", "set it again", "the library was unloaded")
ALLOCATED = {"allocated_bytes.all.current": 2_097_152, "allocated_bytes.all.peak": 4_194_304}
ALLOCATED |= {"segment.all.current": 2, "num_ooms": 1}
MEMORY = MemorySection(
    objects=250_000,
    tensors=30,
    storages=29,
    bytes=3_000_100,
    held=(HeldMemory("float32", "cpu", 28, 3_000_000), HeldMemory("int64", "cuda:0", 1, 100)),
    largest=(
        LargeStorage(0x1000, 2_097_152, "f32[512, 1024] cpu", "Lin\x1bear.weight"),
        LargeStorage(0x2000, 100, "i64[4] cuda", ""),
    ),
    truncated=("Python objects, truncated at 250000",),
    problems=("the storage of 3 tensors",),
    cuda=(CudaMemory(1, ALLOCATED),),
)
IEEE, TF32 = ({"cuda.conv": precision, "cuda.all": "none"} for precision in ("ieee", "tf32"))
SETTINGS = SettingsSection(
    (
        Setting("deterministic_algorithms", True, False),
        Setting("num_threads", 4, "default"),
        Setting("seed", 1234),
        Setting("anomaly_mode", False, False),
        Setting("num_interop_threads", None, "default", "the pool runs, and has no threads"),
        Setting("float32_precision", IEEE, TF32),
        Setting("generators", ({"device": "cpu", "seed": 5, "drawn": None},)),
        Setting("inductor", {}, {}),
        Setting(
            "threads",
            (
                {"tid": 7, "name": "Ma\x1bin", "autocast": {"cpu": "bfloat16"}, "unknown": ("profiler: no\x1b",)},
                {"tid": 8, "name": "worker", "unknown": ("profiler: no\x1b", "grad_mode: damaged")},
                {"unknown": ("7 threads more",)},
            ),
            (),
        ),
    ),
    {"OMP_NUM_THREADS": "4"},
    "again.py",
)


def made(command: str, view: Any, *sections: Section, **more: Any) -> Report:
    """``view``: a module with render(), or a tool with view()."""
    render = getattr(view, "render", None) or view.view
    return Report(f"dispatch-{command}", None, render, sections=sections, **more)


def top(*facts: Any, **more: Any) -> Report:
    return made("top", top_view, TopSection(2.0, "probes", *facts, **more))


DELETED = BreaksSection((), deleted=2, ending=ENDING)
ONE_TRACED = TraceSection(1, (), 1, Ending(EndingKind.ASKED, ""))
SAVED = ValuesSection("save", 2, ENDING, ("prims::cat is not watched",), "out", 4)
MADE = {
    "values-saved": made("values", values_section, SAVED),
    "tensor-floats": made("tensor", tensor_section, made_tensors.FLOATS),
    "tensor-odd": made("tensor", tensor_section, made_tensors.ODD),
    "memory": made("info", held_memory, MEMORY),
    "compile-used": made("compile", compilation.CompileTool(), made_compile.USED),
    "compile-imported": made("compile", compilation.CompileTool(), made_compile.IMPORTED),
    "compile-unused": made("compile", compilation.CompileTool(), made_compile.UNUSED),
    "compile-unknown": made("compile", compilation.CompileTool(), made_compile.UNKNOWN),
    "compile-disabled": made("compile", compilation.CompileTool(), made_compile.DISABLED),
    "bt-backward": made("bt", bt, threads=(made_autograd.BACKWARD,)),
    "autograd-busy": made("autograd", autograd.AutogradTool(), made_autograd.BUSY),
    "autograd-quiet": made("autograd", autograd.AutogradTool(), made_autograd.QUIET),
    "settings": made("info", settings_view, SETTINGS),
    "trace-open": made("trace", trace_section, TRACE_OPEN),
    "trace-one": made("trace", trace_section, ONE_TRACED),
    "top-operators": top(2466, 7, 3, TOP, 5, unseen=8, unseen_in=UNSEEN_IN),
    "top-unseen": top(0, 0, 3, (), unseen=2, unseen_in=("2 in ops.so",)),
    "top-threads": top(3, 0, 3, TOP_THREADS),
    "top-nothing": top(0, 0, 3, ()),
    "latency-two": made("top", latency_meter, LatencySection(2.0, "probes", 1, 9, LATENCIES, 4)),
    "frames-on": made("frames", frames, FramesSection(True)),
    "breaks-all": made("break", breaks, BreaksSection((REQUESTED,), ("aten::mm_ is not registered yet",))),
    "breaks-deleted": made("break", breaks, DELETED, errors=(GONE,)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_text_of_a_recorded_process(name: str, update_golden: bool) -> None:
    recording, command, *words = RECORDED[name]
    compare(name, LACKS.sub("", Replay(recording).text(command, *words)), update_golden)


@pytest.mark.parametrize("name", MADE)
def test_the_text_and_the_document_of_a_report_made_here(name: str, update_golden: bool) -> None:
    compare(name, render_text(MADE[name]), update_golden)
    contract_schema.check(json_report.document(MADE[name]))


def compare(name: str, text: str, update: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"there is no {path.name}: pytest --update-golden makes it"
    assert text == path.read_text()
