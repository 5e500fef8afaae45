"""``dispatch-info --memory`` as text: the sum, then by dtype, then the largest storages."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.memory_section import CudaMemory, MemorySection
from gdbext.render.text.style import Style, escape

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, two tables, and what is missing."""
    section = report.section(MemorySection)
    tensors, storages = f"{section.tensors} tensors", f"{section.storages} storages"
    least = "at least " if section.truncated else ""
    yield style(f"{tensors} that Python knows hold {least}{amount(section.bytes)} in {storages}.", "bold")
    for each in section.held:
        yield f"  {amount(each.bytes):>10}  {each.storages:6}  {escape(each.dtype)} on {escape(each.device)}"
    if section.largest:
        yield ""
        yield style("The largest", "bold")
    for storage in section.largest:
        name = f"  {escape(storage.name)}" if storage.name else ""
        yield f"  {amount(storage.bytes):>10}  {escape(storage.tensor)}{name}"
    for device in section.cuda:
        yield ""
        yield from _cuda(device, style)
    for text in section.truncated:
        yield style(escape(text), "yellow")
    for text in section.problems:
        yield style(f"unknown: {escape(text)}", "yellow")


def _cuda(memory: CudaMemory, style: Style) -> Iterator[str]:
    """What people ask for first: bytes now and at most; the rest is in the JSON document."""
    yield style(f"CUDA device {memory.device}, as its caching allocator counts", "bold")
    for name in ("allocated", "requested", "active", "reserved", "inactive_split"):
        now, most = (memory.statistics.get(f"{name}_bytes.all.{each}") for each in ("current", "peak"))
        if now is not None and most is not None:
            yield f"  {amount(now):>10}  {name.replace('_', ' ')}, at most {amount(most)}"
    segments, ooms = (memory.statistics.get(name, 0) for name in ("segment.all.current", "num_ooms"))
    yield f"  {segments} segments, out of memory {ooms} times"


def amount(size: int) -> str:
    """A number of bytes with its unit."""
    number, unit = float(size), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit else f"{size} B"
