"""What Inductor's modules say above the calls of their kernels: the nodes of the graph that a kernel was made of.

``# Topologically Sorted Source Nodes: [relu, add], Original ATen: [aten.relu, aten.add]`` (torch/_inductor/utils.py,
get_kernel_metadata); where the configuration or the release leaves it out there is none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gdbext.inspection.threads.source_lines import SourceReader
from gdbext.model.record import Record
from gdbext.torch.compile.dynamo_names import GRAPH_ID, SOURCE_NODES

if TYPE_CHECKING:
    from gdbext.targets.base import Target

_TEXT = 300
"""Characters that are kept."""
_LINES = 20_000
_HEAD = 20
"""First lines, one of which names the graph."""


class KernelComments:
    """Reads each module's file once, as the process sees it."""

    def __init__(self, target: Target) -> None:
        self._source = SourceReader(target)
        self._files: dict[str, _Comments] = {}

    def of(self, file: str, kernel: str) -> str:
        """The comment above the kernel's definition, or else above its call; "" without one."""
        return self._module(file).kernels.get(kernel, "")

    def graph(self, file: str) -> str:
        """AOTAutograd's identity of the graph that a module was made of: "0_inference"; "" without one."""
        return self._module(file).graph

    def at(self, file: str, line: int) -> str:
        """The comment above a line, in the same function; "" without one."""
        return self._module(file).lines.get(line, "")

    def _module(self, file: str) -> _Comments:
        if file not in self._files:
            texts = self._source.texts(file)[:_LINES]
            self._files[file] = _Comments(_graph(texts), _above_kernels(texts), _above_lines(texts))
        return self._files[file]


class _Comments(Record):
    """Of one module: its graph, and the nodes by kernel and by line."""

    graph: str
    kernels: dict[str, str]
    lines: dict[int, str]


def _graph(texts: list[str]) -> str:
    found = (GRAPH_ID.search(text) for text in texts[:_HEAD])
    return next((match[1] for match in found if match), "")


def _above_lines(texts: list[str]) -> dict[int, str]:
    """The nodes of each statement that follows a comment with them, until the next one or an empty line."""
    found: dict[int, str] = {}
    comment = ""
    for number, text in enumerate(texts, 1):
        if SOURCE_NODES in text and text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_TEXT]
        elif not text or text.startswith("def "):
            comment = ""
        elif comment:
            found[number] = comment
    return found


def _above_kernels(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    comment = ""
    for text in texts:
        if text.startswith("#"):
            comment = text.partition(SOURCE_NODES)[2][:_TEXT] or comment
            continue
        name = re.match(r"\w+", text)
        if name is not None and comment and text[name.end() :].startswith(("(", " = async_compile", ".run(")):
            found.setdefault(name[0], comment)
        if text:
            comment = ""
    return found
