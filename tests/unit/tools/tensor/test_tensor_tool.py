"""dispatch-tensor on a recorded process: paths of variables, types of C++, and what is no tensor."""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.cpython.objects.py_space import PySpace
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.engine.layouts.store import load, of_release
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, TargetError, UsageError
from gdbext.tools.tensor.contents import Geometry, NothingToRead
from gdbext.tools.tensor.cpp_object import SUMMARIZED_TYPES, CppObject, summarized_type
from gdbext.tools.tensor.cpp_summaries import TypeSummaries
from gdbext.tools.tensor.elements import element_type
from gdbext.tools.tensor.python_variable import Step, VariableFinder, chosen_frames, hint_at, parse
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.tools.tensor.tensor_report import check_channels, check_shape, check_storage
from gdbext.tools.values.launch import BEFORE, KernelLaunch
from gdbext.tools.values.values_section import ValueFiles
from gdbext.torch.values.value_text import Quantization, StorageReport
from support.fakes.fake_target import FakeTarget
from support.fakes.own_python import own_python
from support.recorded.recordings import Replay


@pytest.fixture(scope="module")
def hung() -> Replay:
    return Replay("meta-mm")


STORAGE = StorageReport(0x500, 0x1000, 16, "cpu", 1)


def geometry(*sizes: int, strides: tuple[int, ...] = (), start: int = 0x1000) -> Geometry:
    element = element_type("float32", 4)
    assert element is not None
    return Geometry(start, sizes, strides or tuple(1 for _ in sizes), element)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0x10",), "the address is not mapped"),
        (("nonsense",), "is not an address"),
        (("--py", "nonsense"), "there is no Python variable 'nonsense'"),
        ((), "give one address or expression"),
        (("0x10", "--py", "x"), "give one address or expression"),
    ],
)
def test_what_is_no_tensor(hung: Replay, words: tuple[str, ...], said: str) -> None:
    outcome = hung.run("dispatch-tensor", *words)
    assert outcome.status != 0
    assert said in (outcome.error or "")
    operator = hung.session.dispatcher.find_one("aten::mm")
    assert "there is no tensor at" in (hung.run("dispatch-tensor", f"{operator.address:#x}").error or "")


def names_of_dimensions(extra: int, meta: int, names: bytes = b"", release: str = "2.12.1") -> Any:
    """What is read of a tensor whose extra data, and in it those of its names, are there."""
    layout = load(of_release(release)[0])
    field = layout.struct("c10::ExtraMeta").fields.get("named_tensor_meta_")
    end = 0x40000 + len(names)
    regions = {
        0x10000: bytes(layout.struct("c10::TensorImpl").offset("extra_meta_")) + struct.pack("<Q", extra),
        0x20000: bytes(field.offset if field is not None else 0) + struct.pack("<Q", meta),
        0x30000: struct.pack("<8x3Q", 0x40000, end, end),
        0x40000: names,
    }
    memory = Memory(FakeTarget({start: raw.ljust(0x1000, b"\0") for start, raw in regions.items()}))
    return TensorFields(memory, layout, None).dimension_names(0x10000)  # type: ignore[arg-type]


def test_names_of_dimensions() -> None:
    names = struct.pack("<4I", 0x1C000005, 0, 0, 1)
    assert names_of_dimensions(0x20000, 0x30000, names) == (0x1C000005, None)
    assert names_of_dimensions(0, 0x30000) is names_of_dimensions(0x20000, 0) is None
    assert names_of_dimensions(0x20000, 0x30000, release="2.13.0") is None, "its tensors have none"
    with pytest.raises(BadData):
        names_of_dimensions(0x20000, 0x30000, bytes(8 * 65))


def test_sizes_strides_and_scales_that_cannot_be() -> None:
    check_storage(geometry(4), STORAGE, 0)
    for torn in (geometry(5), geometry(2, strides=(4,)), geometry(1, start=0xFFC), geometry(1 << 40)):
        with pytest.raises(BadData, match="do not fit the storage of 16 bytes"):
            check_storage(torn, STORAGE, 0)
    with pytest.raises(NothingToRead):
        check_storage(geometry(4), StorageReport(0x500, 0, 16, "cpu", 1), 0)
    check_shape(geometry(2, 3), 6, 0)
    sizes = ((geometry(2, 3), 5, 0), (geometry(-1), -1, 0), (geometry(1 << 62, 4), 4, 0))
    for shape, numel, offset in (*sizes, (geometry(2, strides=(-4,)), 2, 0), (geometry(2), 2, -1)):
        with pytest.raises(BadData):
            check_shape(shape, numel, offset)
    good = Quantization("per_channel_affine", (0.1, 0.2), (0, 5), 0)
    check_channels(geometry(2, 3), good)
    for torn in (good._replace(axis=1), good._replace(axis=7), good._replace(zero_point=(0,))):
        with pytest.raises(BadData, match="do not fit sizes"):
            check_channels(geometry(2, 3), torn)


def test_folders_and_files_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="cannot create"):
        ValueFiles(str(tmp_path / "file" / "values"), 0, print)
    with pytest.raises(TargetError, match="cannot write /proc/self: "):
        ValueFiles("/proc/self", 0, print)
    folder = tmp_path / "values"
    files = ValueFiles(str(folder), 0, print)
    launch = KernelLaunch(BEFORE, "aten::mm", "", 0, "kernel", "CPU", 7, ())

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gdbext.engine.formats.whole_file.os.write", full)
    with pytest.raises(TargetError, match=r"before_launch_aten__mm_0.safetensors: No space left") as caught:
        files.launch(launch, SimpleNamespace())  # type: ignore[arg-type]
    assert caught.value.why == "its disk is full"
    assert (files.count, list(folder.iterdir())) == (0, [])


class Linked:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("path", "name", "steps"),
    [
        ("x", "x", ()),
        ("größe[-1].T", "größe", (Step("index", "-1"), Step("attribute", "T"))),
        ("""state["a b"]['c'].d""", "state", (Step("key", "a b"), Step("key", "c"), Step("attribute", "d"))),
        ("layers.0.weight", "layers", (Step("attribute", "0"), Step("attribute", "weight"))),
        ("state[exp avg].d", "state", (Step("key", "exp avg"), Step("attribute", "d"))),
    ],
)
def test_paths(path: str, name: str, steps: tuple[Step, ...]) -> None:
    assert parse(path) == (name, steps)
    assert "".join(map(str, parse("""a.b[0]["c"]""")[1])) == ".b[0]['c']"


def test_what_would_need_the_program_to_run() -> None:
    for path in ("", "1x", "x.", "x[", "x[a + 1]", "x()", "x + y", ".x", "x[1:2]"):
        with pytest.raises(UsageError, match="not the name of a variable") as caught:
            parse(path)
        assert "--py self.weight" in caught.value.help


class Frames(PyStack):
    """Of frames that have objects of the Python that runs the tests."""

    def __init__(self, python: PySpace, frames: Sequence[dict[str, object]]) -> None:
        super().__init__(python, [PythonFrame("step", "train.py", 1, number, 0) for number in range(len(frames))])
        self._values = frames

    def locals(self, frame: PythonFrame) -> PyVariables:
        found = PyVariables(self.python)
        for name, value in self._values[frame.address].items():
            found[name] = PyRef(self.python, id(value))
        return found

    def globals(self, frame: PythonFrame) -> PyRef:
        return PyRef(self.python, id(globals()) if frame.address == 0 else 0)


class Point(NamedTuple):
    x: int
    y: int


def test_the_innermost_frame_that_has_the_whole_path() -> None:
    one, two, three = SimpleNamespace(op="4"), Linked(w="6"), Linked(w="7")
    frames: list[Any] = [{"self": one}, {"self": one, "x": "5"}, {"self": two}, {"self": three}]
    with own_python() as python:
        finder = VariableFinder(Frames(python, frames))
        found = [finder.find(path).value for path in ("self", "self.w", "x", "MM")]
        assert found == [PyRef(python, id(each)) for each in (one, two.w, frames[1]["x"], MM)]
        with pytest.raises(UsageError, match=r"^self \(a Linked\) has no attribute 'b' that can be read$") as caught:
            VariableFinder(Frames(python, frames[2:])).find("self.b")
        assert caught.value.help == "available: w"
        with pytest.raises(UsageError, match="no Python variable 'sell'") as caught:
            finder.find("sell")
        assert caught.value.why == "did you mean self?"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        *(("items[-1]", "c"), ("queue[1]", "e"), ("table[7]", "f"), ("table['key']", "g"), ("table[key]", "g")),
        *(("point.y", 2), ("module.held.weight", "h"), ("module.weight", "h"), ("layers[-2]", "i"), ("layers.1", "j")),
    ],
)
def test_a_step(path: str, found: Any) -> None:
    module, layers = Linked(_parameters={"weight": "h"}), Linked(_modules={"0": "i", "1": "j"})
    module.held = module
    values: list[Any] = [
        {"items": ["a", "c"], "queue": deque("de"), "table": {7: "f", "key": "g"}, "point": Point(1, 2)},
        {"module": module, "layers": layers},
    ]
    with own_python() as python:
        value = VariableFinder(Frames(python, values)).find(path).value
        assert (value.str() or value.int()) == found


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        *(([1], "it has 1 items: --py 'x[0]'"), ((), "it is empty"), ({1, 2}, "")),
        *((Linked(a=1, _b=2), "its attributes are: a (--py x.a)"), ({"k": 1, 2: 3}, "its keys are: k")),
    ],
)
def test_a_hint_at_what_can_be_asked(value: Any, hint: str) -> None:
    with own_python() as python:
        assert hint_at("x", PyRef(python, id(value))) == hint


def test_the_frame_that_is_selected_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """``up`` in a debugger selects a native frame; the Python code that it runs, and its callers, are looked in first.
    A frame by its number or function is the only one."""
    session = Replay("meta-mm").session
    main = next(each for each in session.target.memory.threads() if each.tid == session.target.pid)
    snapshot = session.threads.snapshot(main)
    assert [frame.function for frame in snapshot.python][-1] == "<module>"

    def functions(wanted: str | None = None) -> list[str] | None:
        frames = chosen_frames(session, main, wanted)
        return None if frames is None else [frame.function for frame in frames]

    assert functions() is None
    outer = snapshot.stack.frames[snapshot.python[-1].level].sp
    monkeypatch.setattr(session.target, "selected_stack_pointer", lambda: outer)
    assert functions() == ["<module>", *(frame.function for frame in snapshot.python[:-1])]
    assert (functions("0"), functions("wait")) == (["Condition.wait"], ["Condition.wait", "Event.wait"])
    with pytest.raises(UsageError, match="no Python frame 99"):
        functions("99")


MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
KINDS = [f"{each.name}<long>" if each.is_template else each.name for each in SUMMARIZED_TYPES]


@pytest.fixture(scope="module")
def summaries(hung: Replay) -> TypeSummaries:
    return TypeSummaries(hung.session)


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def summary(summaries: TypeSummaries, kind: str, address: int = 0, raw: bytes = b"", element: str = "long") -> Any:
    found = summaries.of(CppObject(kind, address, raw, element, 8))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "raw", "text"),
    [
        ("c10::DispatchKeySet", words(0), "DispatchKeySet()"),
        ("c10::DispatchKey", b"\x00\x00", "Undefined"),
        ("c10::Device", b"\x01\x03", "cuda:3"),
        ("c10::Device", b"\x00\xff", "cpu"),
        ("caffe2::TypeMeta", b"\x0b\x00", "torch.bool"),
        ("c10::SymInt", words((1 << 64) - 5), "-5"),
        ("c10::SymInt", words(0x8000_0000_1234_5678), "a symbolic number"),
        ("c10::Storage", words(0), "no storage"),
        ("c10::intrusive_ptr<c10::StorageImpl, x>", words(0), "nullptr"),
        ("c10::KernelFunction", words(0, 0, 0, 0, 0), "no kernel"),
    ],
)
def test_values_in_registers(summaries: TypeSummaries, kind: str, raw: bytes, text: str) -> None:
    assert summary(summaries, kind, 0, raw).text == text


def test_keysets_and_an_operator_with_its_parts(hung: Replay, summaries: TypeSummaries) -> None:
    bits = hung.session.dispatch_keys.parse("Meta,AutogradMeta")
    assert summary(summaries, "c10::DispatchKeySet", 0, words(bits)).text == "DispatchKeySet(Meta, AutogradMeta)"
    dispatcher = hung.session.dispatcher
    operator = dispatcher.find_one("aten::mm")
    for kind in ("c10::OperatorHandle", "c10::TypedOperatorHandle<at::Tensor (at::Tensor const&)>"):
        found = summary(summaries, kind, 0, words(operator.address, 0))
        assert (found.text, [(child.name, child.text) for child in found.children]) == ("aten::mm", [("schema", MM)])
    assert summary(summaries, "c10::FunctionSchema", dispatcher.schema_of(operator.address)).text == MM
    index = dispatcher.keys.index_of_key("Meta")
    kernel = summary(summaries, "c10::KernelFunction", dispatcher.table_entry(operator.address, index))
    assert kernel.text == dispatcher.kernels.name(operator.kernel(index)).function
    assert [child.name for child in kernel.children][:2] == ["functor", "boxed"]


@pytest.mark.parametrize("pattern", [b"\x5a", b"\xff", b"\x01", b"\x00"])
def test_what_nobody_initialized_is_survived(summaries: TypeSummaries, pattern: bytes) -> None:
    for kind in KINDS:
        found = summary(summaries, kind, 0, 256 * pattern)
        assert len(found.children) <= 400
        if pattern == b"\x5a":  # a value of none of the types but a number
            assert found.text.startswith("<") or kind == "c10::SymInt", (kind, found.text)


def test_memory_that_cannot_be_read_and_more_elements_than_can_be_there(summaries: TypeSummaries) -> None:
    for kind in KINDS:
        assert summary(summaries, kind, 0x10).text.startswith("<"), kind
    assert summary(summaries, "c10::ArrayRef<long>", 0, words(0x10, 3)).text.startswith("<")
    assert summaries.of(CppObject("std::string", 0x1000)) is None
    assert [summarized_type(name) for name in ("c10::ArrayRef", "at::Tensor<int>")] == [None, None]
    assert summarized_type("c10::ArrayRef<long>") is not None


def test_elements_of_a_type_that_only_the_debugger_knows(hung: Replay, summaries: TypeSummaries) -> None:
    place = hung.session.dispatcher.find_one("aten::mm").address
    found = summary(summaries, "c10::ArrayRef<user::Pair>", 0, words(place, 2), "user::Pair")
    assert (found.text, found.shape) == ("2 elements", "array")
    children = [(child.name, child.type, child.address) for child in found.children]
    assert children == [("[0]", "user::Pair", place), ("[1]", "user::Pair", place + 8)]
