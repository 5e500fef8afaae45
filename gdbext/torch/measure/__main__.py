"""Measures one PyTorch, with the given rights; started by measurement.py (``start``), never by a user.

Writes to standard output a line for each step that it begins, and last, as JSON, {"layout": …} or {"error": …} with
what, why and help. It exits, with its compilers and its folder, as soon as standard input ends: then the process that
wanted the layout was interrupted or killed.

Everything is imported before rights are given up: the process that has the new ones may not be able to read our files,
and must not decide what they are.
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

from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.layouts import store
from gdbext.engine.targets.rooted_paths import Rights
from gdbext.errors import LayoutError
from gdbext.torch.measure import generate, measurement


def start(torch: str, folder: str, rights: list[object] | None) -> int:
    """Measure the PyTorch in the folder ``torch`` with these rights (None: ours), in the new ``folder``, and print the
    document or the error; returns the exit status: 0 with a layout, 1 with an error."""
    package, work_folder = Path(torch), Path(folder)
    watch = ParentWatch(work_folder)
    try:
        if rights:
            measurement.take_rights(Rights(*rights), folder)  # type: ignore[arg-type]
        os.environ["TMPDIR"] = folder  # for the compilers
        work_folder.mkdir(0o700)
        parts = generate.Parts(None if rights else build_id_of_file(package / "lib" / store.TORCH_LIBRARY))
        document = generate.torch_document(package, context=generate.MeasuringContext(work_folder, parts, _show))
        _show(json.dumps({"layout": document}))
        return 0
    except LayoutError as error:
        _show(json.dumps({"error": {"what": error.what, "why": error.why, "help": error.help}}))
    except OSError as error:
        _show(json.dumps({"error": {"what": f"it cannot be measured: {error}", "why": "", "help": ""}}))
    finally:
        watch.let_finish()
    return 1


def _show(line: str) -> None:
    """Send a line to the process that reads our standard output."""
    print(line, flush=True)


class ParentWatch(threading.Thread):
    """Kills this process and its compilers, and removes its folder, when standard input ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._ending = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: None)  # for the compilers of our group, which get the default back
        self.start()

    def run(self) -> None:
        """Wait for the end of standard input, then remove the folder and kill the process group."""
        while os.read(0, 1):
            continue
        self._ending.set()
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + 2
        while self._folder.exists() and time.monotonic() < deadline:  # a compiler may write there until it is gone
            shutil.rmtree(self._folder, ignore_errors=True)
            time.sleep(0.01)
        os.killpg(0, signal.SIGKILL)

    def let_finish(self) -> None:
        """If the removal has begun, wait for it: it must end before the process exits."""
        if self._ending.is_set():
            self.join()
