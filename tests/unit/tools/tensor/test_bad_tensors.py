"""What is no tensor, or none any more, names of dimensions, and where nothing can be written."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.store import load, of_release
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, TargetError
from gdbext.tools.tensor.contents import Geometry, NothingToRead
from gdbext.tools.tensor.elements import element_type
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.tools.tensor.tensor_report import TensorReporter, _check_channels, _check_storage
from gdbext.tools.values.launch import BEFORE, KernelLaunch
from gdbext.tools.values.values_section import ValueFiles
from gdbext.torch.values.cpp_objects import ClassNames
from gdbext.torch.values.value_text import Quantization, StorageReport
from support.fakes.fake_target import FakeTarget
from support.recorded.recordings import Replay


@pytest.fixture(scope="module")
def hung() -> Replay:
    return Replay("meta-mm")


def geometry(*sizes: int, strides: tuple[int, ...] = (), start: int = 0x1000) -> Geometry:
    element = element_type("float32", 4)
    assert element is not None
    return Geometry(start, sizes, strides or tuple(1 for _ in sizes), element)


def storage(size: int, data: int = 0x1000) -> StorageReport:
    return StorageReport(0x500, data, size, "cpu", 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0x10",), "nothing can be read there"),
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


def test_sizes_that_do_not_fit_the_storage() -> None:
    _check_storage(geometry(4), storage(16), 0)
    for torn in (geometry(5), geometry(2, strides=(4,)), geometry(1, start=0xFFC), geometry(1 << 40)):
        with pytest.raises(BadData, match="do not fit the storage of 16 bytes"):
            _check_storage(torn, storage(16), 0)
    with pytest.raises(NothingToRead):
        _check_storage(geometry(4), storage(16, 0), 0)


def test_sizes_and_strides_that_cannot_be() -> None:
    TensorReporter._check(geometry(2, 3), 6, 0)
    for shape, numel, offset in (
        (geometry(2, 3), 5, 0),
        (geometry(-1), -1, 0),
        (geometry(2, strides=(-4,)), 2, 0),
        (geometry(2), 2, -1),
        (geometry(1 << 62, 4), 4, 0),
    ):
        with pytest.raises(BadData):
            TensorReporter._check(shape, numel, offset)


def test_scales_that_are_not_those_of_the_channels() -> None:
    good = Quantization("per_channel_affine", (0.1, 0.2), (0, 5), 0)
    _check_channels(geometry(2, 3), good)
    for torn in (good._replace(axis=1), good._replace(axis=7), good._replace(zero_point=(0,))):
        with pytest.raises(BadData, match="do not fit sizes"):
            _check_channels(geometry(2, 3), torn)


def test_a_folder_that_cannot_be_made_or_in_which_no_file_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="cannot make"):
        ValueFiles(str(tmp_path / "file" / "values"), 0, print)
    with pytest.raises(TargetError, match="cannot write /proc/self: "):
        ValueFiles("/proc/self", 0, print)


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ValueFiles(str(tmp_path), 0, print)
    launch = KernelLaunch(BEFORE, "aten::mm", "", 0, "kernel", "CPU", 7, ())

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gdbext.engine.formats.whole_file.os.write", full)
    with pytest.raises(TargetError, match=r"before_launch_aten__mm_0.safetensors: No space left") as caught:
        files.launch(launch, SimpleNamespace())  # type: ignore[arg-type]
    assert caught.value.why == "its disk is full"
    assert (files.count, list(tmp_path.iterdir())) == (0, [])


TENSOR, EXTRA, META, NAMES = 0x10000, 0x20000, 0x30000, 0x40000


def fields(layout: Layout, extra: int, meta: int, names: bytes) -> TensorFields:
    """A tensor that has its names there."""
    at = layout.struct("c10::TensorImpl").offset("extra_meta_")
    found = layout.struct("c10::ExtraMeta").fields.get("named_tensor_meta_")
    more = bytearray(256)
    if found is not None:
        struct.pack_into("<Q", more, found.offset, meta)
    regions = {
        TENSOR: bytes(at) + struct.pack("<Q", extra),
        EXTRA: bytes(more),
        META: bytes(8) + struct.pack("<3Q", NAMES, NAMES + len(names), NAMES + len(names)),
        NAMES: names,
    }
    memory = Memory(FakeTarget({start: raw.ljust(0x1000, b"\0") for start, raw in regions.items()}))
    return TensorFields(memory, layout, cast(ClassNames, None))


@pytest.fixture(scope="module")
def layout() -> Layout:
    return load(of_release("2.12.1")[0])


def test_names_and_wildcards(layout: Layout) -> None:
    names = struct.pack("<II", 0x1C000005, 0) + struct.pack("<II", 0, 1)
    assert fields(layout, EXTRA, META, names).dimension_names(TENSOR) == (0x1C000005, None)
    for extra, meta in ((0, META), (EXTRA, 0)):
        assert fields(layout, extra, meta, b"").dimension_names(TENSOR) is None
    with pytest.raises(BadData):  # more than dimensions can be
        fields(layout, EXTRA, META, bytes(8 * 65)).dimension_names(TENSOR)


def test_versions_that_have_none() -> None:
    assert fields(load(of_release("2.13.0")[0]), EXTRA, META, b"").dimension_names(TENSOR) is None
