"""Operators, table entries and kernels as the plain values that reports carry (JSON, schema gdbext/1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdbext.torch.registry.dispatch_table import Cell, Registration, Tables
from gdbext.torch.registry.kernel import KernelFunction, KernelName, Kernels
from gdbext.torch.registry.operators import Operator
from gdbext.torch.registry.redispatch_chain import Link
from gdbext.torch.values.keyset import KeyNames


def keyset_document(keys: KeyNames, bits: int) -> dict[str, Any]:
    """A keyset: its bits and its keys as PyTorch prints them."""
    return {"bits": f"{bits:#x}", "keys": list(keys.decode(bits))}


def kernel_document(kernels: Kernels, kernel: KernelFunction, name: KernelName, why: bool = False) -> dict[str, Any]:
    """What a kernel is and can do; with ``why`` also the other names of its code.

    ``unboxed`` is PyTorch's word: a kernel for SymInts has ``sym_unboxed`` instead.
    """
    document: dict[str, Any] = {
        "function": name.function or None,
        "valid": kernel.valid,
        "boxed": kernel.boxed != 0,
        "unboxed": kernel.unboxed != 0,
        "sym_unboxed": kernel.sym_unboxed != 0,
        "fallthrough": kernels.fallthrough(kernel),
    }
    if name.kind == "python":
        document["python"] = {"file": name.file or None, "line": name.line}
    if why and name.aliases:
        document["aliases"] = list(name.aliases)
    return document


def table_document(operator: Operator, cells: Sequence[Cell], why: bool = False) -> list[dict[str, Any]]:
    """Entries of a dispatch table. What equal entries have in common is made once: there are half a million in all."""
    shared: dict[tuple[Any, ...], dict[str, Any]] = {}
    documents = []
    for cell in cells:
        same = (cell.kernel, cell.expected, cell.path, cell.source, cell.debug)
        common = shared.get(same)
        if common is None:
            common, general = _entry(operator, cell, why)
            if general:
                shared[same] = common
        documents.append({"key": cell.key, "index": cell.slot, **common})
    return documents


def _entry(operator: Operator, cell: Cell, why: bool) -> tuple[dict[str, Any], bool]:
    """An entry without its key, and whether it is the same for every key (folded code is named by the key)."""
    kernels = operator.dispatcher.kernels
    name = kernels.name(cell.kernel, cell.key, operator.name)
    document = {
        **kernel_document(kernels, cell.kernel, name, why),
        "debug": cell.debug or None,
        "reason": cell.reason,
        "path": cell.path,
        "source": cell.source or None,
    }
    if not cell.consistent:
        expected = kernels.name(cell.expected, cell.key, operator.name)
        document["expected"] = kernel_document(kernels, cell.expected, expected)
    return document, cell.consistent and not name.aliases


def bare_cell_document(operator: Operator, slot: int) -> dict[str, Any]:
    """One entry of a dispatch table whose registrations cannot be read: only what the table itself holds."""
    kernels, key = operator.dispatcher.kernels, operator.dispatcher.keys.slots[slot].name
    kernel = operator.kernel(slot)
    name = kernels.name(kernel, key, operator.name)
    return {
        "key": key,
        "index": slot,
        **kernel_document(kernels, kernel, name),
        "debug": None,
        "reason": None,
        "path": None,
        "source": None,
    }


def registration_document(
    operator: Operator, registration: Registration, tables: Tables, why: bool = False
) -> dict[str, Any]:
    """One registered kernel."""
    kernels = operator.dispatcher.kernels
    name = kernels.name(registration.kernel, registration.key, operator.name)
    return {
        "key": registration.key,
        "alias": registration.key in operator.dispatcher.keys.alias_keys,
        "active": registration.active,
        **kernel_document(kernels, registration.kernel, name, why),
        "debug": registration.debug,
        "inferred_schema": tables.inferred_schema(registration),
    }


def chain_document(links: Sequence[Link], tables: Tables) -> list[dict[str, Any]]:
    """An expected chain; ``next`` is the key of the next link, null at the end."""
    keys = tables.dispatcher.keys
    kernels = tables.dispatcher.kernels
    return [
        {
            "key": link.cell.key,
            "kernel": {
                **kernel_document(kernels, link.cell.kernel, link.name),
                "registered_at": link.cell.debug or None,
                "reason": link.cell.reason,
                "path": link.cell.path,
            },
            "keyset": keyset_document(keys, link.keyset),
            "next": None if link.next_keyset is None else keys.highest_key(link.next_keyset),
            "next_keyset": None if link.next_keyset is None else keyset_document(keys, link.next_keyset),
            "certainty": link.certainty,
            "why": link.why,
        }
        for link in links
    ]
