"""Which layout is a process's: the version by its files, and what a probe reads of strings and lists."""

from __future__ import annotations

import copy
import struct
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.engine.layouts import Layout, store
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.host_files import HostFiles
from gdbext.errors import BadData
from gdbext.torch.layout_choice import Probe, torch_version
from gdbext.torch.structures import DispatcherStruct, OperatorEntry
from support.fakes.fake_target import FakeTarget

DOCUMENT = store.read_layout(f"{store.DATA}/torch-2.13.0+cpu-cxx11.json", whole=True)
PLACE = 0x10000


def older() -> dict[str, Any]:
    """The same with strings and lists from before the C++11 ABI: a pointer, and a ring without a size."""
    document = copy.deepcopy(DOCUMENT)
    text = document["structs"]["std::string"]
    text["size"] = 8
    text["fields"] = {"_M_dataplus._M_p": {"offset": 0, "size": 8, "type": "char*"}}
    del document["structs"]["std::list"]["fields"]["_M_impl._M_node._M_size"]
    return document


def probe_of(document: Mapping[str, Any], memory: bytes) -> Probe:
    target = FakeTarget({PLACE: memory.ljust(1 << 16, b"\0")})
    reader = Memory(target)
    modules = ModuleTable(target, reader)
    return Probe(reader, modules, Symbolizer(modules), Layout(document), lambda: PLACE)


def test_strings_of_both_kinds() -> None:
    newer = struct.pack("<QQ16sQQ16s", PLACE + 16, 8, b"aten::mm", PLACE + 48, 0, b"")
    check_name(DOCUMENT, newer)
    texts = struct.pack("<QQQ8sQQQQ", 8, 8, 0, b"aten::mm", 0, 0, 0, 0)  # length, capacity, references; an empty one
    check_name(older(), struct.pack("<Q24xQ", PLACE + 64, PLACE + 104) + texts)
    with pytest.raises(BadData, match="bytes"):
        check_name(older(), struct.pack("<Q24xQQQQ", PLACE + 64, PLACE + 64, 1 << 40, 0, 0))


def check_name(document: Mapping[str, Any], memory: bytes) -> None:
    """Of an operator whose name is at PLACE."""
    probe = probe_of(document, memory)
    probe._check_name(OperatorEntry(probe._space, PLACE))


@pytest.mark.parametrize(
    ("listed", "mapped", "said"),
    [
        (3598, 3598, "list and lookup table both count 3598 operators"),
        (3598, 3599, "list and lookup table both count 3598 operators"),
        (None, 3598, "the lookup table counts 3598 operators"),
        (3598, 3000, None),
        (10, 10, None),
        (None, 0, None),
    ],
)
def test_counts(listed: int | None, mapped: int, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 operators were walked: the list's end was not reached."""
    probe = probe_of(DOCUMENT if listed is not None else older(), b"")
    monkeypatch.setattr(probe, "_lookup_table_count", lambda _: mapped)
    if listed is not None:
        monkeypatch.setattr(probe, "_list_count", lambda _: listed)
    dispatcher = DispatcherStruct(probe._space, PLACE)
    if said is None:
        with pytest.raises(BadData):
            probe._check_counts(dispatcher, 64)
    else:
        probe._check_counts(dispatcher, 64)
        assert probe.evidence == [said]


def table(*paths: Path, status: str = "ok") -> ModuleTable:
    """As much of a process's modules as the version takes."""
    modules = [SimpleNamespace(name=path.name, image=SimpleNamespace(path=str(path)), status=status) for path in paths]

    def named(name: str) -> Any:
        return next((module for module in modules if module.name.startswith(name)), None)

    return cast(ModuleTable, SimpleNamespace(modules=modules, named=named, files=HostFiles()))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """As conda-forge installs it: the libraries in lib/ of the environment, the package elsewhere."""
    package = tmp_path / "lib/python3.12/site-packages/torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text("__version__ = '2.6.0'\ngit_version = 'ab12'\n")
    return tmp_path


def test_libraries_in_the_folder_of_an_environment(prefix: Path) -> None:
    library, package = prefix / "lib/libtorch_cpu.so", prefix / "lib/python3.12/site-packages/torch"
    extension = package / "_C.cpython-312-x86_64-linux-gnu.so"
    assert torch_version(table(library)) == ""
    assert torch_version(table(library, extension)) == "2.6.0"
    assert torch_version(table(library, extension, status="other")) == "", "the files are not those in memory"
    assert torch_version(table(library, package / "other/_C.cpython-312-x86_64-linux-gnu.so")) == ""


def test_a_wheel_and_a_library_with_its_version_in_its_name(prefix: Path) -> None:
    package = prefix / "lib/python3.12/site-packages/torch"
    assert torch_version(table(package / "lib/libtorch_cpu.so")) == "2.6.0"
    assert torch_version(table(prefix / "lib/libtorch_cpu.so.1.13.0")) == "1.13.0"
    assert torch_version(table(package / "_C.so")) == "", "no libtorch_cpu.so"
