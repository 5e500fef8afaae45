"""The parts of a layout that are measured already, kept in the cache until the layout is whole.

Where a measurement is interrupted, the next one goes on behind them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

from gdbext import cache
from gdbext.errors import LayoutError
from gdbext.layouts import store
from gdbext.layouts.identity import build_id_of_file
from gdbext.layouts.measure.write import write


class Parts:
    """Of one build of PyTorch; without a ``build_id`` nothing is kept."""

    def __init__(self, build_id: str | None = None) -> None:
        folder = store.layout_cache()
        self._stem = folder / build_id if build_id and cache.may_fill(str(folder)) else None

    @classmethod
    def of(cls, torch: Path) -> Parts:
        """Those of the PyTorch in that folder."""
        return cls(build_id_of_file(torch / "lib" / store.TORCH_LIBRARY))

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The part (JSON) that an earlier measurement made, else what ``make`` returns."""
        path = self._path(name)
        if path is None:
            return make()
        try:
            if path.stat().st_uid == os.geteuid():
                return store.read_document(path)
        except (OSError, LayoutError):
            pass
        made = make()
        write(made, path)
        return made

    def remove(self, *names: str) -> None:
        """The layout is whole."""
        for name in names:
            path = self._path(name)
            if path is not None:
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path | None:
        return self._stem.with_name(f"{self._stem.name}.{name}.part") if self._stem is not None else None
