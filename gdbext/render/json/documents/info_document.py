"""``info`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.sections.info_section import TargetInfo
from gdbext.model.symbol_check import SymbolChecks
from gdbext.render.json.values import plain


def document(info: TargetInfo, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """What was found of torch, Python, libc and the modules."""
    torch = None if info.torch is None else {**plain(info.torch), "symbols": _symbols(info.torch.symbols)}
    return {**plain(info), "torch": torch}


def _symbols(checks: SymbolChecks) -> dict[str, Any]:
    """How many of the assumed names were found, and each of them."""
    return {"found": checks.found, "assumed": checks.assumed, "rows": [plain(row) for row in checks.rows]}
