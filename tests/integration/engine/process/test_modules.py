"""Modules of this process whose files were deleted or replaced after they were loaded."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module, ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.foreign_files import ForeignFiles
from support.fakes.fake_target import OwnProcess
from support.programs.harness import some

NO_CACHE = SymbolCache(Path("/proc/nonexistent/gdbext"))

pytestmark = pytest.mark.compiler


@pytest.fixture
def own_copy(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A library that this process has loaded from a folder of ours, and the address of its function ``marker``."""
    path = tmp_path / "libcopy.so"
    build(path, "int marker(void) { return 1; } int other(void) { return 2; } int zeros[5000];")
    library = ctypes.CDLL(str(path))
    yield path, ctypes.cast(library.marker, ctypes.c_void_p).value or 0
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))


def build(path: Path, source: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wl,--build-id", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)


def module_at(address: int) -> Module:
    target = OwnProcess()
    table = ModuleTable(target, Memory(target))
    module = some(table.find(address))
    symbolizer = Symbolizer(table, NO_CACHE)
    function = some(symbolizer.function(address))
    assert function.names == ("marker",)
    assert symbolizer.address_of("marker", "libcopy.so") == address
    return module


def without_map_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who may not open /proc/PID/map_files."""
    monkeypatch.setattr(Module, "_candidates", lambda module, *_: iter([(module.path, ForeignFiles().image)]))


def test_a_replaced_file_is_never_used(own_copy: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    path, address = own_copy
    path.unlink()
    build(path, "int before(void) { return 7; } int zeros[9]; int marker(int x) { return x * zeros[3]; }")
    without_map_files(monkeypatch)
    module = module_at(address)
    assert module.status == "replaced"
    assert "build-id" in module.problem
    assert module.image is not None
    assert module.image.from_memory
    assert module.build_id != ElfImage.open(str(path)).build_id
    assert module.image.eh_frame_hdr is not None
    assert module.image.read(module.image.eh_frame_hdr.vaddr, 4)


@pytest.mark.parametrize("put_back", [False, True])
@pytest.mark.parametrize("may_open", [False, True])
def test_a_deleted_file_and_the_same_one_put_back(
    own_copy: tuple[Path, int], may_open: bool, put_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are equal, and a probe in the one that was put back would never be reached."""
    path, address = own_copy
    contents = path.read_bytes()
    path.unlink()
    if put_back:
        path.write_bytes(contents)
    if not may_open:
        without_map_files(monkeypatch)
    module = module_at(address)
    assert module.status == "deleted"
    assert module.image is not None
    if may_open and os.geteuid() == 0:
        assert "/map_files/" in module.image.path
        assert not module.image.from_memory
        assert module.image.data[:] == contents
    else:
        assert module.image.path == str(path) if put_back else "what is mapped" in module.problem
