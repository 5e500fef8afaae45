"""A tensor as ``dispatch-tensor`` reports it.

``tensor`` of a report as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdbext.diagnosis.report.json_report import statistics
from gdbext.engine.vocabulary import Section
from gdbext.render.plain_json import keyset, number, plain
from gdbext.torch.stack.dispatch_frame import DispatchKeySet
from gdbext.torch.values.tensor_facts import GradFunction, Histogram, Part, Quantization, Statistics, StorageReport


@dataclass(frozen=True)
class TensorSection(Section):
    """Everything that is known of a tensor. None where something is unknown; ``problems`` says why."""

    name: ClassVar[str] = "tensor"
    label: str
    """The name that the user gave."""
    address: int
    implementation: str
    """The C++ class of the tensor."""
    python_type: str | None
    sizes: tuple[int | None, ...] | None
    """None for a size that is symbolic."""
    strides: tuple[int | None, ...] | None
    storage_offset: int | None
    dtype: str
    device: str | None
    layout: str
    keyset: DispatchKeySet
    numel: int | None
    requires_grad: bool | None
    is_leaf: bool | None
    is_view: bool | None
    grad_fn: GradFunction | None
    grad: str | None
    version: int | None
    names: tuple[str | None, ...] | None
    contiguity: tuple[str, ...]
    conjugate: bool
    negative: bool
    storage: StorageReport | None
    quantization: Quantization | None
    wraps: tuple[Part, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    """Notes that a reader must know: why there are no values, how a wrapper is to be understood."""
    statistics: Statistics | None = None
    histogram: Histogram | None = None
    values: Any = None
    """Nested as ``tolist()`` gives them, where there are at most 64; complex ones as complex."""
    saved: str | None = None
    """The file that was written."""
    page: str | None = None
    """The file that --html names."""
    problems: tuple[str, ...] = ()

    def document(self, why: bool) -> dict[str, Any]:
        """The section, as the JSON document has it."""
        return document(self, why)


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
