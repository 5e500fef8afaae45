"""``dispatch-lookup`` as text."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.dispatch.registered_kernel import RegisteredKernel
from gdbext.model.report import Report
from gdbext.model.sections.lookup_section import CallKeys, ChainLink, LookupSection
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """The keyset and where it comes from, the kernel found, and the chain from there."""
    lookup = report.section(LookupSection)
    name = f"{lookup.op}.{lookup.overload}" if lookup.overload else lookup.op
    if lookup.call is not None:
        yield from _call(lookup.call)
    yield f"{style(escape(name), 'bold')} with {_keys(lookup.keyset)} {lookup.keyset.bits:#x}"
    yield f"  key {lookup.key}, table index {lookup.table_index}"
    if not lookup.consistent:
        yield style("  the table entry is not what the registrations lead to: see dispatch-op", "red")
    for number, link in enumerate(lookup.chain):
        yield from _link(number, link, style, report.why)


def _call(call: CallKeys) -> Iterator[str]:
    for argument in call.arguments:
        tensor = f"  {escape(argument.tensor)}" if argument.tensor else ""
        yield f"  tensor argument {argument.argument}  contributes {_keys(argument.keyset)}{tensor}"
    whose = f"thread {call.thread}" if call.thread else "a thread in its initial state"
    yield f"  {whose} includes {_keys(call.included)}"
    yield f"  {whose} excludes {_keys(call.excluded)}"
    if call.fallthrough.bits:
        yield f"  skipped, since they fall through: {_keys(call.fallthrough)}"


def _keys(keyset: DispatchKeySet) -> str:
    return f"({', '.join(keyset.keys)})" if keyset.keys else f"(none, bits {keyset.bits:#x})"


def _link(number: int, link: ChainLink, style: Style, why: bool) -> Iterator[str]:
    arrow = "  found" if number == 0 else "  then "
    what = f"{_function(link.kernel)}  [{_abilities(link.kernel)}] ({link.path} {link.reason})"
    yield f"{arrow} {style(link.key, 'bold')}: {what}"
    if link.registered_at:
        yield style(f"        {escape(link.registered_at)}", "dim")
    certain = "" if link.certainty != "unknown" else " (not known)"
    yield f"        {escape(link.why)}{certain}"
    if why and link.next_keyset is not None:
        yield f"        redispatches with {_keys(link.next_keyset)} {link.next_keyset.bits:#x}"


def _function(kernel: RegisteredKernel) -> str:
    name, python = escape(kernel.function or "no kernel"), kernel.python
    return f"{name} ({escape(python.file)}:{python.line})" if python is not None and python.file else name


def _abilities(kernel: RegisteredKernel) -> str:
    ways = {
        "boxed": kernel.boxed,
        "unboxed": kernel.unboxed,
        "sym_unboxed": kernel.sym_unboxed,
        "fallthrough": kernel.fallthrough,
    }
    return " ".join(way for way, exists in ways.items() if exists) or "missing"
