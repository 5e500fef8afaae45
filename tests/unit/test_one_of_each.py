"""One of each: what several features need is read, found or made in one place, and nowhere a second time.

Each row names what may be called or assigned, and the files that do; a row may lose files and gets none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, calls, last_name, nodes, sources

pytestmark = pytest.mark.xdist_group("laws")

_ARCHITECTURES = r"engine/arch/.*"

CALLS = {
    "place_arguments": (
        "where an operator's arguments are passed: torch/values/cpp_values.py",
        rf"{_ARCHITECTURES}|torch/values/cpp_values\.py|tools/values/compiled_code_watch\.py",
        # the last is of kernels that torch.compile made, whose types are not those of operators
    ),
    "passing_of": ("how a C++ type is passed: torch/values/cpp_values.py", r"torch/values/cpp_values\.py"),
    "_own_addresses": ("a thread's control block: engine/glibc/pthread.py", r"engine/glibc/pthread\.py"),
    "return_slot": ("the return address of a call: engine/arch, engine/unwind", r"engine/(arch|unwind)/.*"),
    "DispatcherStruct": (
        "the dispatcher: torch/registry/__init__.py, and the probe that proves a layout before that can read",
        r"torch/(registry/__init__|layout_probe)\.py",
    ),
    "find_singleton": ("the dispatcher's address: torch/layout_choice.py", r"torch/.*|diagnosis/session\.py"),
    "kernel_parser": ("a KernelFunction: torch/registry/kernel.py", r"torch/(registry/kernel|layout_probe)\.py"),
    "Report": (
        "the report of a tool: make_report in diagnosis/reporting.py",
        r"diagnosis/reporting\.py|tools/table\.py",  # the table's is that of an error alone
    ),
}
"""A function or class → what it gives, and the only files that may call it."""
REPORTS_ADD_TO = {
    "diagnosis/diagnose.py": "a copy for the page, with the source lines of all threads",
    "diagnosis/diagnose_page.py": "a copy for the page, without values",
    "tools/probes/top.py": "the last of several reports, which has the page's name",
    "tools/table.py": "the words by which every tool was called",
}
"""Files that replace a member of a finished report, with the reason."""
_REPORT_ONLY = {"command", "target", "view", "findings", "errors", "sections", "sources", "why", "called"}
"""Members that a Report has, and no report of a thread."""
TEXTS_OF_PROC = "engine/targets/system/linux.py"
"""The one file that cuts /proc/PID/stat and /proc/PID/status into their fields."""
_END_OF_NAME = (") ", b")", b") ")
_STATUS_FIELD = re.compile(r"\s?((Sig|Cap)[A-Z][a-z]{2}|ShdPnd|NSpid|Uid|Gid|Groups|TracerPid|PPid|Tgid):\s?")
PYTHON_WAITS = re.compile(r"Waitable\.[A-Z_]+")
PYTHON_WAITS = {"cpython/abi/assumed_names.py", "cpython/sync/debtors.py", "diagnosis/waits/python_waits.py"}
"""Files with a mapping by kinds of Python waits: the names of the objects, who may end which, and what each means."""


def found(file: str, source: str) -> Iterator[tuple[int, str]]:
    """What there is a second time."""
    for node in nodes(source):
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            what, files = CALLS.get(name, ("", ""))
            if what and not re.fullmatch(files, file):
                yield node.lineno, f"{name}() is called where there is one for all already: {what}"
        if file != TEXTS_OF_PROC and _cuts_text_of_proc(node):
            yield node.lineno, f"a text of /proc is cut by hand: {TEXTS_OF_PROC} has split_stat and status_values"
        if isinstance(node, ast.Dict) and file not in PYTHON_WAITS and _is_by_python_waits(node):
            yield node.lineno, "a second table of Python waits: diagnosis/waits/python_waits.py has one"


def changed_reports(_: str, source: str) -> Iterator[tuple[int, str]]:
    """What is put into a finished report: it is made once, by make_report, which is given what belongs to it."""
    for call in calls(source):
        if last_name(call.func) == "_replace":
            made, given = ast.unparse(call.func).removesuffix("._replace"), {each.arg for each in call.keywords}
            is_report = made == "report" or made.endswith(").run(session, args, host)")
            if is_report and not given.isdisjoint(_REPORT_ONLY):
                yield call.lineno, ast.unparse(call)


def _cuts_text_of_proc(node: ast.AST) -> bool:
    """The name in stat is looked for, or a field of status by the beginning of its line."""
    if isinstance(node, ast.Call) and node.args and last_name(node.func) in ("rpartition", "rindex"):
        return isinstance(node.args[0], ast.Constant) and node.args[0].value in _END_OF_NAME
    value = node.value if isinstance(node, ast.Constant) else ""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return isinstance(text, str) and _STATUS_FIELD.match(text) is not None


def _is_by_python_waits(node: ast.Dict) -> bool:
    keys = [ast.unparse(key) for key in node.keys if key is not None]
    return len(keys) > 1 and all("Waitable." in key for key in keys)


def test_nothing_is_there_twice() -> None:
    assert breaches(found) == []
    called = {last_name(call.func) for source in sources().values() for call in calls(source)}
    assert CALLS.keys() <= called


def test_a_report_is_made_once() -> None:
    assert breaches(changed_reports, REPORTS_ADD_TO) == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("architecture.place_arguments(passings)", "place_arguments"),
        ("fields = stream.read().rpartition(b') ')[2].split()", "split_stat"),
        ("mask = next(line for line in lines if line.startswith('SigCgt:'))", "status_values"),
        ("NAMES = {Waitable.LOCK: 1, Waitable.RLOCK: 2}", "second table"),
        ("begin = stat_fields(text)[19]\nname = text.rpartition('/')[2]", ""),
        ("KINDS = (Waitable.LOCK, Waitable.RLOCK)", ""),
    ],
)
def test_planted_breaches(source: str, what: str) -> None:
    assert [what in each for _, each in found("tools/x/y.py", source)] == ([True] if what else [])


@pytest.mark.parametrize(("member", "is_breach"), [("sections=(page,)", True), ("dispatch=frames", False)])
def test_planted_changes_of_a_report(member: str, is_breach: bool) -> None:
    """Those of the report of a thread are its own."""
    assert bool(list(changed_reports("", f"report = report._replace({member})"))) is is_breach
