"""Makes the layout document of a PyTorch from the headers and libraries in its folder site-packages/torch.

Used by scripts/gen_layouts.py for the shipped files, and on the user's machine if no shipped one fits. The target is
not touched: only headers and libraries on disk are read.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable

from gdbext import cache
from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.layouts import store
from gdbext.engine.layouts.store import torch_version
from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import HostFiles
from gdbext.errors import LayoutError
from gdbext.torch.measure import compiler
from gdbext.torch.measure.compiler import Known, Measured, measure
from gdbext.torch.measure.pack import write
from gdbext.torch.measure.wants import wants_of, write_stubs

LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch.so", "libtorch_python.so", "libtorch_cuda.so")
CXX = ("g++", "c++", "clang++")


class Parts:
    """The parts of the layout of one build of PyTorch that are measured already, in the cache until the layout is
    whole: an interrupted measurement resumes after them. Without a ``build_id`` nothing is cached."""

    def __init__(self, build_id: str | None = None) -> None:
        folder = Path(store.layout_cache())
        self._stem = folder / build_id if build_id and cache.may_fill(str(folder)) else None

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The part (JSON) of that name from an earlier measurement, else the result of ``make``, which is kept."""
        path = self._path(name)
        if not path:
            return make()
        with suppress(OSError, LayoutError):
            if path.stat().st_uid == os.geteuid():
                return store.read_document(path)
        part = make()
        write(part, path)
        return part

    def remove(self, *names: str) -> None:
        """Remove the files of these parts, once the layout is complete."""
        for path in filter(None, map(self._path, names)):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path | None:
        """The file of a part; None if nothing is cached."""
        return self._stem.with_name(f"{self._stem.name}.{name}.part") if self._stem else None


@dataclass(frozen=True)
class MeasuringContext:
    """The context of a measurement: its ``parts`` of an earlier one, and the function that shows each step.

    ``known`` are the results of other releases: their headers may be the same.
    """

    folder: Path
    parts: Parts = field(default_factory=Parts)
    show: Callable[[str], None] = lambda _: None
    known: Known = field(default_factory=dict)


def torch_document(
    torch: Path, cxx: str | None = None, cxx11: bool | None = None, context: MeasuringContext | None = None
) -> dict[str, Any]:
    """The layout document of the PyTorch installed in ``torch`` (the folder that holds include/ and lib/).

    ``cxx`` is the compiler; ``cxx11`` asks for the same headers under that ABI of the standard library, as in builds
    that are not this one: no build-id belongs to that. Without a ``context`` a folder is made and removed again. Raises
    LayoutError: no headers, no compiler, headers that do not compile, a library of another user.
    """
    if not (torch / "include" / "ATen" / "core" / "dispatch" / "Dispatcher.h").exists():
        raise LayoutError(
            f"{torch}/include holds no PyTorch headers",
            why="the wheel was stripped of them, or this is not the folder of the installed torch package",
        )
    compiler.check_owner(torch / "lib" / "libc10.so")
    if not context:
        with tempfile.TemporaryDirectory(prefix="gdbext-layout-") as name:
            return torch_document(torch, cxx, cxx11, MeasuringContext(Path(name)))
    version, git = torch_version(torch, HostFiles())
    own = uses_cxx11_abi(torch / "lib" / "libc10.so")
    cxx11 = own if cxx11 is None else cxx11
    command = cxx or compiler.find_compiler(CXX)
    measured, dispatch = _torch_parts(
        torch, command, torch_flags(torch, context.folder, cxx11, version, command), context
    )
    constants = {  # sets of keys are unsigned
        name: value & (1 << 64) - 1 if name.startswith("keyset.") else value
        for name, value in measured.constants.items()
    }
    identity = f"torch-{version}-{'cxx11' if cxx11 else 'precxx11'}"
    document = layout_document("torch", identity, version, measured)
    document["provenance"].update(git=git, wheel=wheel_name(torch), cxx11_abi=cxx11, units=measured.units)
    if cxx11 == own:
        build_ids = {name: build_id_of_file(torch / "lib" / name) for name in LIBRARIES}
        document["build_ids"] = {name: build_id for name, build_id in build_ids.items() if build_id}
    document["constants"] = constants
    document["dispatch"] = dispatch
    return document


def _torch_parts(torch: Path, command: str, flags: list[str], context: MeasuringContext) -> tuple[Measured, Any]:
    """(types as the compiler lays them out, the "dispatch" section) of a layout document; each part is taken from the
    context's cache if it is there."""

    def ask_for_keys() -> dict[str, Any]:
        """The "dispatch" section, by running a program."""
        context.show("asking libc10.so for its dispatch keys")
        return compiler.dispatch_section(torch, command, flags, context.folder)

    # a part's name has a checksum of its wants: another gdbext may want other types
    names = {table: f"{table}-{zlib.crc32(wants_of(table).source(()).encode()):08x}" for table in _DOING}
    types, *others = (
        Measured(**context.parts.get(name, partial(_measure_table, table, command, flags, context)))
        for table, name in names.items()
    )
    for other in others:
        types.add(other)
    dispatch = context.parts.get("keys", ask_for_keys)
    context.parts.remove(*names.values(), "keys")
    return types, dispatch


_DOING = {
    "torch": "compiling its headers",
    "distributed": "compiling the headers of torch.distributed",
    "settings": "compiling the headers of its settings",
}


def _measure_table(table: str, command: str, flags: list[str], context: MeasuringContext) -> dict[str, Any]:
    """The results (``Measured``, as JSON) for a table of wants. Headers of torch.distributed or of the settings that do
    not compile leave their table absent: they need others that the wheel lacks."""
    context.show(_DOING[table])
    wants = wants_of(table)
    if table == "torch":
        return asdict(measure(wants, command, flags, context.folder, context.known))
    folder = context.folder / table
    folder.mkdir()
    write_stubs(table, folder)
    try:
        return asdict(measure(wants, command, [*flags, "-idirafter", str(folder)], folder, context.known))
    except LayoutError:
        return asdict(Measured(command, absent=[want.name for want in wants.all]))


def layout_document(kind: str, identity: str, version: str, measured: Measured) -> dict[str, Any]:
    """A layout document with all measured sections."""
    return {
        "schema": "gdbext-layout/1",
        "kind": kind,
        "id": identity,
        "provenance": {
            "producer": "gdbext gen_layouts 1",
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


def torch_flags(torch: Path, folder: Path, cxx11: bool, version: str, cxx: str) -> list[str]:
    """The compiler's flags for the headers of a PyTorch; writes stand-ins for missing ones into ``folder``."""
    write_stubs("every", folder / "stub")
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
        str(folder / "stub"),
    ]
    # A class whose virtual functions live elsewhere would otherwise be described as a mere declaration.
    if "clang" in Path(cxx).name:
        return [*flags, "-fstandalone-debug"]
    # Let the compiler use memory before it collects garbage: a tenth of the time.
    collector = ["--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=1000000"]
    return [*flags, "-femit-class-debug-always", *collector]


def _standard(version: str) -> str:
    """The C++ standard for the headers of a release: 2.13 needs C++20, 2.1 C++17; which release changed it is unknown,
    and those between are valid as either."""
    release = tuple(number(digits) or 0 for digits in re.findall(r"\d+", version)[:2])
    return "c++20" if release >= (2, 9) else "c++17"


def uses_cxx11_abi(libc10: Path) -> bool:
    """True if this wheel's std::string has the C++11 ABI, by the name of c10::toString(DispatchKeySet)."""
    try:
        data = libc10.read_bytes()
    except OSError as error:
        raise LayoutError(f"cannot read {libc10}: {error.strerror}") from error
    return b"_ZN3c108toStringB5cxx11ENS_14DispatchKeySetE\0" in data


def wheel_name(torch: Path) -> str:
    """The file name of the wheel that ``torch`` was installed from, "" if it is not recorded."""
    for info in sorted(torch.parent.glob("torch-*.dist-info/WHEEL")):
        tags = [line[5:].strip() for line in info.read_text(errors="replace").splitlines() if line.startswith("Tag: ")]
        if tags:
            return f"{info.parent.name[: -len('.dist-info')]}-{tags[0]}.whl"
    return ""
