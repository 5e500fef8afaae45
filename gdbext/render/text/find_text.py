"""What ``dispatch-values nan`` found, as text."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.dispatch.launch import Find, Launch, LaunchTensor
from gdbext.render.text.style import escape
from gdbext.render.text.views.tensor_view import statistics_text
from gdbext.torch.values.number_text import number_text

_WIDTH = 44


def find_lines(find: Find, what: str) -> Iterator[str]:
    """The operator, where it was called, its values, and the calls before it. ``what``: "NaN" or the like."""
    launch = find.launch
    key = f", key {launch.key}" if launch.key else ""
    yield f"{escape(launch.qualified)} made the first {what}: call {launch.call}{key}"
    yield f"  kernel {escape(launch.kernel)}"
    if find.file:
        yield f"  called at {escape(find.file)}:{find.line}"
    if not find.is_certain:
        yield "  not certain: an argument could not be read, and may have had it already"
    for value in launch.values:
        if not value.tensors:
            yield f"  {value.name} = {escape(value.text) or '?'}"
        yield from (f"  {tensor.name}: {_tensor_text(tensor)}" for tensor in value.tensors)
    if find.history:
        yield f"  the {len(find.history)} calls before, the last one first (what they returned):"
        yield f"    {'operator':<{_WIDTH}}{'min':>14}{'max':>14}{'NaN':>8}"
    for each in reversed(find.history):
        yield f"    {_row(each)}"


def _tensor_text(tensor: LaunchTensor) -> str:
    numbers = statistics_text(tensor.statistics) if tensor.statistics is not None else "no elements to read"
    return f"{tensor.short}  {numbers}"


def _row(launch: Launch) -> str:
    found = [tensor.statistics for value in launch.results for tensor in value.tensors if tensor.statistics is not None]
    lows = [each.minimum for each in found if each.minimum is not None]
    highs = [each.maximum for each in found if each.maximum is not None]
    low = number_text(min(lows)) if lows else "-"
    high = number_text(max(highs)) if highs else "-"
    return f"{escape(launch.qualified):<{_WIDTH}}{low:>14}{high:>14}{sum(each.nan for each in found):>8}"
