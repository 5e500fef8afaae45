"""Arguments of operators as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdbext.model.dispatch.argument import Argument, ArgumentTensor
from gdbext.render.json.documents.tensor_document import statistics


def arguments(found: Sequence[Argument]) -> list[dict[str, Any]]:
    """In the order of the schema; ``value`` is null where it is unknown."""
    return [
        {
            "name": each.name,
            "type": each.type,
            "value": each.text or None,
            "confidence": each.certainty.value,
            "tensors": [_tensor(tensor) for tensor in each.tensors],
        }
        for each in found
    ]


def _tensor(tensor: ArgumentTensor) -> dict[str, Any]:
    found = {"address": f"{tensor.address:#x}", "short": tensor.short}
    return found if tensor.statistics is None else {**found, **statistics(tensor.statistics)}
