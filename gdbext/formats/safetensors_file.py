"""Writes safetensors files: a JSON header, then the tensors' bytes, row-major, little-endian, one after the other.

https://huggingface.co/docs/safetensors, "Format": eight bytes with the header's length, the header, the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from gdbext.errors import TargetError
from gdbext.formats.whole_file import WholeFile, cannot_write
from gdbext.model.record import Record

TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""Names of torch's dtypes in the format (safetensors/src/tensor.rs, 0.8.0)."""
_ALIGNMENT = 8


class SavedTensor(Record):
    """One tensor of a file: ``size`` bytes that come in pieces."""

    name: str
    dtype: str
    shape: Sequence[int]
    size: int
    data: Iterable[bytes]


def write(path: str, tensors: Sequence[SavedTensor], metadata: Mapping[str, str]) -> None:
    """Write the file: it is whole, or it is not there. Raises TargetError, and whatever ``data`` raises."""
    try:
        with WholeFile(path) as file:
            file.need(sum(tensor.size for tensor in tensors))
            _write(file, tensors, metadata)
    except OSError as error:
        raise cannot_write(path, error) from error


def _write(file: WholeFile, tensors: Sequence[SavedTensor], metadata: Mapping[str, str]) -> None:
    file.write(header(tensors, metadata))
    for tensor in tensors:
        written = 0
        for piece in tensor.data:
            file.write(piece)
            written += len(piece)
        if written != tensor.size:
            raise TargetError(f"{tensor.name} has {written} bytes instead of {tensor.size}")


def header(tensors: Sequence[SavedTensor], metadata: Mapping[str, str]) -> bytes:
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
