"""The text of every view, word for word: tests/golden/*.txt, of recorded processes and of reports made here.

When a text is meant to change: pytest tests/unit --update-golden, then read what git shows to have changed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import contract_schema
import made_autograd
import made_compile
import made_tensors
import pytest
from recordings import Replay

from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.dispatch.dispatch_frame import DispatchStage
from gdbext.model.ending import Ending, EndingKind
from gdbext.model.error_report import ErrorReport
from gdbext.model.hexadecimal import Hexadecimal
from gdbext.model.report import Report
from gdbext.model.sections.breaks_section import BreakRequest, BreaksSection, PlacedBreakpoint, RequestedBreakpoints
from gdbext.model.sections.frames_section import FramesSection
from gdbext.model.sections.latency_section import LatencyBucket, LatencyRow, LatencySection
from gdbext.model.sections.memory_section import CudaMemory, HeldMemory, LargeStorage, MemorySection
from gdbext.model.sections.settings_section import Setting, SettingsSection
from gdbext.model.sections.top_section import TopRow, TopSection
from gdbext.model.sections.trace_section import InnermostStep, OpenDispatch, OpenThread, TraceSection
from gdbext.model.sections.values_section import ValuesSection
from gdbext.render.json import json_report
from gdbext.render.text import text_report

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
VIEWS = Path(text_report.__file__).parent / "views"

RECORDED = {
    "diagnose-meta-mm": ("meta-mm", "dispatch-diagnose"),
    "diagnose-why-gil-mutex": ("gil-mutex", "dispatch-diagnose", "--why"),
    "diagnose-boxed-recursion": ("boxed-recursion", "dispatch-diagnose"),
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
    r"\n  recording: not in the recording: [^\n]*\n[^\n]*(?=\n$)"
)
"""What a report says of a recording that was made before the code read as much as now."""
ENDING = Ending(EndingKind.EXITED, "the process exited with status 0")
OPEN = OpenThread(
    7,
    (OpenDispatch("call", "aten::mm", "Meta", "entered"),),
    InnermostStep(DispatchEvent.CALL, "aten::mm", None, DispatchStage.IN_KERNEL, "meta_mm"),
    "the kernel has not returned",
)
TRACE_OPEN = TraceSection(
    3, ("aten::mm",), 9, ENDING, (OPEN,), notes=("2 stops were not understood",), output="trace.json"
)
REQUESTED = RequestedBreakpoints(
    BreakRequest("kernel", ("mm", "bm\x1bm"), key="CPU", go_on=True),
    (
        PlacedBreakpoint(1, "", 0, waits_for="an operator is registered"),
        PlacedBreakpoint(2, "aten::mm call", 0),
        PlacedBreakpoint(3, "at::native::mm", 4, 0x1000, "aten::mm", "kernel", "key == 1"),
    ),
)
TOP = (
    TopRow("aten::add", "Tensor", "call", None, "CPU", "at::native::add", None, None, 2400, 1200.0),
    TopRow("mine::o\x1bdd", "", "redispatch", None, None, None, None, None, 66, 33.04, "no kernel"),
)
LATENCIES = (
    LatencyRow(
        "aten::mm", "", "call", None, "CPU", "mm\x1b[1m", 7, 1, 3.5, 4.096, 2000.0, 3e6,
        (LatencyBucket(1.024, 1.28, 1), LatencyBucket(1.792, 2.048, 2), LatencyBucket(8.192, 10.24, 4)),
    ),
    LatencyRow(None, None, None, None, None, None, 0, 2, None, None, None, None, ()),
)  # fmt: skip
TOP_THREADS = (TopRow(None, None, None, None, None, None, 7, "python3", 3, 1.5),)
GONE = ErrorReport("a function is gone", "breakpoint 2", "set it again", "the library was unloaded")
MEMORY = MemorySection(
    objects=250_000,
    tensors=30,
    storages=29,
    bytes=3_000_100,
    held=(HeldMemory("float32", "cpu", 28, 3_000_000), HeldMemory("int64", "cuda:0", 1, 100)),
    largest=(
        LargeStorage(Hexadecimal(0x1000), 2_097_152, "f32[512, 1024] CPU", "Lin\x1bear.weight"),
        LargeStorage(Hexadecimal(0x2000), 100, "i64[4] CUDA", ""),
    ),
    truncated=("Python objects, truncated at 250000",),
    problems=("3 tensors without a storage that can be read",),
    cuda=(CudaMemory(1, {"allocated_bytes.all.current": 2_097_152, "allocated_bytes.all.peak": 4_194_304,
                         "segment.all.current": 2, "num_ooms": 1}),),
)  # fmt: skip
SETTINGS = SettingsSection(
    (
        Setting("deterministic_algorithms", True, False),
        Setting("num_threads", 4, "default"),
        Setting("seed", 1234),
        Setting("anomaly_mode", False, False),
        Setting("num_interop_threads", None, "default", "the pool runs, and has no threads"),
        Setting("float32_precision", {"cuda.conv": "ieee", "cuda.all": "none"},
                {"cuda.conv": "tf32", "cuda.all": "none"}),
        Setting("generators", ({"device": "cpu", "seed": 5, "drawn": None},)),
        Setting("inductor", {}, {}),
        Setting("threads", (
            {"tid": 7, "name": "Ma\x1bin", "autocast": {"cpu": "bfloat16"}, "unknown": ("profiler: no\x1b",)},
            {"tid": 8, "name": "worker", "unknown": ("profiler: no\x1b", "grad_mode: damaged")},
            {"unknown": ("7 threads more",)},
        ), ()),
    ),
    {"OMP_NUM_THREADS": "4"}, "again.py",
)  # fmt: skip
MADE = {
    "values-saved": Report(
        "dispatch-values", None, "values",
        sections=(ValuesSection("save", 2, ENDING, ("prims::cat is not watched",), "out", 4),),
    ),
    "tensor-floats": Report("dispatch-tensor", None, "tensor", sections=(made_tensors.FLOATS,)),
    "tensor-odd": Report("dispatch-tensor", None, "tensor", sections=(made_tensors.ODD,)),
    "memory": Report("dispatch-info", None, "memory", sections=(MEMORY,)),
    "compile-used": Report("dispatch-compile", None, "compile", sections=(made_compile.USED,)),
    "compile-imported": Report("dispatch-compile", None, "compile", sections=(made_compile.IMPORTED,)),
    "compile-unused": Report("dispatch-compile", None, "compile", sections=(made_compile.UNUSED,)),
    "compile-unknown": Report("dispatch-compile", None, "compile", sections=(made_compile.UNKNOWN,)),
    "compile-disabled": Report("dispatch-compile", None, "compile", sections=(made_compile.DISABLED,)),
    "bt-backward": Report("dispatch-bt", None, "bt", threads=(made_autograd.BACKWARD,)),
    "autograd-busy": Report("dispatch-autograd", None, "autograd", sections=(made_autograd.BUSY,)),
    "autograd-quiet": Report("dispatch-autograd", None, "autograd", sections=(made_autograd.QUIET,)),
    "settings": Report("dispatch-info", None, "settings", sections=(SETTINGS,)),
    "trace-open": Report("dispatch-trace", None, "trace", sections=(TRACE_OPEN,)),
    "trace-one": Report(
        "dispatch-trace", None, "trace", sections=(TraceSection(1, (), 1, Ending(EndingKind.ASKED, "")),)
    ),
    "top-operators": Report(
        "dispatch-top", None, "top", sections=(TopSection(2.0, "probes", 2466, 7, 3, TOP, 5, unseen=8),)
    ),
    "top-threads": Report("dispatch-top", None, "top", sections=(TopSection(2.0, "probes", 3, 0, 3, TOP_THREADS),)),
    "latency-two": Report(
        "dispatch-top", None, "latency", sections=(LatencySection(2.0, "probes", 1, 9, LATENCIES, 4),)
    ),
    "frames-on": Report("dispatch-frames", None, "frames", sections=(FramesSection(True),)),
    "top-nothing": Report("dispatch-top", None, "top", sections=(TopSection(2.0, "probes", 0, 0, 3, ()),)),
    "breaks-all": Report(
        "dispatch-break", None, "breaks",
        sections=(BreaksSection((REQUESTED,), ("aten::mm_ is not registered yet",)),),
    ),
    "breaks-deleted": Report(
        "dispatch-break", None, "breaks", errors=(GONE,), sections=(BreaksSection((), deleted=2, ending=ENDING),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_the_text_of_a_recorded_process(name: str, update_golden: bool) -> None:
    recording, command, *words = RECORDED[name]
    compare(name, LACKS.sub("", Replay(recording).text(command, *words)), update_golden)


@pytest.mark.parametrize("name", MADE)
def test_the_text_of_a_report_made_here(name: str, update_golden: bool) -> None:
    compare(name, text_report.render(MADE[name]), update_golden)


@pytest.mark.parametrize("name", MADE)
def test_the_document_of_a_report_made_here(name: str) -> None:
    contract_schema.check(json_report.document(MADE[name]))


def compare(name: str, text: str, update: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"there is no {path.name}: pytest --update-golden makes it"
    assert text == path.read_text()


def test_every_view_has_a_text_and_every_text_a_test() -> None:
    views = {path.stem.removesuffix("_view") for path in VIEWS.glob("*_view.py")}
    names = {*RECORDED, *MADE}
    assert views <= {name.split("-")[0] for name in names}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == names


def test_nothing_in_a_text_is_a_place_of_this_machine() -> None:
    for path in GOLDEN.glob("*.txt"):
        text: Any = path.read_text()
        assert str(Path(__file__).resolve().parents[4]) not in text, path.name
