"""Finds the layout that fits: loaded by build-id, probed by version, or generated from the installed headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdbext.errors import LayoutError
from gdbext.layouts import validate
from gdbext.layouts.layout import Layout

DATA = Path(__file__).resolve().parent / "data"


def load(path: Path, match: str = "exact", full: bool = False) -> Layout:
    """The layout in a file, validated (every structure of it with ``full``). Raises LayoutError."""
    document = read_document(path)
    (validate.check_all if full else validate.check)(document, str(path))
    return Layout(document, match)


def read_document(path: Path) -> Any:
    """The JSON in a file. Raises LayoutError."""
    import json

    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise LayoutError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is no JSON: {error}", why="the file is damaged or was cut short") from error
