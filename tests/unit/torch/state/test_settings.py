"""Global settings: where they are read, and what is not believed."""

from __future__ import annotations

from typing import Any

import pytest

from gdbext.engine.arch import LoadedMember
from gdbext.engine.arch.architectures import by_name
from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import LayoutError
from gdbext.tools.info.settings_view import script
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.setting_sources import NOT_SHOWN, Setting, SettingsSection
from gdbext.torch.state.settings_reader import SettingsReader
from support.fakes.fake_target import FakeTarget

CONTEXT, GENERATOR, SYMBOLS = 0x100000, 0x200000, 0x400000
PAGE = 0x1000
FLAG = bytes.fromhex("0fb687f3030000c3")
"""movzbl 0x3f3(%rdi),%eax; ret"""
SEED = bytes.fromhex("488b4750c3")
"""mov 0x50(%rdi),%rax; ret"""


class Process:
    """A made-up process: every symbol has 16 bytes of its own, which a test may change."""

    def __init__(self) -> None:
        symbols = [source.symbol for source in sources.SETTINGS if source.symbol]
        symbols += [name for owner in (sources.CONTEXT, sources.GENERATOR) for name in (owner.variable, owner.guard)]
        self.addresses = {name: SYMBOLS + 16 * number for number, name in enumerate(symbols)}
        self.bytes = {each.symbol: FLAG if each.owner else bytes(16) for each in sources.SETTINGS if each.symbol}
        self.bytes["_ZNK2at16CPUGeneratorImpl12current_seedEv"] = SEED
        self.bytes[sources.GENERATOR.variable] = GENERATOR.to_bytes(8, "little")
        self.bytes[sources.CONTEXT.guard] = self.bytes[sources.GENERATOR.guard] = b"\1"
        self.addresses[sources.CONTEXT.variable] = CONTEXT
        self.structs: dict[str, StructLayout] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.absent: tuple[str, ...] = ()
        self.context = bytearray(PAGE)
        self.generator = bytearray(PAGE)

    def address_of(self, name: str, library: str) -> int | None:  # noqa: ARG002 - as Symbolizer
        return self.addresses.get(name)

    def has_struct(self, name: str) -> bool:
        return name in self.structs

    def struct(self, name: str) -> StructLayout:
        if name not in self.structs:
            raise LayoutError(f"the layout has no {name}")
        return self.structs[name]

    def enum(self, name: str) -> dict[str, int]:
        return self.enums[name]

    def dispatch(self, name: str) -> Any:
        assert name == "scalar_types"
        return [["Byte", 1], ["Float", 4], ["BFloat16", 2]]

    def read(self) -> dict[str, Setting]:
        page = bytearray(PAGE)
        for name, data in self.bytes.items():
            at = self.addresses[name] - SYMBOLS
            page[at : at + 16] = data.ljust(16, b"\xcc")
        memory = Memory(FakeTarget({CONTEXT: self.context, GENERATOR: self.generator, SYMBOLS: page}))
        reader = SettingsReader(memory, self, self)  # type: ignore[arg-type]
        return {setting.name: setting for setting in reader.read()}


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_member_is_where_its_accessor_loads_from_and_does_nothing_else(process: Process) -> None:
    assert process.read()["cudnn_benchmark"].value is False
    wrong = Setting("cudnn_benchmark", None, False, "cudnn_benchmark is 2, which is not a bool")
    for number, setting in ((1, Setting("cudnn_benchmark", True, False)), (2, wrong)):
        process.context[0x3F3] = number
        assert process.read()["cudnn_benchmark"] == setting
    process.generator[0x50:0x58] = (2**64 - 3).to_bytes(8, "little")
    assert process.read()["seed"].value == 2**64 - 3
    process.context[0x3F3] = 0
    for code, why in (("0fb687f303000090c3", "a plain load"), ("8b87f3030000c3", "4 bytes"), ("cc", "a plain load")):
        process.bytes["_ZNK2at7Context14benchmarkCuDNNEv"] = bytes.fromhex(code)
        found = process.read()
        assert (found["cudnn_benchmark"].value, found["cudnn_enabled"].value) == (None, False)
        assert why in found["cudnn_benchmark"].unknown


def test_an_object_that_does_not_exist_yet_and_symbols_that_are_not_there(process: Process) -> None:
    process.bytes[sources.CONTEXT.guard] = b"\0"
    assert process.read()["cudnn_benchmark"].unknown == "at::globalContext() was not used yet: its default applies"
    for name in (sources.CONTEXT.guard, "_ZN5torch8autograd11AnomalyMode8_enabledE"):
        del process.addresses[name], process.bytes[name]
    found = process.read()
    missing = "_ZGVZN2at13globalContextEvE14globalContext_ is not found in libtorch_cpu.so"
    assert found["cudnn_benchmark"].unknown == missing
    assert "AnomalyMode8_enabledE is not found" in found["anomaly_mode"].unknown
    assert found["anomaly_check_nan"].value is False


def test_numbers_of_threads_and_the_default_dtype(process: Process) -> None:
    for name, symbol, values in (
        ("num_interop_threads", "_ZN2at12_GLOBAL__N_119num_interop_threadsE", {7: 7, -1: "default", -2: None}),
        ("default_dtype", "_ZN3c10L27default_dtype_as_scalartypeE", {2: "torch.bfloat16", 3: None}),
    ):
        for number, value in values.items():
            process.bytes[symbol] = number.to_bytes(4, "little", signed=True)
            assert process.read()[name].value == value


def test_what_is_a_plain_load_on_x86_64() -> None:
    loads = {
        "0fb687f3030000c3": LoadedMember(0x3F3, 1),
        "f30f1efa0fb74705c3": LoadedMember(5, 2),
        "8b07c3": LoadedMember(0, 4),
        "488b47f8c3": LoadedMember(-8, 8),
        **dict.fromkeys(("488b87f3030000", "0f", ""), None),  # cut short
        **dict.fromkeys(("488b4650c3", "488b442408c3"), None),  # from the second argument, from the stack
        **dict.fromkeys(("488b4f50c3", "4c8b4750c3", "0fbe4750c3"), None),  # into other registers, signed
    }
    assert {code: by_name("x86_64").loaded_member(bytes.fromhex(code)) for code in loads} == loads


def struct(name: str, size: int, *fields: tuple[str, int, int]) -> StructLayout:
    return StructLayout(name, size, {each[0]: FieldLayout(*each) for each in fields})


def with_members(process: Process) -> None:
    """An at::Context with two members of an enumeration and a table of precisions."""
    matmul, reduction = ("float32_matmul_precision", 0x10, 4), ("allow_fp16_reduction_cublas", 0x18, 1)
    limit, precisions = ("benchmark_limit_cudnn", 0x14, 4), ("fp32_precision", 0x20, 56)
    entry = ("first.first", 0, 4), ("first.second", 4, 4), ("second", 8, 4)
    first, count = ("_M_h._M_before_begin", 16, 8), ("_M_h._M_element_count", 24, 8)
    process.structs = {
        "at::Context": struct("at::Context", PAGE, matmul, reduction, limit, precisions),
        "at::Context::fp32_precision.entry": struct("entry", 12, *entry),
        "std::unordered_map": struct("std::unordered_map", 56, first, count),
    }
    process.enums = {
        "at::Float32MatmulPrecision": {"HIGHEST": 0, "HIGH": 1, "MEDIUM": 2},
        "at::CuBLASReductionOption": {"AllowReducedPrecisionWithSplitK": 0, "DisallowReducedPrecisionAllowSplitK": 1},
        "at::Float32Backend": {"GENERIC": 0, "CUDA": 1, "MKLDNN": 2},
        "at::Float32Op": {"ALL": 0, "CONV": 1, "RNN": 2, "MATMUL": 3},
        "at::Float32Precision": {"NONE": 0, "IEEE": 1, "TF32": 2, "BF16": 3, "DEFAULT": 4},
    }


def with_precisions(process: Process, table: dict[tuple[int, int], int]) -> None:
    """Nodes of the table, 32 bytes each, behind the members."""
    node = 0x200
    process.context[0x20 + 24 : 0x20 + 32] = len(table).to_bytes(8, "little")
    link = 0x20 + 16
    for (backend, operation), precision in table.items():
        process.context[link : link + 8] = (CONTEXT + node).to_bytes(8, "little")
        for index, number in enumerate((backend, operation, precision)):
            process.context[node + 8 + 4 * index : node + 12 + 4 * index] = number.to_bytes(4, "little")
        link, node = node, node + 32
    process.context[link : link + 8] = bytes(8)


def test_members_without_an_accessor(process: Process) -> None:
    assert "the layout has no at::Context" in process.read()["float32_matmul_precision"].unknown
    with_members(process)
    process.context[0x10], process.context[0x14], process.context[0x18] = 2, 7, 1
    found = process.read()
    assert found["float32_matmul_precision"] == Setting("float32_matmul_precision", "medium", "highest")
    assert found["cudnn_benchmark_limit"].value == 7
    assert found["cublas_fp16_reduction"].value == (False, True)
    assert "nnpack_enabled" not in found, "this release has no such member"
    process.context[0x10] = 9
    assert process.read()["float32_matmul_precision"].unknown == "at::Float32MatmulPrecision has no value 9"
    process.absent = ("at::CuBLASReductionOption",)
    assert process.read()["cublas_fp16_reduction"].value is True, "it was a flag once"


def precisions(process: Process) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for key, value in process.read()["float32_precision"].value.items():
        found.setdefault(key.partition(".")[0], {})[key.partition(".")[2]] = value
    return found


def test_float32_precisions_follow_the_general_ones_and_a_table_that_makes_no_sense(process: Process) -> None:
    with_members(process)
    none, ieee, tf32, bf16, default = range(5)
    with_precisions(process, {(0, 0): none, (1, 0): none, (1, 1): default, (1, 3): ieee, (2, 0): none, (2, 3): none})
    cuda, mkldnn = {"all": "none", "conv": "tf32", "matmul": "ieee"}, {"all": "none", "matmul": "none"}
    assert precisions(process) == {"generic": {"all": "none"}, "cuda": cuda, "mkldnn": mkldnn}
    with_precisions(process, {(0, 0): bf16, (1, 0): none, (1, 1): default, (2, 0): tf32, (2, 3): none, (2, 1): bf16})
    cuda, mkldnn = {"all": "none", "conv": "none"}, {"all": "tf32", "conv": "bf16", "matmul": "tf32"}
    assert precisions(process) == {"generic": {"all": "bf16"}, "cuda": cuda, "mkldnn": mkldnn}
    for count in (1, 3, 1000):
        with_members(process)
        with_precisions(process, {(0, 0): 0, (1, 0): 0})
        process.context[0x20 + 24 : 0x20 + 32] = count.to_bytes(8, "little")
        found = process.read()["float32_precision"]
        assert found.value is None
        reason = "claims 1000 elements" if count == 1000 else f"does not have the {count} elements that it"
        assert reason in found.unknown
    with_precisions(process, {(0, 0): 0, (1, 0): 0})
    process.context[0x208] = 7
    assert "has the unknown value 7" in process.read()["float32_precision"].unknown


OF_2_9 = {
    "cuda": {"all": "bf16", "conv": "tf32", "matmul": "none", "rnn": "none"},
    "generic": {"all": "tf32"},
    "mkldnn": {"all": "none", "conv": "ieee", "matmul": "none", "rnn": "bf16"},
}


def with_texts(process: Process) -> None:
    """The same as in 2.9: a map of maps, each node the right child of the one before."""
    with_members(process)
    process.structs["std::string"] = StructLayout("std::string", 32, {})
    process.absent = ("at::Float32Backend", "at::Float32Op", "at::Float32Precision")
    nodes = iter(range(0x200, PAGE, 0x80))

    def tree(place: int, values: dict[str, Any]) -> None:
        word(place + 40, len(values))
        link = place + 16
        for key, value in values.items():
            node = next(nodes)
            word(link, CONTEXT + node)
            text(node + 32, key)
            (text if isinstance(value, str) else tree)(node + 64, value)
            link = node + 24

    def text(place: int, value: str) -> None:
        word(place, CONTEXT + place + 16)
        word(place + 8, len(value))
        process.context[place + 16 : place + 16 + len(value)] = value.encode()

    def word(place: int, number: int) -> None:
        process.context[place : place + 8] = number.to_bytes(8, "little")

    tree(0x20, OF_2_9)


def test_float32_precisions_as_texts(process: Process) -> None:
    with_texts(process)
    cuda = {"all": "none", "conv": "tf32", "matmul": "none", "rnn": "none"}
    mkldnn = {"all": "tf32", "conv": "ieee", "matmul": "tf32", "rnn": "bf16"}
    assert precisions(process) == {"generic": {"all": "tf32"}, "cuda": cuda, "mkldnn": mkldnn}
    process.context[:] = process.context.replace(b"ieee", b"iqqq")
    assert "does not have the entries" in process.read()["float32_precision"].unknown


def test_the_script(process: Process) -> None:
    process.bytes["_ZNK2at7Context14benchmarkCuDNNEv"] = b"\xcc"
    process.bytes["_ZN2at12_GLOBAL__N_111num_threadsE"] = b"\xff" * 4
    process.bytes["_ZN3c10L27default_dtype_as_scalartypeE"] = b"\1"
    process.context[0x3F3] = 1
    found = tuple(process.read().values())
    text = script(SettingsSection(found, {"OMP_NUM_THREADS": "2'\n"}))
    compile(text, "script", "exec")
    lines = text.splitlines()
    assert lines[3].startswith("os.environ.update({'OMP_NUM_THREADS': \"2'\\n\"})")
    assert "torch.use_deterministic_algorithms(True, warn_only=True)" in lines
    assert "torch.set_default_dtype(torch.float32)" in lines
    assert "# num_threads: not set" in lines
    unknown = tuple(
        Setting(name, None, None, "no\nimport os") for name in ("float32_precision", "dynamo", "default_device")
    )
    comments = [line for line in script(SettingsSection(unknown, {})).splitlines() if line.startswith("# ")]
    assert comments[1:] == [f"# {setting.name} is unknown: no\\nimport os" for setting in unknown]
    assert "# cudnn_benchmark is unknown: the accessor of cudnn_benchmark is not a plain load in this build" in lines


IN_A_MODE = {"autocast": {"cpu": "bfloat16"}, "torch_function_modes": ("AMode",)}
SET_AGAIN: dict[str, Any] = {
    "float32_precision": {"cuda.conv": "ieee", "cuda.all": "none", "generic.all": "tf32"},
    "dynamo": {"verbose": True, "hook": NOT_SHOWN, "a = 1\nimport os": 1},
    "inductor": {"cpp.threads": 1, "passes": ("a",), "options": {"x": {"level": 2}}, "bounds": (float("-inf"), 1.5)},
    "generators": ({"device": "cpu", "seed": 5}, {"device": "cuda:1", "seed": 7, "offset": 16}),
    "allocator": {"last_allocator_settings": "max_split_size_mb:64"},
    "record_function_callbacks": ({"start": "on_enter()\nimport os"},),
    "profiler": {"state": "KINETO_ONDEMAND"},
    "threads": (
        {"tid": 1, "name": "MainThread", "grad_mode": False, **IN_A_MODE},
        {"tid": 2, "name": "MainThread", "grad_mode": False},
    ),
    "default_device": "meta",
}


def test_the_script_sets_tables_threads_and_options_again() -> None:
    defaults = {"default_device": "cpu"}
    known = tuple(Setting(name, value, defaults.get(name)) for name, value in SET_AGAIN.items())
    text = script(SettingsSection(known, {}, cpu_state=b"\1\2", main_tid=1))
    compile(text, "script", "exec")
    lines = text.splitlines()
    precisions = [line.partition("(")[2] for line in lines if "fp32_precision" in line]
    assert precisions == ["'generic', 'all', 'tf32')", "'cuda', 'all', 'none')", "'cuda', 'conv', 'ieee')"]
    for line in (
        "torch._dynamo.config.verbose = True",
        "# torch._dynamo.config.hook is set to a value that has no literal",
        "# torch._dynamo.config.a = 1\\nimport os is set to a value that has no literal",
        "torch._inductor.config.cpp.threads = 1",
        "torch._inductor.config.passes = type(torch._inductor.config.passes or [])(['a'])",
        "torch._inductor.config.options = {'x': {'level': 2}}",
        """torch._inductor.config.bounds = type(torch._inductor.config.bounds or [])([float("-inf"), 1.5])""",
        'torch.set_rng_state(torch.frombuffer(bytearray.fromhex("0102"), dtype=torch.uint8))',
        "torch.cuda.default_generators[1].set_offset(16)",
        "    torch._C._accelerator_setAllocatorSettings('max_split_size_mb:64')",
        "# RecordFunction calls on_enter()\\nimport os in all threads",
        "torch.set_grad_enabled(False)",
        "    torch.set_autocast_dtype('cpu', torch.bfloat16)",
        "    torch.set_autocast_cpu_dtype(torch.bfloat16)",
        "# thread MainThread: torch_function_modes: ['AMode']",
        "# thread MainThread: grad_mode: False",
        "torch.set_default_device('meta')",
    ):
        assert line in lines
