"""Measures the layout of an installed PyTorch, in a process of its own, and keeps it in the cache.

Called before a process is stopped (``ahead``); by a session only where nobody could know beforehand what it needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gdbext.cache import may_fill
from gdbext.errors import LayoutError
from gdbext.layouts import store, validate
from gdbext.layouts.layout import Layout
from gdbext.layouts.measure.child import MeasuringProcess
from gdbext.layouts.measure.write import write

NO_GENERATION = "GDBEXT_GENERATE"
"""Environment variable: 0 forbids to run a compiler when no shipped layout fits."""
FAILED = "GDBEXT_MEASURING_FAILED"
"""Environment variable, set by us for ourselves: "BUILD-ID WHY" of what took long and failed, not to be tried again."""
_WORTH_REMEMBERING_SECONDS = 2.0
"""A missing compiler is found out at once, and may be there the next time."""


def measure_torch(package: Path, build_id: str | None, terminal: int | None = 2) -> Layout:
    """The layout of the PyTorch in ``package`` (site-packages/torch), whose libtorch_cpu.so has that build-id.

    Raises LayoutError. An interruption ends all and leaves nothing behind but finished parts. Progress is shown on
    the descriptor ``terminal``, if it is one.
    """
    _refuse(package, build_id)
    started = time.monotonic()
    folder = _scratch()
    try:
        document = _measured(package, folder, _Progress(package, terminal))
        validate.check_all(document, "the generated layout")
    except LayoutError as error:
        if build_id and time.monotonic() - started > _WORTH_REMEMBERING_SECONDS:
            os.environ[FAILED] = f"{build_id} {error.what}"
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    layout = Layout(document, "generated")
    if not build_id or layout.build_ids.get(store.TORCH_LIBRARY) != build_id:
        raise LayoutError("the installed library is not the one in memory")
    _keep(document, build_id)
    return layout


def _refuse(package: Path, build_id: str | None) -> None:
    if os.environ.get(NO_GENERATION) == "0":
        raise LayoutError(f"that is forbidden ({NO_GENERATION}=0)")
    if package.parts[:2] == ("/", "proc"):  # its libc10.so would be run here, with our rights, out of its container
        inside = "/" + "/".join(package.parts[4:])
        raise LayoutError(
            "the process lives in another root (a container); in there, this makes one to be copied into "
            f"{store.layout_cache()} here: scripts/gen_layouts.py --torch {inside} --cache"
        )
    failed, _, why = os.environ.get(FAILED, "").partition(" ")
    if build_id and failed == build_id:
        raise LayoutError(why)


def _scratch() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="gdbext-layout-"))
    except OSError as error:
        raise LayoutError(f"there is no folder to measure in: {error}", help="name one in $TMPDIR") from error


def _measured(package: Path, folder: Path, progress: _Progress) -> Any:
    try:
        child = MeasuringProcess([str(package), str(folder)], folder)
    except OSError as error:
        raise LayoutError(f"the process that measures cannot be started: {error}") from error
    try:
        child.wait(progress.show)
    finally:
        progress.close()
    for name in ("layout.json", "error.json"):
        if (folder / name).exists():
            break
    else:
        raise LayoutError(child.last_words(), why="it was killed, perhaps for lack of memory (it takes 1.4 GB)")
    told = store.read_document(folder / name)
    if name == "layout.json":
        return told
    raise LayoutError(told["what"], why=told["why"], help=told["help"])


def _keep(document: Any, build_id: str) -> None:
    try:
        if may_fill(str(store.layout_cache())):
            write(document, store.layout_cache() / f"{build_id}.json")
    except OSError as error:
        print(f"gdbext: cannot keep the layout: {error}", file=sys.stderr)


class _Progress:
    """One line on a terminal that says what is going on, and for how long."""

    def __init__(self, package: Path, terminal: int | None) -> None:
        self._package = package
        self._started = time.monotonic()
        self._terminal = terminal if terminal is not None and os.isatty(terminal) else None

    def show(self, doing: str) -> None:
        """Replace the line."""
        seconds = time.monotonic() - self._started
        self._write(f"\rgdbext: measuring the layout of {self._package} (once): {doing}, {seconds:.0f} s\033[K")

    def close(self) -> None:
        """Leave the line as it is."""
        self._write("\n")

    def _write(self, text: str) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.write(self._terminal, text.encode(errors="replace"))
