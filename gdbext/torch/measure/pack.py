"""Writes layout documents."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write a document as JSON with one struct or enumeration a line."""
    lines = []
    for key, value in document.items():
        if key in ("structs", "enums") and value:
            rows = ",\n".join(f" {json.dumps(name)}: {compact(entry)}" for name, entry in sorted(value.items()))
            lines.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {compact(value)}")
    write_text("{\n" + ",\n".join(lines) + "\n}\n", path)


def write_text(text: str, path: Path) -> None:
    """Write a file so that a reader never sees half of it: temporary file in the same folder, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".layout-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
