"""``tensor`` of a report as JSON."""

from __future__ import annotations

import math
from typing import Any

from gdbext.model.sections.tensor_section import TensorSection
from gdbext.model.statistics import Statistics
from gdbext.model.tensor_parts import Part, StorageReport
from gdbext.render.json.values import keyset, plain


def document(section: TensorSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """The contract's members, and the rest; numbers that JSON lacks are strings."""
    found: dict[str, Any] = plain(section)
    del found["label"]
    found.update(
        name=section.label,
        address=f"{section.address:#x}",
        keyset=keyset(section.keyset),
        storage=_storage(section.storage),
        values=number(section.values),
        wraps=[_part(part) for part in section.wraps],
        parts=[_part(part) for part in section.parts],
    )
    del found["statistics"]
    found.update(statistics(section.statistics))
    if section.quantization is not None:
        found["quantization"] = {**plain(section.quantization)}
    return found


def statistics(found: Statistics | None) -> dict[str, Any]:
    """Members for the tensor's own object; null where there are none."""
    if found is None:
        return dict.fromkeys(("min", "max", "mean", "std", "nan", "inf", "zeros", "first_nan", "first_inf", "sampled"))
    return {
        "min": number(found.minimum),
        "max": number(found.maximum),
        "mean": number(found.mean),
        "std": number(found.std),
        "nan": found.nan,
        "inf": found.inf,
        "zeros": found.zeros,
        "first_nan": plain(found.first_nan),
        "first_inf": plain(found.first_inf),
        "sampled": found.sampled,
    }


def number(value: Any) -> Any:
    """A number, or nested lists of them; [real, imaginary] for a complex one."""
    if isinstance(value, list):
        return [number(each) for each in value]
    if isinstance(value, complex):
        return [number(value.real), number(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def _storage(found: StorageReport | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {**plain(found), "address": f"{found.address:#x}", "data": f"{found.data:#x}"}


def _part(part: Part) -> dict[str, Any]:
    found = {"name": part.name, "address": f"{part.address:#x}", "short": part.short, "sizes": plain(part.sizes)}
    if part.statistics is None:
        return found
    values = {} if part.values is None else {"values": number(part.values)}
    return {**found, **statistics(part.statistics), **values}
