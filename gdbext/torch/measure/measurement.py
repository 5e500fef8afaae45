"""Measures the layout of an installed PyTorch, in a process of its own, and keeps it in the cache.

Called before a process is stopped (``measure_for_process``); by a session only if it could not be known beforehand that
a layout is missing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from gdbext.cache import may_fill
from gdbext.engine.layouts import Layout, store, validate
from gdbext.engine.layouts.store import FORBIDDEN, PERMISSION
from gdbext.engine.terminal import environment_value, escape
from gdbext.errors import LayoutError
from gdbext.torch.layout_choice import complete
from gdbext.torch.measure.child import MeasuringProcess, package_to_measure
from gdbext.torch.measure.pack import write

FAILED = "GDBEXT_MEASURING_FAILED"
"""Environment variable, set by us for ourselves: "BUILD-ID WHY" of a long measurement that failed."""
_WORTH_REMEMBERING_SECONDS = 2.0
"""A missing compiler is noticed at once, and may be there the next time."""


def measure_torch(library: str, build_id: str | None, pid: int | None = None, terminal: int | None = 2) -> Layout:
    """Measure the PyTorch that a libtorch_cpu.so with that build-id belongs to; ``pid`` is its process, whose user's
    rights are used. Progress is shown on the file descriptor ``terminal``, if it is a terminal. An interruption leaves
    only finished parts. Raises LayoutError."""
    _check_allowed(Path(store.package_of(library)), build_id)
    package, rights = package_to_measure(library, pid)
    earlier = store.measured_by(rights.uid, build_id) if rights else None
    if earlier:
        return earlier
    started = time.monotonic()
    line = _MeasuringLine(package, terminal)
    try:
        try:
            child = MeasuringProcess(package, rights)
        except OSError as error:
            raise LayoutError(f"the process that measures cannot be started: {error}") from error
        try:
            child.wait(line.show)
        finally:
            line.write("\n")
        document = child.outcome()
        validate.check_all(document, "the generated layout")
        layout = complete(Layout(document, "generated"))
    except LayoutError as error:
        if build_id and time.monotonic() - started > _WORTH_REMEMBERING_SECONDS:
            os.environ[FAILED] = environment_value(f"{build_id} {error.what}").decode()
        raise
    if not build_id or layout.build_ids.get(store.TORCH_LIBRARY) != build_id:
        raise LayoutError("the installed library is not the one in memory")
    path = Path(store.path_of_measured(build_id, rights.uid if rights else None))
    try:
        if may_fill(str(path.parent)):
            write(document, path)
    except OSError as error:
        print(f"gdbext: cannot keep the layout: {error}", file=sys.stderr)
    return layout


def _check_allowed(package: Path, build_id: str | None) -> None:
    """Raise LayoutError if measuring is forbidden, of a container's PyTorch, or has failed for that build before."""
    if os.environ.get(PERMISSION) == FORBIDDEN:
        raise LayoutError(f"that is forbidden ({PERMISSION}={FORBIDDEN})")
    if package.parts[:2] == ("/", "proc"):  # its libc10.so would be run here, with our rights, out of its container
        inside = "/" + "/".join(package.parts[4:])
        raise LayoutError(
            "the process lives in another root (a container); in there, this makes one to be copied into "
            f"{store.layout_cache()} here: scripts/dispatch measure {inside}"
        )
    failed, _, why = os.environ.get(FAILED, "").partition(" ")
    if build_id and failed == build_id:
        raise LayoutError(why)


class _MeasuringLine:
    """One line on a terminal with the current step and the seconds since the start."""

    def __init__(self, package: Path, terminal: int | None) -> None:
        self._package = package
        self._started = time.monotonic()
        self._terminal = terminal if terminal is not None and os.isatty(terminal) else None

    def show(self, step: str) -> None:
        """Replace the line."""
        seconds = time.monotonic() - self._started
        where = escape(str(self._package))
        self.write(f"\rgdbext: measuring the layout of {where} (once): {escape(step)}, {seconds:.0f} s\033[K")

    def write(self, text: str) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.write(self._terminal, text.encode(errors="replace"))
