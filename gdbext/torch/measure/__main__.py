"""Measures one PyTorch, with the rights that it is told; started by child.py (``start``), never by a user.

Says on standard output, a line each, what it begins; last, as JSON, {"layout": …} or {"error": …} with what, why and
help. Ends, with its compilers and its folder, as soon as standard input does: then the process that wanted the layout
was interrupted or killed.

All that is imported is imported before rights are given up: who has the new ones may not be able to read our files, and
must not be the one who says what they are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import elftools.elf.elffile  # noqa: F401 - needed later, when it may be out of reach

from gdbext.engine.targets.rooted_paths import Rights
from gdbext.errors import LayoutError
from gdbext.torch.measure import child, generate
from gdbext.torch.measure.wants import Parts

_REMOVAL_SECONDS = 2.0


def start(torch: str, folder: str, rights: list[object] | None) -> int:
    """Make ``folder`` and work in there; the exit status: 0 with a layout, 1 with an error."""
    watch = ParentWatch(Path(folder))
    try:
        return main(Path(torch), Path(folder), Rights(*rights) if rights else None)  # type: ignore[arg-type]
    finally:
        watch.let_finish()


def main(torch: Path, folder: Path, rights: Rights | None) -> int:
    """Measure, and say what came out."""
    try:
        if rights:
            child.become(rights, str(folder))
        os.environ["TMPDIR"] = str(folder)  # that of the compilers
        folder.mkdir(0o700)
        parts = Parts() if rights else Parts.of(torch)
        document = generate.torch_document(torch, place=generate.MeasuringContext(folder, parts, _show))
    except LayoutError as error:
        _show(json.dumps({"error": {"what": error.what, "why": error.why, "help": error.help}}))
        return 1
    except OSError as error:
        _show(json.dumps({"error": {"what": f"it cannot be measured: {error}", "why": "", "help": ""}}))
        return 1
    _show(json.dumps({"layout": document}))
    return 0


def _show(line: str) -> None:
    print(line, flush=True)


class ParentWatch(threading.Thread):
    """Ends this process, its compilers and its folder when standard input ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._ending = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: None)  # for the compilers of our group, which get the default back
        self.start()

    def run(self) -> None:
        """Run until the end of the measurement."""
        while os.read(0, 1):
            continue
        self._ending.set()
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while self._folder.exists() and time.monotonic() < deadline:  # a compiler may write there until it is gone
            shutil.rmtree(self._folder, ignore_errors=True)
            time.sleep(0.01)
        os.killpg(0, signal.SIGKILL)

    def let_finish(self) -> None:
        """The main thread is done; without this it would end the process under our hands."""
        if self._ending.is_set():
            self.join()
