"""Callbacks of RecordFunction, profilers and saved-tensor hooks, from made-up memory; threads of libraries."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import BadData
from gdbext.tools.info.library_settings import ThreadCounts
from gdbext.tools.info.recorded_functions import RecordedFunctions
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.torch_symbol import TorchSymbol
from support.fakes.fake_target import FakeTarget

PAGE, MANAGER, ENTRIES, CODE, THREAD = 0x1000, 0x10000, 0x11000, 0x12000, 0x13000
NODE, PARENT, PROFILER, OTHER, BLOCKS = 0x14000, 0x15000, 0x16000, 0x17000, 0x18000
FLAGS = ("report_input_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
STRUCTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "at::RecordFunctionCallbacksEntry": {"callback_": (0, 40), "handle_": (40, 8), "enabled_": (48, 1)},
    "at::RecordFunctionCallback": {"start_": (0, 8), "end_": (8, 8), "sampling_prob_": (16, 8), "scopes_": (24, 3)},
    "at::RecordFunctionTLS": {"sorted_tls_callbacks_": (0, 24)},
    "c10::ThreadLocalDebugInfo": {"info_": (0, 16), "parent_info_": (24, 16)},
    "torch::profiler::impl::ProfilerStateBase": {"config_": (48, 64)},
    "torch::profiler::impl::ProfilerConfig": {"state": (0, 4), **{name: (8 + at, 1) for at, name in enumerate(FLAGS)}},
    "at::impl::SavedTensorDefaultHooksTLS": {"stack": (0, 80), "disabled_error_message": (80, 40)},
    "c10::SafePyObject": {"data_": (0, 8)},
    "std::string": {},
    "std::deque": {
        "_M_impl._M_start._M_cur": (16, 8),
        "_M_impl._M_start._M_last": (32, 8),
        "_M_impl._M_start._M_node": (40, 8),
        "_M_impl._M_finish._M_cur": (48, 8),
    },
}
SIZES = {"at::RecordFunctionCallbacksEntry": 56, "c10::SafePyObject": 16, "std::string": 32}
ENUMS = {
    "at::RecordScope": {"FUNCTION": 0, "BACKWARD_FUNCTION": 1, "USER_SCOPE": 2, "NUM_SCOPES": 3},
    "torch::profiler::impl::ProfilerState": {"Disabled": 0, "CPU": 1, "KINETO": 6},
}
KINETO, MOBILE = "_ZTVN5torch8autograd8profiler12_GLOBAL__N_122KinetoThreadLocalStateE", "_ZTVN5torch15MobileDebugInfoE"


class Process:
    """Symbols, layout and the variables of one thread at once."""

    def __init__(self, regions: dict[int, bytes]) -> None:
        self.memory = Memory(FakeTarget({at: content.ljust(PAGE, b"\0") for at, content in regions.items()}))
        self.variables: dict[str, int] = {}
        self.reader = RecordedFunctions(self.memory, self, self)  # type: ignore[arg-type]

    def struct(self, name: str) -> StructLayout:
        fields = {each: FieldLayout(each, *at) for each, at in STRUCTS[name].items()}
        return StructLayout(name, SIZES.get(name, 0), fields)

    def enum(self, name: str) -> dict[str, int]:
        return ENUMS[name]

    def address_of(self, name: str, library: str) -> int | None:  # noqa: ARG002 - as Symbolizer
        return MANAGER if name == sources.CALLBACKS else None

    def function(self, address: int) -> Any:
        return SimpleNamespace(demangled=("on_enter()",)) if address == CODE else None

    def names_at(self, address: int) -> tuple[str, ...]:
        return {CODE: (KINETO,), CODE + 64: (MOBILE,)}.get(address, ())

    def address(self, variable: TorchSymbol) -> int | None:
        return self.variables.get(variable.names[0])


def entry(start: int, enabled: bool, probability: float = 1.0) -> bytes:
    return struct.pack("<QQd3?13xQ?7x", start, 0, probability, True, False, True, 1, enabled)


def test_callbacks_of_all_threads() -> None:
    entries = entry(CODE, True) + entry(0x999, False, 0.25)
    vector = struct.pack("<QQQQ", 3, ENTRIES, ENTRIES + 112, ENTRIES + 112)
    found = Process({MANAGER: vector, ENTRIES: entries}).reader.global_callbacks()
    scopes = ("FUNCTION", "USER_SCOPE")
    assert found == (
        {"start": "on_enter()", "end": None, "enabled": True, "sampling": 1.0, "scopes": scopes},
        {"start": "0x999", "end": None, "enabled": False, "sampling": 0.25, "scopes": scopes},
    )


def test_callbacks_of_a_thread_that_has_none() -> None:
    process = Process({THREAD: bytes(8) + b"\1"})
    assert process.reader.thread_callbacks(process) == ()  # type: ignore[arg-type]
    process.variables[sources.THREAD_CALLBACKS_GUARD.names[0]] = THREAD  # its guard is not set
    process.variables[sources.THREAD_CALLBACKS.names[0]] = 0x666
    assert process.reader.thread_callbacks(process) == ()  # type: ignore[arg-type]


def test_a_profiler_in_a_chain_of_debug_info() -> None:
    config = struct.pack("<I4x5?", 6, True, False, True, False, False)
    regions = {THREAD: struct.pack("<QQ", 1, NODE), NODE: struct.pack("<QQQQ", OTHER, 0, 0, PARENT)}
    regions |= {PARENT: struct.pack("<QQQQ", PROFILER, 0, 0, 0), OTHER: struct.pack("<Q", CODE + 80)}
    process = Process({**regions, PROFILER: struct.pack("<Q", CODE + 16) + bytes(40) + config})
    process.variables = {sources.DEBUG_INFO_GUARD.names[0]: THREAD, sources.DEBUG_INFO.names[0]: THREAD + 8}
    settings = dict(zip(FLAGS, (True, False, True, False, False)))
    assert process.reader.profiler(process) == {"state": "KINETO", **settings}  # type: ignore[arg-type]


def test_saved_tensor_hooks_of_several_blocks() -> None:
    """Sixteen pairs of 32 bytes fill a block of 512."""
    blocks = [BLOCKS + 0x400, BLOCKS + 0x800]
    content = bytearray(PAGE)
    struct.pack_into("<QQ", content, 0, *blocks)
    for number in range(18):
        at = blocks[number // 16] - BLOCKS + 32 * (number % 16)
        struct.pack_into("<QQQQ", content, at, 0x100 + number, 1, 0x200 + number, 1)
    first, last = blocks
    start, finish = (first, first, first + 512, BLOCKS), (last + 64, last, last + 512, BLOCKS + 8)
    deque = struct.pack("<10Q", BLOCKS, 8, *start, *finish)
    process = Process({THREAD: deque + bytes(32) + b"\1", BLOCKS: bytes(content)})
    assert process.reader.saved_tensor_hooks(process) == ()  # type: ignore[arg-type]
    process.variables = {sources.SAVED_TENSOR_HOOKS.names[0]: THREAD}
    expected = tuple((0x100 + number, 0x200 + number) for number in range(18))
    assert process.reader.saved_tensor_hooks(process) == expected  # type: ignore[arg-type]
    assert process.reader.saved_tensor_hooks_disabled(process) is True  # type: ignore[arg-type]


def test_saved_tensor_hooks_without_their_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.5 a pair is two pointers."""
    stack = (0, 80, "std::stack<std::pair<_object*, _object*>, std::deque<std::pair<_object*, _object*>>>")
    monkeypatch.setitem(STRUCTS["at::impl::SavedTensorDefaultHooksTLS"], "stack", stack)
    block = (ENTRIES, ENTRIES + 512, BLOCKS)
    deque = struct.pack("<10Q", BLOCKS, 8, ENTRIES, *block, ENTRIES + 32, *block)
    process = Process({THREAD: deque, BLOCKS: struct.pack("<Q", ENTRIES), ENTRIES: struct.pack("<4Q", 1, 2, 3, 4)})
    process.variables = {sources.SAVED_TENSOR_HOOKS.names[0]: THREAD}
    assert process.reader.saved_tensor_hooks(process) == ((1, 2), (3, 4))  # type: ignore[arg-type]


GETTER = bytes.fromhex("f30f1efa488b052dab220064488b50504885d2488d8290000000488d15afab2200480f44c2488b00c3")
"""omp_get_max_threads of libgomp, whose slot is at +0x22ab38 and whose global object at +0x22abd0."""


def counts(names: dict[str, int], regions: dict[int, bytes], *libraries: str) -> ThreadCounts:
    modules = SimpleNamespace(modules=[SimpleNamespace(name=name) for name in libraries])
    symbols = SimpleNamespace(modules=modules, address_of=lambda name, _: names.get(name))
    memory = Memory(FakeTarget({at: content.ljust(PAGE, b"\0") for at, content in regions.items()}))
    return ThreadCounts(memory, symbols)  # type: ignore[arg-type]


def openmp(task: int) -> ThreadCounts:
    base = 0x400000
    data = bytearray(PAGE)
    struct.pack_into("<q", data, 0xB38, -0x80)
    struct.pack_into("<Q", data, 0xBD0, 4)
    own = bytes(0x30) + struct.pack("<Q", task)  # -0x80 + 0x50 from the thread pointer
    regions = {base: GETTER, base + 0x22A000: bytes(data)}
    regions |= {THREAD: bytes(0x50) + own, NODE: bytes(0x90) + struct.pack("<Q", 7)}
    return counts({sources.OPENMP_THREADS: base}, regions, "libgomp-a34b3233.so.1")


def test_threads_of_openmp() -> None:
    assert openmp(NODE).openmp(THREAD + 0xB0) == 7, "what this thread has set"
    assert openmp(0).openmp(THREAD + 0xB0) == 4, "what holds for all others"
    with pytest.raises(BadData, match="has not loaded a library libgomp"):
        counts({}, {}, "libiomp5.so").openmp(THREAD)


def test_threads_of_mkl_and_openblas() -> None:
    names = {sources.MKL_READY: CODE, sources.MKL_THREADS: CODE + 8, sources.MKL_DYNAMIC: CODE + 12}
    names |= {sources.OPENBLAS_READY: CODE + 16, sources.OPENBLAS_THREADS: CODE + 20}
    found = counts(names, {CODE: struct.pack("<QiiII", 1, 3, 0, 2, 8)}, "libscipy_openblas64_.so")
    assert (found.mkl(), found.mkl_dynamic(), found.openblas()) == (3, False, 8)
    nobody = counts(names, {CODE: struct.pack("<QiiII", 1, -1, 1, 0, 0)}, "libscipy_openblas64_.so")
    assert (nobody.mkl(), nobody.mkl_dynamic()) == ("default", True)
    with pytest.raises(BadData, match="OpenBLAS was not used yet"):
        nobody.openblas()
    with pytest.raises(BadData, match="MKL was not used yet"):
        counts(names, {CODE: bytes(24)}).mkl()
    with pytest.raises(BadData, match="there is no MKL"):
        counts({}, {}).mkl()
