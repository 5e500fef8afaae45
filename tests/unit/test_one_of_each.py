"""One of each: what several features need is read, found or made in one place, and nowhere a second time.

Each row names what may be called or assigned, and the files that do; a row may lose files and gets none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.parsed import nodes

pytestmark = pytest.mark.xdist_group("laws")
"""One worker parses the package for all of them."""

PACKAGE = Path(__file__).resolve().parents[2] / "gdbext"
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
_PARTS_OF_PYTHON_WAITS = re.compile(r"Waitable\.[A-Z_]+")
PYTHON_WAITS = {"cpython/abi/assumed_names.py", "cpython/sync/debtors.py", "diagnosis/waits/python_waits.py"}
"""Files with a mapping by kinds of Python waits: the names of the objects, who may end which, and what each means."""


def breaches(package: Path) -> list[str]:
    """Every breach in the package, as "file:line: what"."""
    found = []
    for file in sorted(package.rglob("*.py")):
        relative = file.relative_to(package).as_posix()
        found += [f"{relative}:{line}: {what}" for line, what in _breaches_of(relative, file.read_text())]
    return found


def _breaches_of(relative: str, source: str) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        if isinstance(node, ast.Call):
            name = _called(node)
            what, files = CALLS.get(name, ("", ""))
            if what and not re.fullmatch(files, relative):
                yield node.lineno, f"{name}() is called where there is one for all already: {what}"
            if name == "_replace" and relative not in REPORTS_ADD_TO and _is_of_report(node):
                yield node.lineno, "a report is made once: give make_report what belongs to it"
        if relative != TEXTS_OF_PROC and _cuts_text_of_proc(node):
            yield node.lineno, f"a text of /proc is cut by hand: {TEXTS_OF_PROC} has split_stat and status_values"
        if isinstance(node, ast.Dict) and relative not in PYTHON_WAITS and _by_python_waits(node):
            yield node.lineno, "a second table of Python waits: diagnosis/waits/python_waits.py has one"


def _cuts_text_of_proc(node: ast.AST) -> bool:
    """The name in stat is looked for, or a field of status by the beginning of its line."""
    if isinstance(node, ast.Call) and node.args and _called(node) in ("rpartition", "rindex"):
        return isinstance(node.args[0], ast.Constant) and node.args[0].value in _END_OF_NAME
    value = node.value if isinstance(node, ast.Constant) else ""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return isinstance(text, str) and _STATUS_FIELD.match(text) is not None


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _is_of_report(node: ast.Call) -> bool:
    made, given = ast.unparse(node.func).removesuffix("._replace"), {each.arg for each in node.keywords}
    return (made == "report" or made.endswith(").run(session, args, host)")) and not given.isdisjoint(_REPORT_ONLY)


def _by_python_waits(node: ast.Dict) -> bool:
    keys = [ast.unparse(key) for key in node.keys if key is not None]
    return len(keys) > 1 and all(_PARTS_OF_PYTHON_WAITS.search(key) for key in keys)


def test_the_tree_keeps_the_law() -> None:
    assert breaches(PACKAGE) == []


def test_no_row_is_left_over() -> None:
    """Each exception is needed: without it the tree would break the law."""
    sources = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
    calls = {
        (name, _called(node))
        for name, source in sources.items()
        for node in nodes(source)
        if isinstance(node, ast.Call)
    }
    assert {name for name in CALLS if not any(called == name for _, called in calls)} == set()
    replaced = {
        name
        for name, source in sources.items()
        for node in nodes(source)
        if isinstance(node, ast.Call) and _called(node) == "_replace" and _is_of_report(node)
    }
    assert replaced == set(REPORTS_ADD_TO)


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("tools/x/y.py", "architecture.place_arguments(passings)", "place_arguments"),
        ("diagnosis/x.py", "at = architecture.return_slot(cfa)", "return_slot"),
        ("tools/x/y.py", "report = report._replace(sections=(page,))", "made once"),
        ("tools/x/y.py", "return Report('x', None)", "make_report"),
        ("torch/x.py", "DispatcherStruct(space, address)", "DispatcherStruct"),
        ("tools/x/y.py", "fields = stream.read().rpartition(b') ')[2].split()", "split_stat"),
        ("tools/x/y.py", "end = text.rindex(b')')", "split_stat"),
        ("hosts/x.py", "mask = next(line for line in lines if line.startswith('SigCgt:'))", "status_values"),
        ("engine/x.py", "is_root = b'\\nUid:\\t0\\t0' in text", "status_values"),
        ("diagnosis/x.py", "NAMES = {Waitable.LOCK: 1, Waitable.RLOCK: 2}", "second table"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, file: str, source: str, found: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{source}\n")
    (breach,) = breaches(tmp_path)
    assert found in breach


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("tools/x/y.py", "report = report._replace(dispatch=frames)"),  # the report of a thread
        ("engine/arch/z/architecture.py", "at = self.return_slot(cfa)"),
        ("tools/x/y.py", "begin = stat_fields(text)[19]\nname = text.rpartition('/')[2]"),
        ("diagnosis/x.py", "KINDS = (Waitable.LOCK, Waitable.RLOCK)"),
    ],
)
def test_what_the_law_allows(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{source}\n")
    assert breaches(tmp_path) == []
