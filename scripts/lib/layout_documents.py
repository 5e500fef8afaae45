"""Makes the layout documents that only developers generate: CPython's, and offsets in some classes of PyTorch."""

from __future__ import annotations

import re
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from gdbext.engine.layouts.store import torch_version
from gdbext.engine.targets.host_files import HostFiles
from gdbext.errors import LayoutError
from gdbext.torch.distributed.group_structures import NCCL
from gdbext.torch.measure import compiler, generate
from gdbext.torch.measure.compiler import Measured, measure
from gdbext.torch.measure.wants import Wants, wants_of, write_stubs

SAVED_MEMBERS_HEADER = "torch/csrc/autograd/generated/Functions.h"
"""The header, in every wheel, with the generated class of each node of autograd."""


def saved_member_wants(header: str) -> Wants:
    """The offset of each member in which a node of autograd keeps tensors, as a constant "Class.member" or, for a
    vector, "Class.member[]". ``header`` is the text of SAVED_MEMBERS_HEADER."""
    offsets = {"THPFunction.saved_variables[]": "__builtin_offsetof(THPFunction, saved_variables)"}
    for declared in re.finditer(r"^struct TORCH_API (\w+) : public \w+ \{(.*?)^\};", header, re.S | re.M):
        node = declared[1]
        for kind, name in re.findall(r"^  (SavedVariable|std::vector<SavedVariable>) (\w+);", declared[2], re.M):
            suffix = "" if kind == "SavedVariable" else "[]"
            offsets[f"{node}.{name}{suffix}"] = f"__builtin_offsetof(torch::autograd::generated::{node}, {name})"
    includes = f"#include <{SAVED_MEMBERS_HEADER}>\n#include <torch/csrc/autograd/python_function.h>\n"
    return Wants(includes, {}, {}, offsets)


def saved_members_document(torch: Path, cxx: str | None = None, cxx11: bool | None = None) -> dict[str, Any]:
    """Class → member → offset in bytes, for the PyTorch installed in ``torch``, or for its headers under that ABI of
    the standard library. Raises LayoutError."""
    header = torch / "include" / SAVED_MEMBERS_HEADER
    if not header.exists():
        raise LayoutError(f"{header} does not exist", why="the wheel was stripped of its headers")
    wants = saved_member_wants(header.read_text())
    document, measured = _offsets_document("saved-members", torch, wants, cxx, cxx11)
    for want, offset in measured.constants.items():
        kind, _, member = want.partition(".")
        document["structs"].setdefault(kind, {})[member] = offset
    return document


def nccl_groups_document(torch: Path, cxx: str | None = None, cxx11: bool | None = None) -> dict[str, Any]:
    """As ``saved_members_document``, for the members of NCCL's process groups that are read."""
    document, measured = _offsets_document("nccl-groups", torch, wants_of("nccl-groups"), cxx, cxx11)
    for struct in NCCL:
        if struct.OF in measured.structs:
            fields = measured.structs[struct.OF]["fields"]
            paths = (member.path for member in struct.members() if member.path in fields)
            document["structs"][struct.OF] = {path: fields[path]["offset"] for path in paths}
    return document


def _offsets_document(
    kind: str, torch: Path, wants: Wants, cxx: str | None, cxx11: bool | None
) -> tuple[dict[str, Any], Measured]:
    """(a document of offsets of that ``kind`` whose "structs" are still empty, the answers to ``wants`` to fill them
    from). The other arguments are as in ``saved_members_document``."""
    version, git = torch_version(torch, HostFiles())
    command = cxx or compiler.find_compiler(generate.CXX)
    with tempfile.TemporaryDirectory(prefix="gdbext-layout-") as name:
        folder = Path(name)
        write_stubs(kind, folder / "stubs")
        cxx11 = generate.uses_cxx11_abi(torch / "lib" / "libc10.so") if cxx11 is None else cxx11
        includes = [f"-I{folder}/stubs", f"-I{sysconfig.get_path('include')}"]
        measured = measure(
            wants, command, [*includes, *generate.torch_flags(torch, folder, cxx11, version, command)], folder
        )
    document = {
        "kind": kind,
        "id": f"{kind}-{version.partition('+')[0]}{'' if cxx11 else '-precxx11'}",
        "provenance": {
            "version": version,
            "git": git,
            "compiler": measured.compiler,
            "wheel": generate.wheel_name(torch),
        },
        "absent": measured.absent,
        "structs": {},
    }
    return document, measured


def cpython_document(prefix: Path, cc: str | None = None) -> dict[str, Any]:
    """The layout document of the CPython whose headers are in ``prefix``/include/python3.X. Raises LayoutError."""
    headers = sorted(prefix.glob("include/python3.*/Python.h"))
    if not headers:
        raise LayoutError(
            f"{prefix}/include holds no CPython headers",
            why="they come with a development package (python3-dev) or with pyenv",
            help="scripts/gen_layouts.py --cpython PREFIX, where PREFIX/include/python3.X/Python.h exists",
        )
    include = headers[0].parent
    command = cc or compiler.find_compiler(("gcc", "cc", "clang"))
    flags = ["-DPy_BUILD_CORE=1", f"-I{include}", f"-I{include}/internal"]
    with tempfile.TemporaryDirectory(prefix="gdbext-layout-") as name:
        measured = measure(wants_of("cpython"), command, flags, Path(name))
    hexversion = measured.constants["PY_VERSION_HEX"]
    version = f"{hexversion >> 24}.{hexversion >> 16 & 255}.{hexversion >> 8 & 255}"
    suffix = "t" if measured.constants.get("Py_GIL_DISABLED") else ""
    return generate.layout_document("cpython", f"cpython-{version.rpartition('.')[0]}{suffix}", version, measured)
