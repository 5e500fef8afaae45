"""Layouts against the compilers, interpreters, libraries and processes that they describe."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.layouts import Layout, store
from gdbext.engine.layouts.store import PERMISSION
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import LayoutError
from gdbext.torch import layout_choice
from gdbext.torch import measure as measure_package
from gdbext.torch.measure import compiler, generate, measurement
from gdbext.torch.measure.compiler import measure
from gdbext.torch.measure.wants import Wants
from gdbext.torch.singleton import find_singleton
from scripts.lib import layout_documents
from support.installed import pythons
from support.programs import native_build
from support.programs.harness import Start, some

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

SHIPPED = Path(store.DATA) / "torch-2.13.0+cpu-cxx11.json"
ACCESS = ["-fno-access-control", "-femit-class-debug-always"]

CLASSES = """
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
namespace a {
enum class Colour : uint8_t { red = 3, blue = 200 };
struct Base { virtual ~Base(); int base_; };
struct Other { char other_; };
class Derived final : public Base, Other {
  struct Hidden { double x; std::string s; };
  uint16_t flags_ : 3; uint16_t more_ : 9; bool last_ : 1;
  union { long as_long_; char as_chars_[8]; };
  Hidden hidden_; std::vector<Hidden> many_; Hidden array_[3]; Colour colour_; static int shared;
};
template <class T> struct Box { T value; bool full; };
}
"""
WANTS = Wants(
    CLASSES,
    {"a::Derived": "", "box": "a::Box<a::Derived::Hidden>", "std::string": "", "std::vector": "std::vector<int>"}
    | {"missing": "a::Missing", "misplaced": "a::Hidden"},
    {"a::Colour": ""},
    {"minus": "-7", "big": "1ull << 63", "gone": "a::gone"},
)
OFFSETS = {"_vptr": 0, "base_": 8, "other_": 12, "as_long_": 16, "as_chars_": 16, "hidden_": 24, "many_": 64}
OFFSETS |= {"array_": 88, "colour_": 208}
BITS = {"flags_": (104, 3), "more_": (112, 9), "last_": (121, 1)}
"""As offsetof and set bits say on x86-64; a static member has no place in the object."""


@pytest.mark.parametrize("dwarf", ["-gdwarf-4", "-gdwarf-5"])
def test_offsets_are_the_compiler_s_own(dwarf: str, tmp_path: Path) -> None:
    measured = measure(WANTS, "g++", ["-std=c++17", *ACCESS, dwarf], tmp_path)
    fields = measured.structs["a::Derived"]["fields"]
    assert measured.structs["a::Derived"]["size"] == 216
    assert {name: field["offset"] for name, field in fields.items() if name not in BITS} == OFFSETS
    assert {name: (fields[name]["bit_offset"], fields[name]["bit_size"]) for name in BITS} == BITS
    assert (fields["base_"]["base"], fields["other_"]["base"]) == ("a::Base", "a::Other")
    assert measured.absent == ["missing", "misplaced", "gone"]
    assert measured.enums == {"a::Colour": {"red": 3, "blue": 200}}
    assert measured.constants == {"minus": -7, "big": -(1 << 63)}
    assert "a::Derived::Hidden" in measured.structs, "held by value, so it comes along"
    assert measured.structs["std::vector"]["fields"]["_M_impl._M_finish"]["offset"] == 8
    assert measured.structs["std::string"]["size"] == 32


def test_headers_that_do_not_compile_and_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LayoutError, match=r"do not compile: .*nonesuch"):
        measure(Wants("#include <nonesuch.h>", {"int": ""}), "g++", [], tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LayoutError, match="no compiler") as caught:
        generate.torch_document(native_build.torch_folder())
    assert "g++" in caught.value.help


PYTHONS = [prefix for version in ("3.8", "3.13") for prefix in pythons.prefixes(version)]


@pytest.mark.parametrize("prefix", PYTHONS, ids=lambda prefix: prefix.name)
def test_shipped_cpython_is_what_the_headers_say(prefix: Path) -> None:
    assert_shipped(layout_documents.cpython_document(prefix), "structs", "enums", "constants", "absent")


def assert_shipped(fresh: dict[str, Any], *sections: str) -> None:
    shipped = store.read_layout(Path(store.DATA) / f"{fresh['id']}.json", whole=True)
    for section in sections:
        assert fresh[section] == shipped[section], section


def test_a_library_of_another_user_is_not_run(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    library = tmp_path / "libc10.so"
    library.write_bytes(b"")
    compiler.check_owner(library)
    for owner, mode in ((12345, 0o644), (0, 0o777)):
        os.chown(library, owner, owner)
        library.chmod(mode)
        with pytest.raises(LayoutError, match="another user"):
            compiler.check_owner(library)


Process = tuple[ModuleTable, Memory, Symbolizer]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def process(inferior: Start) -> Iterator[Process]:
    with ProcTarget(inferior("idle").pid) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        yield modules, memory, Symbolizer(modules)


def other_build(folder: Path, change: Change = lambda _: None) -> Path:
    """A folder of shipped layouts whose only torch is the same release, but not this build."""
    document = store.read_layout(SHIPPED, whole=True)
    document["build_ids"] = {"libtorch_cpu.so": "00" * 20}
    document["id"] = "torch-2.13.0+cu126-cxx11"
    document["provenance"]["version"] = "2.13.0+cu126"
    change(document)
    path = folder / f"{document['id']}.json"
    path.write_text(json.dumps(document))
    (folder / "index.json").write_text(
        json.dumps({"build_ids": {"00" * 20: path.name}, "torch": {path.name: document["provenance"]["version"]}})
    )
    return folder


def choose(process: Process, **options: Any) -> Layout:
    modules, memory, symbolizer = process
    find_dispatcher = partial(find_singleton, memory, symbolizer)
    return layout_choice.torch_layout(
        modules, memory, symbolizer, find_dispatcher, measure=measurement.measure_torch, **options
    )


def test_another_build_of_the_release_is_probed(process: Process, tmp_path: Path) -> None:
    assert choose(process, file=str(SHIPPED)).match == "exact"
    layout = choose(process, folder=other_build(tmp_path))
    assert layout.match == "probed"
    assert "64 operators checked" in " ".join(layout.evidence)
    assert int(re.findall(r"(\d+) are named after the key", " ".join(layout.evidence))[0]) > 10
    assert re.search(r"both count [34]\d{3} operators", " ".join(layout.evidence))


def moved(name: str) -> Change:
    struct, _, member = name.rpartition("::")

    def change(document: dict[str, Any]) -> None:
        document["structs"][struct]["fields"][member]["offset"] += 8

    return change


def fewer_entries(document: dict[str, Any]) -> None:
    """As in a release with one runtime key less: what follows the table moves up by a kernel."""
    document["constants"]["num_runtime_entries"] -= 1
    fields = document["structs"]["c10::impl::OperatorEntry"]["fields"]
    fields["dispatchTable_"]["size"] -= document["structs"]["c10::KernelFunction"]["size"]
    fields["dispatchTable_"]["offset"] -= 16


def swapped(document: dict[str, Any], *keys: str) -> None:
    """As in a release whose keys stand in another order: of backends only the kernels' names can tell."""
    index = document["dispatch"]["table_index"]
    one, other = (document["enums"]["c10::DispatchKey"][key] for key in keys)
    index[one], index[other] = index[other], index[one]


def version(text: str) -> Change:
    return lambda document: document["provenance"].update(version=text)


def newer_with_other_keys(document: dict[str, Any]) -> None:
    version("2.12.1+cpu")(document)
    swapped(document, "Python", "Functionalize")


REFUSED = {
    "name": moved("c10::impl::OperatorEntry::name_"),
    "table": moved("c10::impl::OperatorEntry::dispatchTable_"),
    "operators": moved("c10::Dispatcher::operators_"),
    "lookup": moved("c10::Dispatcher::operatorLookupTable_"),
    "overload": moved("c10::OperatorName::overload_name"),
    "boxed": moved("c10::BoxedKernel::boxed_kernel_func_"),
    "unboxed": moved("c10::KernelFunction::unboxed_kernel_func_"),
    "extractor": moved("c10::impl::OperatorEntry::dispatchKeyExtractor_"),
    "kernels": moved("c10::impl::OperatorEntry::kernels_"),
    "entries": fewer_entries,
    "order": lambda document: swapped(document, "CPU", "CUDA"),
    "newer": newer_with_other_keys,
    "minor": version("2.14.0+cpu"),
}
REASONS = {"newer": r"the fallback of \w+ is at entry", "minor": r"no layout for PyTorch 2\.13\.0\+cpu"}


@pytest.mark.parametrize("change", REFUSED)
def test_a_layout_that_does_not_fit_is_refused(
    change: str, process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PERMISSION, "0")
    folder = other_build(tmp_path, REFUSED[change])
    with pytest.raises(LayoutError, match=REASONS.get(change, r"does not fit|does not lie inside")) as caught:
        choose(process, folder=folder)
    assert "forbidden (GDBEXT_GENERATE=0)" in caught.value.what
    assert "dispatch measure" in caught.value.help
    if change == "name":
        with pytest.raises(LayoutError, match="does not fit this process"):
            choose(process, file=str(next(folder.glob("torch-*.json"))))


def test_a_newer_release_whose_keys_are_proven_or_not(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the functions that stand there, which may have other names, or no names at all."""
    monkeypatch.setenv(PERMISSION, "0")
    assert choose(process, folder=other_build(tmp_path, version("2.12.1+cpu"))).match == "probed"
    monkeypatch.setattr(layout_choice, "_FALLBACKS", {"Conjugate": "conjugateFallback", "Negative": "noSuchFallback"})
    with pytest.raises(LayoutError, match="the numbers of dispatch keys such as Negative are not proven"):
        choose(process, folder=other_build(tmp_path, version("2.12.1+cpu")))


def test_headers_that_are_not_those_of_the_library(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured here, kept under this very build-id, and wrong: neither used nor measured once more."""
    document = store.read_layout(SHIPPED, whole=True)
    moved("c10::impl::OperatorEntry::dispatchTable_")(document)
    kept = tmp_path / "cache"
    monkeypatch.setattr(store, "layout_cache", lambda: kept)
    kept.mkdir()
    (kept / f"{document['build_ids'][store.TORCH_LIBRARY]}.json").write_text(json.dumps(document))
    (tmp_path / "index.json").write_text('{"build_ids": {}, "torch": {}}')
    with pytest.raises(LayoutError, match=r"measured here, does not fit .* headers") as raised:
        choose(process, folder=tmp_path)
    assert str(kept) in str(raised.value)


def test_a_damaged_file_costs_no_more_than_itself(process: Process, tmp_path: Path) -> None:
    """Another build's of the same release is probed, and what was passed over is known."""
    broken = tmp_path / SHIPPED.name
    other_build(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    index["build_ids"][store.load(SHIPPED).build_ids[store.TORCH_LIBRARY]] = broken.name
    index["torch"][broken.name] = "2.13.0+cpu"
    (tmp_path / "index.json").write_text(json.dumps(index))
    for contents, said in (
        (SHIPPED.read_text()[:500], "is not JSON"),
        (next(tmp_path.glob("*cu126*.json")).read_text(), "holds the layout of another build, torch-2.13.0.cu126"),
    ):
        broken.write_text(contents)
        layout = choose(process, folder=tmp_path)
        assert (layout.id, layout.match) == ("torch-2.13.0+cu126-cxx11", "probed")
        assert [re.search(said, error.what) is not None for error in layout.unsound] == [True]


def test_a_container_s_library_is_not_run(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found through /proc/PID/root: whoever rules the container would run code with our rights."""
    module = some(process[0].named("libtorch_cpu.so"))
    assert module.image is not None
    root = f"/proc/{os.getpid()}/root"
    monkeypatch.setattr(module.image, "path", root + module.image.path)
    monkeypatch.setattr(process[0].files, "foreign", ForeignFiles(root))
    monkeypatch.setattr(measurement, "MeasuringProcess", lambda *_: pytest.fail("it was about to be measured"))
    inside = str(Path(module.image.path).parent.parent).partition("/root")[2]
    with pytest.raises(LayoutError, match=rf"container.*dispatch measure {re.escape(inside)}"):
        choose(process, folder=other_build(tmp_path, moved("c10::impl::OperatorEntry::name_")))


def kept() -> Path:
    """A cache for this code that measures, this compiler and these headers: from run to run."""
    digest = hashlib.sha256(subprocess.run(["g++", "-v"], capture_output=True, check=True).stderr)
    code = sorted(Path(measure_package.__file__).parent.rglob("*.py"))
    for file in (native_build.torch_folder() / "version.py", *code):
        digest.update(file.read_bytes())
    return native_build.cache_folder() / "measured" / digest.hexdigest()[:16]


@pytest.mark.slow
def test_the_shipped_layout_is_what_is_measured_here(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers beside the library are measured (40 s) and kept, once for each change of the code."""
    (tmp_path / "index.json").write_text('{"build_ids": {}, "torch": {}}')
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept()))
    assert choose(process, folder=tmp_path).match == "generated"
    monkeypatch.setenv("PATH", "/nonexistent")
    assert choose(process, folder=tmp_path).match == "generated"
    monkeypatch.undo()
    fresh = json.loads(next(kept().rglob("*.json")).read_text())
    assert_shipped(fresh, "build_ids", "structs", "enums", "constants", "dispatch", "absent")
