"""Signatures of the C functions that AOTInductor's code calls, from the headers that come with PyTorch.

torch/csrc/inductor/aoti_torch/c/shim.h and generated/c_shim_*.h, 2.13.0: extern "C", so that symbols say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gdbext.model.record import Record

HEADERS = ("c/shim.h", "generated/c_shim_cpu.h", "generated/c_shim_aten.h", "c/shim_cpu.h")
"""Below torch/include/torch/csrc/inductor/aoti_torch."""
PREFIX = "aoti_torch_"
TENSOR = "AtenTensorHandle"
"""An at::Tensor*."""
_FUNCTION = re.compile(r"AOTITorchError\s+(aoti_torch_\w+)\(([^)]*)\)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PARAMETER = re.compile(r"(.*?)\s*(\w+)$")


class Parameter(Record):
    """``type`` as the header writes it, without spaces at its ends: "AtenTensorHandle*"."""

    type: str
    name: str

    @property
    def is_result(self) -> bool:
        """The function writes a tensor there."""
        return self.type == f"{TENSOR}*" and self.name.startswith("ret")


def shim_signatures(headers: Iterable[str]) -> dict[str, tuple[Parameter, ...]]:
    """Function → parameters, of the texts of headers."""
    found: dict[str, tuple[Parameter, ...]] = {}
    for text in headers:
        for name, inside in _FUNCTION.findall(_COMMENT.sub("", text)):
            parameters = [_PARAMETER.match(each.strip()) for each in inside.split(",") if each.strip()]
            if None not in parameters:
                found[name] = tuple(
                    Parameter(" ".join(each.group(1).split()), each.group(2)) for each in parameters if each is not None
                )
    return found
