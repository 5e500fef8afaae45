"""What Inductor's modules say above the calls of their kernels: the nodes of the graph that a kernel was made of.

``# Topologically Sorted Source Nodes: [relu, add], Original ATen: [aten.relu, aten.add]`` (torch/_inductor/utils.py,
get_kernel_metadata); where the configuration or the release leaves it out there is none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gdbext.inspection.threads.source_lines import SourceReader
from gdbext.torch.compile.dynamo_names import SOURCE_NODES

if TYPE_CHECKING:
    from gdbext.targets.base import Target

_TEXT = 300
"""Characters that are kept."""
_LINES = 20_000


class KernelComments:
    """Reads each module's file once, as the process sees it."""

    def __init__(self, target: Target) -> None:
        self._source = SourceReader(target)
        self._files: dict[str, dict[str, str]] = {}

    def of(self, file: str, kernel: str) -> str:
        """The comment above the kernel's definition, or else above its call; "" without one."""
        if file not in self._files:
            self._files[file] = self._read(file)
        return self._files[file].get(kernel, "")

    def _read(self, file: str) -> dict[str, str]:
        found: dict[str, str] = {}
        comment = ""
        for text in self._source.texts(file)[:_LINES]:
            if text.startswith("#"):
                comment = text.partition(SOURCE_NODES)[2][:_TEXT] or comment
                continue
            name = re.match(r"\w+", text)
            if name is not None and comment and text[name.end() :].startswith(("(", " = async_compile", ".run(")):
                found.setdefault(name[0], comment)
            if text:
                comment = ""
        return found
