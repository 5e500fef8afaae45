"""The number law: text that the target, a file or the command line has becomes a number in engine/numbers.py alone.

int() raises for 5,000 digits, where nobody expects it. No test sees what is text; so whatever int() is given must be
seen to be a number (an answer of struct, a comparison, a sum), or its module is declared with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, calls

pytestmark = pytest.mark.xdist_group("laws")

DECLARED = {
    "the parser": ["engine/numbers.py"],
    "numbers already": [
        *("cpython/", "diagnosis/verdict/slowness.py", "engine/arch/__init__.py"),
        *("tools/autograd/autograd.py", "tools/tensor/contents.py"),
        *("tools/tensor/statistics.py", "tools/tensor/tensor_report.py", "tools/timeout/__init__.py"),
        *("tools/watch/__init__.py", "torch/values/value_text.py"),
    ],
    "text that is cut short": ["engine/formats/mangled_name.py"],
    "numbers of a document, whose shapes are checked first": ["engine/layouts/__init__.py"],
    "words of the kernel's, which are numbers of a word of memory": [
        *("engine/targets/budget.py", "engine/targets/rooted_paths.py"),
        *("engine/targets/live/", "engine/targets/system/", "hosts/cli/debugger_runner.py", "tools/family.py"),
        *("tools/probes/", "tools/ps/__init__.py", "tools/ranks/rank_processes.py", "tools/watch/progress_watch.py"),
    ],
    "descriptors of our own; names in /proc": ["engine/targets/core_sources.py"],
    "numbers and words of the debugger's": ["hosts/gdb/", "hosts/lldb/"],
    "words that we wrote ourselves": [
        *("hosts/hang_watcher.py", "hosts/pytest_plugin.py", "live/dispatch_places.py", "tools/outcome.py"),
        *("torch/registry/operator_names.py", "torch/stack/kernel_match.py"),
        *("engine/formats/cfi_program.py", "engine/layouts/declarations.py"),
    ],
    "words of the compiler and of the kernel": ["torch/measure/"],
}
"""Why they may → modules, and folders with a slash; what converts nothing must not be in the list."""


def conversions(_: str, source: str) -> Iterator[tuple[int, str]]:
    """Each int() of what may be text, and each place that int is handed to."""
    for call in calls(source):
        if ast.unparse(call.func) in ("isinstance", "issubclass", "cast", "TypeVar"):
            continue
        handed = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_handed = any(isinstance(each, ast.Name) and each.id == "int" for each in handed)
        is_int = isinstance(call.func, ast.Name) and call.func.id == "int"
        if is_handed or (is_int and (len(call.args) > 1 or not all(map(_is_number, call.args)))):
            yield call.lineno, ast.unparse(call)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, (ast.Compare, ast.BinOp, ast.UnaryOp)):
        return True
    if isinstance(node, ast.BoolOp):
        return all(isinstance(each, ast.Compare) or _is_number(each) for each in node.values)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
        return "unpack" in ast.unparse(node.value.func) or ast.unparse(node.value.func) == "_word"
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("bool", "min", "max", "time.time", "value_of")
    return False


def test_text_becomes_a_number_in_one_place() -> None:
    assert breaches(conversions, DECLARED) == []
