"""``info`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.target_info import TargetInfo
from gdbext.render.json.values import plain


def document(info: TargetInfo, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """What was found of torch, Python, libc and the modules."""
    modules = [{**plain(module), "base": f"{module.base:#x}"} for module in info.modules]
    return {**plain(info), "modules": modules}
