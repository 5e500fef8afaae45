"""A tensor as ``dispatch-tensor`` reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.sections.section import Section
from gdbext.model.statistics import Histogram, Statistics
from gdbext.model.tensor_parts import GradFunction, Part, Quantization, StorageReport


@dataclass(frozen=True)
class TensorSection(Section):
    """Everything that is known of a tensor. None where something is unknown; ``problems`` says why."""

    name: ClassVar[str] = "tensor"
    label: str
    """What the user called it."""
    address: int
    implementation: str
    """Its C++ class."""
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
    """What a reader must know: why there are no values, how a wrapper is to be understood."""
    statistics: Statistics | None = None
    histogram: Histogram | None = None
    values: Any = None
    """Nested as ``tolist()`` gives them, where there are at most 64; complex ones as complex."""
    saved: str | None = None
    """The file that was written."""
    page: str | None = None
    """The file of --html."""
    problems: tuple[str, ...] = ()
