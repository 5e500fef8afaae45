"""Makes layout documents from installed headers: PyTorch's from site-packages/torch, CPython's from a prefix.

Used by scripts/gen_layouts.py for the shipped files, and by the registry on the user's machine when nothing
shipped fits. The target is not touched: only headers and libraries on disk are read.
"""

from __future__ import annotations

import re
import sysconfig
import tempfile
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.layouts.store import torch_version
from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import HostFiles
from gdbext.errors import LayoutError
from gdbext.torch.distributed.group_structures import NCCL
from gdbext.torch.measure import compiler, group_wants, header_wants
from gdbext.torch.measure.measured import Known, Measured, measure
from gdbext.torch.measure.wants import Parts, Wants

PRODUCER = "gdbext gen_layouts 1"
SCHEMA = "gdbext-layout/1"
LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch.so", "libtorch_python.so", "libtorch_cuda.so")
_CXX = ("g++", "c++", "clang++")
_CC = ("gcc", "cc", "clang")

# Enough of nlohmann/json.hpp (which wheels do not ship) for ATen/functorch/Interpreter.h to be parsed.
_JSON_STUB = """#pragma once
#include <string>
namespace nlohmann {
struct json {
  template <class... A> json(A&&...) {}
  template <class K> json& operator[](K&&) { return *this; }
  template <class K> const json& operator[](K&&) const { return *this; }
  template <class T> T get() const { return T(); }
  template <class... A> std::string dump(A&&...) const { return {}; }
  template <class... A> static json parse(A&&...) { return json(); }
};
}
"""


@dataclass(frozen=True)
class MeasuringContext:
    """The context of a measurement: what of it was measured earlier, and who is told what is being done.

    ``known`` is what was measured of other releases: their headers may be the same.
    """

    folder: Path
    parts: Parts = field(default_factory=Parts)
    show: Callable[[str], None] = lambda _: None
    known: Known = field(default_factory=dict)


def torch_document(
    torch: Path, cxx: str | None = None, cxx11: bool | None = None, place: MeasuringContext | None = None
) -> dict[str, Any]:
    """The layout document of the PyTorch installed in ``torch`` (the folder that holds include/ and lib/).

    ``cxx`` is the compiler; ``cxx11`` asks for the same headers under that ABI of the standard library, as in builds
    that are not this one: no build-id belongs to that. Without a ``place`` a folder is made and removed again. Raises
    LayoutError: no headers, no compiler, headers that do not compile, a library of another user.
    """
    if not (torch / "include" / "ATen" / "core" / "dispatch" / "Dispatcher.h").exists():
        raise LayoutError(
            f"{torch}/include holds no PyTorch headers",
            why="the wheel was stripped of them, or this is not the folder of the installed torch package",
        )
    compiler.check_owner(torch / "lib" / "libc10.so")
    if not place:
        with tempfile.TemporaryDirectory(prefix="gdbext-layout-") as name:
            return torch_document(torch, cxx, cxx11, MeasuringContext(Path(name)))
    version, git = torch_version(torch, HostFiles())
    own = uses_cxx11_abi(torch / "lib" / "libc10.so")
    cxx11 = own if cxx11 is None else cxx11
    command = cxx or compiler.find_compiler(_CXX)
    measured, dispatch = _torch_parts(torch, command, _torch_flags(torch, place.folder, cxx11, version, command), place)
    constants = {k: v & (1 << 64) - 1 if k.startswith("keyset.") else v for k, v in measured.constants.items()}
    identity = f"torch-{version}-{'cxx11' if cxx11 else 'precxx11'}"
    document = _document("torch", identity, version, measured)
    document["provenance"].update(git=git, wheel=_wheel_name(torch), cxx11_abi=cxx11, units=measured.units)
    if cxx11 == own:
        document["build_ids"] = {n: b for n in LIBRARIES if (b := build_id_of_file(torch / "lib" / n))}
    document["constants"] = constants
    document["dispatch"] = dispatch
    return document


def _torch_parts(torch: Path, command: str, flags: list[str], place: MeasuringContext) -> tuple[Measured, Any]:
    """The parts that the compiler laid out, and what libc10 says of its keys."""
    types, distributed, settings = header_wants.torch_wants(), group_wants.wants(), header_wants.settings_wants()

    def of_types() -> dict[str, Any]:
        place.show("compiling its headers")
        return asdict(measure(types, command, flags, place.folder, place.known))

    def with_stand_ins(wants: Wants, name: str, write_stubs: Callable[[Path], None]) -> dict[str, Any]:
        place.show(f"compiling the headers of {name}")
        folder = place.folder / name.replace(" ", "-")
        folder.mkdir()
        write_stubs(folder)
        return asdict(_measure_alone(wants, command, flags, folder, place.known))

    def of_distributed() -> dict[str, Any]:
        return with_stand_ins(distributed, "torch.distributed", group_wants.write_stubs)

    def of_settings() -> dict[str, Any]:
        return with_stand_ins(settings, "its settings", header_wants.write_settings_stubs)

    def keys() -> dict[str, Any]:
        place.show("asking libc10.so for its dispatch keys")
        return compiler.ask(torch, command, flags, place.folder)

    names = _part("types", types), _part("distributed", distributed), _part("settings", settings)
    found = Measured(**place.parts.get(names[0], of_types))
    found.add(Measured(**place.parts.get(names[1], of_distributed)))
    found.add(Measured(**place.parts.get(names[2], of_settings)))
    dispatch = place.parts.get("keys", keys)
    place.parts.remove(*names, "keys")
    return found, dispatch


def _part(name: str, wants: Wants) -> str:
    """The part's file, by what it was asked for: another gdbext may want other types."""
    return f"{name}-{zlib.crc32(wants.source(()).encode()):08x}"


def _measure_alone(wants: Wants, command: str, flags: list[str], folder: Path, known: Known) -> Measured:
    """Types whose headers need what the wheel lacks, for which ``folder`` has stand-ins; all absent where they do not
    compile."""
    try:
        return measure(wants, command, [*flags, "-idirafter", str(folder)], folder, known)
    except LayoutError:
        return Measured(command, absent=[want.name for want in wants.all])


def saved_members_document(torch: Path, cxx: str | None = None, cxx11: bool | None = None) -> dict[str, Any]:
    """Class → member → offset in bytes, for the PyTorch installed in ``torch``, or for its headers under that ABI of
    the standard library. Raises LayoutError."""
    header = torch / "include" / header_wants.HEADER
    if not header.exists():
        raise LayoutError(f"{header} does not exist", why="the wheel was stripped of its headers")
    wants = header_wants.saved_member_wants(header.read_text())
    flags = [f"-I{sysconfig.get_path('include')}"]
    measured, cxx11, about = _alone(torch, wants, cxx, cxx11, lambda _: flags)
    found: dict[str, dict[str, int]] = {}
    for want, offset in measured.constants.items():
        kind, _, member = want.partition(".")
        found.setdefault(kind, {})[member] = offset
    return _members("saved-members", about, cxx11, measured.absent, found)


def nccl_groups_document(torch: Path, cxx: str | None = None, cxx11: bool | None = None) -> dict[str, Any]:
    """Class → member → offset in bytes of what is read of NCCL's process groups, as ``saved_members_document``."""

    def flags(folder: Path) -> list[str]:
        group_wants.write_nccl_stubs(folder / "nccl")
        return [f"-I{folder / 'nccl'}"]

    measured, cxx11, about = _alone(torch, group_wants.nccl_wants(), cxx, cxx11, flags)
    fields = {each: measured.structs[each.OF]["fields"] for each in NCCL if each.OF in measured.structs}
    found = {
        each.OF: {member.path: known[member.path]["offset"] for member in each.members() if member.path in known}
        for each, known in fields.items()
    }
    return _members("nccl-groups", about, cxx11, measured.absent, found)


def _alone(
    torch: Path, wants: Wants, cxx: str | None, cxx11: bool | None, more: Callable[[Path], list[str]]
) -> tuple[Measured, bool, dict[str, str]]:
    """The result of one table, with ``more`` flags before the others; the ABI of the standard library; the
    provenance."""
    version, git = torch_version(torch, HostFiles())
    command = cxx or compiler.find_compiler(_CXX)
    with tempfile.TemporaryDirectory(prefix="gdbext-layout-") as name:
        folder = Path(name)
        cxx11 = uses_cxx11_abi(torch / "lib" / "libc10.so") if cxx11 is None else cxx11
        flags = [*more(folder), *_torch_flags(torch, folder, cxx11, version, command)]
        measured = measure(wants, command, flags, folder)
    return measured, cxx11, {"version": version, "git": git, "compiler": measured.compiler, "wheel": _wheel_name(torch)}


def _members(
    kind: str, provenance: dict[str, str], cxx11: bool, absent: list[str], structs: dict[str, dict[str, int]]
) -> dict[str, Any]:
    identity = f"{kind}-{provenance['version'].partition('+')[0]}{'' if cxx11 else '-precxx11'}"
    return {"kind": kind, "id": identity, "provenance": provenance, "absent": absent, "structs": structs}


def cpython_document(prefix: Path, cc: str | None = None) -> dict[str, Any]:
    """The layout document of the CPython whose headers are in ``prefix``/include/python3.X. Raises LayoutError."""
    include = _python_include(prefix)
    command = cc or compiler.find_compiler(_CC)
    flags = ["-DPy_BUILD_CORE=1", f"-I{include}", f"-I{include}/internal"]
    with tempfile.TemporaryDirectory(prefix="gdbext-layout-") as name:
        measured = measure(header_wants.cpython_wants(), command, flags, Path(name))
    number = measured.constants["PY_VERSION_HEX"]
    version = f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}"
    suffix = "t" if measured.constants.get("Py_GIL_DISABLED") else ""
    return _document("cpython", f"cpython-{version.rpartition('.')[0]}{suffix}", version, measured)


def _python_include(prefix: Path) -> Path:
    found = sorted(p.parent for p in prefix.glob("include/python3.*/Python.h"))
    if not found:
        raise LayoutError(
            f"{prefix}/include holds no CPython headers",
            why="they come with a development package (python3-dev) or with pyenv",
            help="scripts/gen_layouts.py --cpython PREFIX, where PREFIX/include/python3.X/Python.h exists",
        )
    return found[0]


def _document(kind: str, identity: str, version: str, measured: Measured) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "id": identity,
        "provenance": {
            "producer": PRODUCER,
            "version": version,
            "git": "",
            "compiler": measured.compiler,
            "wheel": "",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        },
        "build_ids": {},
        "structs": measured.structs,
        "enums": measured.enums,
        "constants": measured.constants,
        "absent": sorted(measured.absent),
    }


def _torch_flags(torch: Path, folder: Path, cxx11: bool, version: str, cxx: str) -> list[str]:
    stub = folder / "stub" / "nlohmann"
    stub.mkdir(parents=True)
    (stub / "json.hpp").write_text(_JSON_STUB)
    include = torch / "include"
    # Per-operator headers keep the thousands of operators of ATen/ATen.h out: a third of the time.
    flags = [
        f"-std={_standard(version)}",
        "-fno-access-control",
        "-DAT_PER_OPERATOR_HEADERS",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11)}",
        f"-I{include}",
        f"-I{include}/torch/csrc/api/include",
        "-idirafter",
        str(stub.parent),
    ]
    # A class whose virtual functions live elsewhere would otherwise be described as a mere declaration.
    if "clang" in Path(cxx).name:
        return [*flags, "-fstandalone-debug"]
    # Let the compiler use memory before it collects garbage: a tenth of the time.
    collector = ["--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=1000000"]
    return [*flags, "-femit-class-debug-always", *collector]


def _standard(version: str) -> str:
    """The C++ of the headers: 2.13's need C++20, those from 2.1 on C++17, and where it changed between is not known.

    A compiler takes both kinds as C++20 where they are recent, hence the bound.
    """
    numbers = tuple(number(n) or 0 for n in re.findall(r"\d+", version)[:2])
    return "c++20" if numbers >= (2, 9) else "c++17"


def uses_cxx11_abi(libc10: Path) -> bool:
    """True if this wheel's std::string is the one of the new ABI: c10::toString(DispatchKeySet) says so."""
    try:
        data = libc10.read_bytes()
    except OSError as error:
        raise LayoutError(f"cannot read {libc10}: {error.strerror}") from error
    return b"_ZN3c108toStringB5cxx11ENS_14DispatchKeySetE\0" in data


def _wheel_name(torch: Path) -> str:
    for info in sorted(torch.parent.glob("torch-*.dist-info/WHEEL")):
        tags = [line[5:].strip() for line in info.read_text(errors="replace").splitlines() if line.startswith("Tag: ")]
        if tags:
            return f"{info.parent.name[: -len('.dist-info')]}-{tags[0]}.whl"
    return ""
