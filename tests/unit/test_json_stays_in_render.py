"""Reports are typed: JSON values are made where ALLOWED says, and nothing else has dictionaries of anything in a
signature.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.source.parsed import breaches, last_name, nodes

pytestmark = pytest.mark.xdist_group("laws")

DOCUMENTS = "documents that other programs read"
ALLOWED = {
    "render/plain_json.py": DOCUMENTS,
    "tools/known/__init__.py": DOCUMENTS,
    "diagnosis/report/": DOCUMENTS,
    "engine/layouts/": DOCUMENTS,
    "torch/measure/": DOCUMENTS,
    "engine/targets/recording/": DOCUMENTS,
    "torch/state/setting_sources.py": DOCUMENTS,
    "tools/ranks/": DOCUMENTS,
    "tools/trace/chrome_trace.py": DOCUMENTS,
    "tools/values/launch.py": DOCUMENTS,
    "tools/collectives/": DOCUMENTS,
    "tools/operators/lookup.py": DOCUMENTS,
    "tools/info/info_report.py": DOCUMENTS,
    "hosts/library/process.py": DOCUMENTS,
    "hosts/py_spy.py": "the JSON of another program",
    "tools/report/": "leaves members of a document out",
}
"""Files, and folders with a slash, that make JSON values."""
SECTIONS = re.compile(r"tools/\w+/\w+_section\.py")
"""A section stands beside its JSON form."""
MAPPINGS = {"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"}


def untyped_mappings(file: str, source: str) -> Iterator[tuple[int, str]]:
    """Each ``dict[str, Any]`` or the like, also in a quoted annotation."""
    for node in () if SECTIONS.fullmatch(file) else nodes(source):
        if isinstance(node, ast.Subscript) and last_name(node.value) in MAPPINGS:
            arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            if [last_name(each) for each in arguments] == ["str", "Any"]:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any]" in node.value:
            yield from ((node.lineno, text) for text in _quoted(node.value))


def _quoted(text: str) -> list[str]:
    try:
        return [what for _, what in untyped_mappings("", text)]
    except SyntaxError:
        return []  # prose


def test_only_the_renderer_of_json_has_untyped_mappings() -> None:
    assert breaches(untyped_mappings, ALLOWED) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def document(report) -> dict[str, Any]: ...", 1),
        ("def view(info: 'Mapping[str, Any] | None', other: list[typing.Dict[str, typing.Any]]) -> None: ...", 2),
        ("def run():\n    lookup: collections.abc.Mapping[str, Any] = {}", 1),
        ("def names() -> dict[str, str]: ...\nthreads: dict[int, Any] = {}", 0),
        ('"""What dict[str, Any] is not for."""', 0),
    ],
)
def test_planted_mappings(source: str, count: int) -> None:
    assert len(list(untyped_mappings("tools/operators/op.py", source))) == count
    assert not list(untyped_mappings("tools/operators/op_section.py", source))
