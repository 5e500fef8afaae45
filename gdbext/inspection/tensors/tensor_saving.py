"""Tensors as a safetensors file: which entries a tensor becomes, also where the format lacks its dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.errors import TargetError
from gdbext.formats import safetensors_file
from gdbext.formats.safetensors_file import SavedTensor
from gdbext.torch.tensors.contents import Contents, NothingToRead

if TYPE_CHECKING:
    from gdbext.inspection.tensors.tensor_report import TensorReporter
    from gdbext.model.sections.tensor_section import TensorSection

_AS_PARTS = {"complex128": "float64", "complex32": "float16"}
"""Complex dtypes that the format lacks: saved with the real and the imaginary part as last dimension."""
_AS_STORED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
_RAW = "uint8"


def save(reporter: TensorReporter, tensor: TensorSection, path: str) -> str:
    """Write the tensor to ``path``, which is returned. Raises TargetError (it cannot be written, or has no elements),
    MemoryFault, BadData."""
    name = tensor.label if tensor.label.isidentifier() else "tensor"
    entries = list(entries_of(reporter, tensor.address, name))
    for part in tensor.parts:
        entries += entries_of(reporter, part.address, f"{name}.{part.name}")
    if not entries:
        raise TargetError(
            f"{tensor.label} has no elements that can be saved",
            why="; ".join((*tensor.notes, *tensor.problems)) or None,
            help="dispatch-tensor without --save shows what there is",
        )
    safetensors_file.write(path, entries, _metadata(tensor))
    return path


def entries_of(reporter: TensorReporter, address: int, name: str) -> Iterator[SavedTensor]:
    """The tensor's elements as an entry; nothing where there are none to read. Raises BadData, MemoryFault."""
    try:
        contents = reporter.contents(reporter.facts(address))
    except NothingToRead:
        return
    yield entry(contents, name)


def entry(contents: Contents, name: str) -> SavedTensor:
    """The elements, in a dtype that the format has."""
    element, shape = contents.geometry.element, contents.geometry.sizes
    size = contents.geometry.numel * element.size
    dtype = _AS_STORED.get(element.dtype, element.dtype)
    if element.dtype in _AS_PARTS:
        dtype, shape = _AS_PARTS[element.dtype], (*shape, 2)
    elif dtype not in safetensors_file.TYPES:
        dtype = _RAW
        if element.size > 1:
            shape = (*shape, element.size)
        if element.packed != element.numbers:
            size = -(-contents.geometry.numel // element.packed)
            shape = (size,)
    return SavedTensor(name, dtype, shape, size, contents.stored())


def _metadata(tensor: TensorSection) -> dict[str, str]:
    """What the entries do not say."""
    found = {"dtype": tensor.dtype, "layout": tensor.layout, "sizes": str(list(tensor.sizes or ()))}
    if tensor.quantization is not None:
        how = tensor.quantization
        numbers = f"scale={list(how.scale)} zero_point={list(how.zero_point)} axis={how.axis}"
        found["quantization"] = f"{how.scheme} {numbers}"
    return found
