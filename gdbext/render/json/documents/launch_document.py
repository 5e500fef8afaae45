"""Launches of ``dispatch-values`` as JSON, one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gdbext.model.dispatch.launch import Find, Launch, LaunchTensor
from gdbext.render.json.documents.tensor_document import statistics
from gdbext.render.json.values import plain


def document(launch: Launch) -> dict[str, Any]:
    """As the contract has it."""
    return {
        "op": launch.op,
        "overload": launch.overload,
        "when": "before" if launch.when.startswith("before") else "after",
        "call": launch.call,
        "kernel": launch.kernel,
        "key": launch.key,
        "tid": launch.tid,
        "arguments": [argument for value in launch.values for argument in _arguments(value)],
    }


def _arguments(value: Any) -> Iterator[dict[str, Any]]:
    """A tensor list is one entry a tensor."""
    if not value.tensors:
        yield {"name": value.name, "value": value.text or None}
    for tensor in value.tensors:
        yield {"name": tensor.name, "tensor": tensor_document(tensor)}


def tensor_document(tensor: LaunchTensor) -> dict[str, Any]:
    """The members of ``dispatch-tensor``'s object that are known at a stop."""
    return {
        "address": f"{tensor.address:#x}",
        "short": tensor.short,
        "dtype": tensor.dtype,
        "sizes": plain(tensor.sizes),
        "numel": tensor.statistics.numel if tensor.statistics is not None else None,
        **statistics(tensor.statistics),
    }


def find_document(find: Find) -> dict[str, Any]:
    """What ``dispatch-values nan`` found."""
    launch = find.launch
    given = launch.values[: len(launch.values) - launch.returned]
    results = [argument for value in launch.results for argument in _arguments(value)]
    return {
        "op": launch.op,
        "overload": launch.overload,
        "kernel": launch.kernel,
        "key": launch.key,
        "call": launch.call,
        "tid": launch.tid,
        "result": results[0] if len(results) == 1 else results,
        "arguments": [argument for value in given for argument in _arguments(value)],
        "certain": find.is_certain,
        "file": find.file or None,
        "line": find.line,
        "history": [document(each) for each in find.history],
    }


def json_lines(launch: Launch) -> Iterator[str]:
    """One line."""
    yield json.dumps(document(launch), ensure_ascii=True)
