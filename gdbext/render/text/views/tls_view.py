"""``dispatch-tls`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdbext.model.report import Report
from gdbext.render.text.style import Style, escape

_FLAGS = ("grad_mode", "inference_mode", "forward_ad", "multithreading", "view_replay", "python_dispatcher")


def render(report: Report, style: Style) -> Iterator[str]:
    """All threads of the report, a blank line between them."""
    threads = report.extra["threads"]
    for position, thread in enumerate(threads):
        if position:
            yield ""
        yield style(_headline(thread), "bold")
        yield from _state(thread["tls"])
    if not threads:
        yield "No thread to show."


def _headline(thread: Mapping[str, Any]) -> str:
    number = f" {thread['number']}" if thread["number"] is not None else ""
    name = thread["python_name"] or thread["name"]
    named = f' "{escape(name)}"' if name else ""
    return f"Thread{number}{named} (tid {thread['tid']})"


def _state(tls: Mapping[str, Any]) -> Iterator[str]:
    for which in ("included", "excluded"):
        keys = tls[which]
        yield f"  {which}  " + ("unknown" if keys is None else f"({', '.join(keys)}) {tls[which + '_bits']}")
    yield "  " + ", ".join(f"{name.replace('_', ' ')} {_word(tls[name])}" for name in _FLAGS)
    yield f"  autocast  {_autocast(tls)}"
    layers = tls["functorch"]
    yield "  functorch  " + _list(layers, [f"{one['transform']} (level {one['level']})" for one in layers or ()])
    modes = tls["python_modes"]
    names = [one["name"] + (f" [{one['infra']}]" if one["infra"] else "") for one in modes or ()]
    yield "  Python modes  " + _list(modes, names)
    functions = tls["torch_function_modes"]
    limit = tls["torch_function"] or "unknown"
    yield f"  __torch_function__  {limit}; modes {_list(functions, functions or [])}"
    sequence = tls["sequence_number"]
    yield f"  autograd sequence number  {'unknown' if sequence is None else sequence}"


def _word(value: bool | None) -> str:
    return "unknown" if value is None else "on" if value else "off"


def _list(value: object, names: list[str]) -> str:
    return "unknown" if value is None else escape(", ".join(names)) or "none"


def _autocast(tls: Mapping[str, Any]) -> str:
    devices = tls["autocast"]
    if devices is None:
        return "unknown"
    on = [f"{device} ({state['dtype'] or 'dtype unknown'})" for device, state in devices.items() if state["enabled"]]
    extra = f", nesting {tls['autocast_nesting']}, cache {_word(tls['autocast_cache'])}"
    return (", ".join(on) + extra) if on else "off"
