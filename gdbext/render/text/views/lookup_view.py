"""``dispatch-lookup`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdbext.model.report import Report
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """The keyset and where it comes from, the kernel found, and the chain from there."""
    lookup = report.extra["lookup"]
    name = f"{lookup['op']}.{lookup['overload']}" if lookup["overload"] else lookup["op"]
    if "call" in lookup:
        yield from _call(lookup["call"])
    keyset = lookup["keyset"]
    yield f"{style(escape(name), 'bold')} with {_keys(keyset)} {keyset['bits']}"
    yield f"  key {lookup['key']}, table index {lookup['table_index']}"
    if not lookup["consistent"]:
        yield style("  the table entry is not what the registrations lead to: see dispatch-op", "red")
    for number, link in enumerate(lookup["chain"]):
        yield from _link(number, link, style, report.why)


def _call(call: Mapping[str, Any]) -> Iterator[str]:
    for argument in call["arguments"]:
        tensor = f"  {escape(argument['tensor'])}" if argument["tensor"] else ""
        yield f"  tensor argument {argument['argument']}  contributes {_keys(argument['keyset'])}{tensor}"
    whose = f"thread {call['thread']}" if call["thread"] else "a thread in its initial state"
    yield f"  {whose} includes {_keys(call['included'])}"
    yield f"  {whose} excludes {_keys(call['excluded'])}"
    if call["fallthrough"]["keys"] or call["fallthrough"]["bits"] != "0x0":
        yield f"  skipped, since they fall through: {_keys(call['fallthrough'])}"


def _keys(keyset: Mapping[str, Any]) -> str:
    return f"({', '.join(keyset['keys'])})" if keyset["keys"] else f"(none, bits {keyset['bits']})"


def _link(number: int, link: Mapping[str, Any], style: Style, why: bool) -> Iterator[str]:
    kernel = link["kernel"]
    arrow = "  found" if number == 0 else "  then "
    python = kernel.get("python")
    function = escape(kernel["function"] or "no kernel")
    if python and python["file"]:
        function += f" ({escape(python['file'])}:{python['line']})"
    kinds = [word for word in ("boxed", "unboxed", "sym_unboxed", "fallthrough") if kernel[word]]
    step = f"{kernel['path']} {kernel['reason']}"
    yield f"{arrow} {style(link['key'], 'bold')}: {function}  [{' '.join(kinds) or 'missing'}] ({step})"
    if kernel["registered_at"]:
        yield style(f"        {escape(kernel['registered_at'])}", "dim")
    certain = "" if link["certainty"] != "unknown" else " (not known)"
    yield f"        {escape(link['why'])}{certain}"
    if why and link["next_keyset"]:
        yield f"        redispatches with {_keys(link['next_keyset'])} {link['next_keyset']['bits']}"
