"""Writes layout documents: small files, quick to load, and still to be read in a diff."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write a document so that a reader never sees half of it: temporary file in the same folder, then rename."""
    write_text(dumps(document), path)


def write_text(text: str, path: Path) -> None:
    """The same for any text."""
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


def dumps(document: Mapping[str, Any]) -> str:
    """JSON with one struct or enumeration a line."""
    lines = []
    for key, value in document.items():
        if key in ("structs", "enums") and value:
            rows = ",\n".join(f" {json.dumps(name)}: {_compact(each)}" for name, each in sorted(value.items()))
            lines.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {_compact(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
