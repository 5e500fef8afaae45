"""Writes safetensors files: a JSON header, then the tensors' bytes, row-major, little-endian, one after the other.

https://huggingface.co/docs/safetensors, "Format": eight bytes with the header's length, the header, the data.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gdbext.errors import TargetError

TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""Names of torch's dtypes in the format (safetensors/src/tensor.rs, 0.8.0)."""
_ALIGNMENT = 8


class SavedTensor(NamedTuple):
    """One tensor of a file: ``size`` bytes that come in pieces."""

    name: str
    dtype: str
    shape: Sequence[int]
    size: int
    data: Iterable[bytes]


def write(path: str, tensors: Sequence[SavedTensor], metadata: Mapping[str, str]) -> None:
    """Write the file: it is whole, or it is not there. Raises TargetError, and whatever ``data`` raises."""
    partial = f"{path}.{os.getpid()}.partial"
    try:
        _write(partial, tensors, metadata)
        Path(partial).replace(path)
    except OSError as error:
        raise TargetError(
            f"cannot write {path}: {error.strerror}",
            why="the folder does not exist, belongs to somebody else, or its disk is full",
            help="name a file in a folder that you may write to, with room for the tensor; nothing was left behind",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # it has its final name, or was never made
            Path(partial).unlink()


def _write(path: str, tensors: Sequence[SavedTensor], metadata: Mapping[str, str]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb", buffering=0) as stream:
        _put(stream.fileno(), header(tensors, metadata))
        for tensor in tensors:
            written = 0
            for piece in tensor.data:
                _put(stream.fileno(), piece)
                written += len(piece)
            if written != tensor.size:
                raise TargetError(f"{tensor.name} has {written} bytes instead of {tensor.size}")
        os.fsync(stream.fileno())


def _put(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


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
