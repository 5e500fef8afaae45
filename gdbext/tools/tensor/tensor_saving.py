"""Tensors as a safetensors file: which entries a tensor becomes, also where the format lacks its dtype.

Writes safetensors files: a JSON header, then the tensors' bytes, row-major, little-endian, one after the other.

https://huggingface.co/docs/safetensors, "Format": eight bytes with the header's length, the header, the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.engine.formats.whole_file import PRIVATE, WholeFile, cannot_write
from gdbext.engine.record import Record
from gdbext.errors import TargetError
from gdbext.tools.tensor.contents import Contents, NothingToRead

if TYPE_CHECKING:
    from gdbext.tools.tensor.tensor_report import TensorReporter
    from gdbext.tools.tensor.tensor_section import TensorSection

TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""Names of torch's dtypes in the format (safetensors/src/tensor.rs, 0.8.0)."""
_ALIGNMENT = 8


class StoredTensor(Record):
    """One tensor of a file: ``size`` bytes that come in pieces."""

    name: str
    dtype: str
    shape: Sequence[int]
    size: int
    data: Iterable[bytes]


def write(path: str, tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> None:
    """Write the file, for its owner only: it is whole, or it is not there.

    Raises TargetError, and whatever ``data`` raises.
    """
    try:
        with WholeFile(path, PRIVATE) as file:
            file.need(sum(tensor.size for tensor in tensors))
            _write(file, tensors, metadata)
    except OSError as error:
        raise cannot_write(path, error) from error


def _write(file: WholeFile, tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> None:
    file.write(header(tensors, metadata))
    for tensor in tensors:
        written = 0
        for piece in tensor.data:
            file.write(piece)
            written += len(piece)
        if written != tensor.size:
            raise TargetError(f"{tensor.name} has {written} bytes instead of {tensor.size}")


def header(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON, padded so that the data is aligned."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + tensor.size],
        }  # fmt: skip
        at += tensor.size
    text = json.dumps(entries, ensure_ascii=True).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


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
    write(path, entries, _metadata(tensor))
    return path


def entries_of(reporter: TensorReporter, address: int, name: str) -> Iterator[StoredTensor]:
    """The tensor's elements as an entry; nothing where there are none to read. Raises BadData, MemoryFault."""
    try:
        contents = reporter.contents(reporter.facts(address))
    except NothingToRead:
        return
    yield entry(contents, name)


def entry(contents: Contents, name: str) -> StoredTensor:
    """The elements, in a dtype that the format has."""
    element, shape = contents.geometry.element, contents.geometry.sizes
    size = contents.geometry.numel * element.size
    dtype = _AS_STORED.get(element.dtype, element.dtype)
    if element.dtype in _AS_PARTS:
        dtype, shape = _AS_PARTS[element.dtype], (*shape, 2)
    elif dtype not in TYPES:
        dtype = _RAW
        if element.size > 1:
            shape = (*shape, element.size)
        if element.packed != element.numbers:
            size = -(-contents.geometry.numel // element.packed)
            shape = (size,)
    return StoredTensor(name, dtype, shape, size, contents.stored())


def _metadata(tensor: TensorSection) -> dict[str, str]:
    """The metadata that the entries do not have."""
    found = {"dtype": tensor.dtype, "layout": tensor.layout, "sizes": str(list(tensor.sizes or ()))}
    if tensor.quantization is not None:
        how = tensor.quantization
        numbers = f"scale={list(how.scale)} zero_point={list(how.zero_point)} axis={how.axis}"
        found["quantization"] = f"{how.scheme} {numbers}"
    return found
