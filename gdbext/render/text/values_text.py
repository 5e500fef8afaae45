"""Values of operators as text, in the words of Inductor's debug printer (torch/_inductor/codegen/debug_utils.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gdbext.model.dispatch.launch import Launch, LaunchTensor
from gdbext.render.text.style import escape
from gdbext.torch.values.number_text import number_text


def launch_lines(launch: Launch) -> Iterator[str]:
    """Each value with a headline, tensors with their statistics; the kernel where none is known."""
    if not launch.values:
        yield kernel_line(launch)
    for value in launch.values:
        headline = f"[ {launch.when} - {escape(launch.qualified)} - {value.name} ]"
        if not value.tensors:
            yield f"{headline} {escape(value.text) or '?'}"
            continue
        for tensor in value.tensors:
            yield headline if tensor.name == value.name else f"[ {launch.when} - {launch.qualified} - {tensor.name} ]"
            yield from _tensor_lines(tensor)


def _tensor_lines(tensor: LaunchTensor) -> Iterator[str]:
    found = tensor.statistics
    sizes = "unknown" if tensor.sizes is None else str(list(tensor.sizes))
    if found is not None:
        yield f"Number of elements: {found.numel}" + ("  (a sample)" if found.sampled else "")
    yield f"Size: {sizes}"
    yield f"Dtype: torch.{tensor.dtype}"
    if found is None:
        yield "no elements to read"
        return
    for name, value in (("Mean", found.mean), ("Min", found.minimum), ("Max", found.maximum), ("Std", found.std)):
        yield f"{name}: {'unknown' if value is None else number_text(value)}"
    if found.nan or found.inf:
        yield f"NaN: {found.nan}, Inf: {found.inf}"


def kernel_line(launch: Launch) -> str:
    """``[ before_launch: KERNEL ]``."""
    return f"[ {launch.when}: {escape(launch.kernel)} ]"


class LaunchPrinter:
    """Shows launches as they happen."""

    def __init__(self, show: Callable[[str], None], lines: Callable[[Launch], Iterator[str]]) -> None:
        self._show = show
        self._lines = lines

    def launch(self, launch: Launch, reporter: object) -> bool:
        """Raises OSError."""
        del reporter
        self._show("".join(f"{line}\n" for line in self._lines(launch)))
        return False
