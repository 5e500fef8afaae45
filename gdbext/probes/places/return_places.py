"""Where the functions return that have a lookup inside: their ``ret`` instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.live.hooks.operator_functions import OperatorFunctions
from gdbext.probes.bpf.kernel import Place
from gdbext.probes.nesting import addresses
from gdbext.probes.places.site_scan import COLD
from gdbext.process.symbols import Function

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.probes.bpf.place_program import TracePlace


def return_places(session: Session, places: Sequence[TracePlace]) -> dict[str, list[Place]]:
    """For each file the returns of the functions that these places are in. A function that leaves by a jump only has
    none."""
    functions = OperatorFunctions(session)
    where = addresses(session, places)
    offsets: dict[str, dict[int, Place]] = {}
    seen: set[int] = set()
    for number, place in enumerate(places):
        function = session.symbolizer.function(where[number]) if number in where else None
        if function is None or function.start in seen:
            continue
        seen.add(function.start)
        offset = place.site.offset - where[number]
        found = offsets.setdefault(place.path, {})
        for part in (function, *_cold_parts(session, functions, function)):
            found.update((at + offset, Place(at + offset, 0)) for at in functions.returns(part))
    return {path: list(found.values()) for path, found in offsets.items() if found}


def _cold_parts(session: Session, functions: OperatorFunctions, function: Function) -> list[Function]:
    """The parts that it jumps to; they are in the same segment of the file."""
    parts = []
    for target in sorted(functions.calls_of(function)):
        part = session.symbolizer.function(target)
        if part is not None and any(name.endswith(COLD) for name in part.names):
            parts.append(part)
    return parts
