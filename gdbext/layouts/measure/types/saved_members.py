"""Where the nodes of autograd keep the tensors that they saved: the members of each generated class, measured.

torch/csrc/autograd/generated/Functions.h (tools/autograd/templates/Functions.h of PyTorch) declares them; every wheel
has it.
"""

from __future__ import annotations

import re

from gdbext.layouts.measure.types.wants import Wants

HEADER = "torch/csrc/autograd/generated/Functions.h"
_NAMESPACE = "torch::autograd::generated"
_CLASS = re.compile(r"^struct TORCH_API (\w+) : public \w+ \{(.*?)^\};", re.S | re.M)
_MEMBER = re.compile(r"^  (SavedVariable|std::vector<SavedVariable>) (\w+);", re.M)
_LIST = "[]"
"""After the name of a member that is a vector."""
_PYTHON_HEADER = "torch/csrc/autograd/python_function.h"
_PYTHON_MEMBERS = {"THPFunction.saved_variables[]": "__builtin_offsetof(THPFunction, saved_variables)"}
"""What a torch.autograd.Function saves."""


def wants(header: str) -> Wants:
    """One constant for each member of the header's classes."""
    includes = f"#include <{HEADER}>\n#include <{_PYTHON_HEADER}>\n"
    return Wants(includes, {}, {}, {**members(header), **_PYTHON_MEMBERS})


def members(header: str) -> dict[str, str]:
    """"Class.member" to the C++ expression of its offset; of a vector "Class.member[]"."""
    found = {}
    for declared in _CLASS.finditer(header):
        for member in _MEMBER.finditer(declared[2]):
            suffix = _LIST if member[1] != "SavedVariable" else ""
            expression = f"__builtin_offsetof({_NAMESPACE}::{declared[1]}, {member[2]})"
            found[f"{declared[1]}.{member[2]}{suffix}"] = expression
    return found
