"""``python -m gdbext.layouts.measure TORCH FOLDER``: measures one PyTorch; started by child.py, never by a user.

Leaves FOLDER/layout.json, or FOLDER/error.json with what, why and help. Ends, with its compilers and FOLDER, as soon
as standard input does: then the process that wanted the layout was interrupted or killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from gdbext.errors import LayoutError
from gdbext.layouts.measure import generate
from gdbext.layouts.measure.types.parts import Parts
from gdbext.layouts.measure.write import write

_REMOVAL_SECONDS = 2.0


def main(torch: Path, folder: Path) -> int:
    """Exit status 0 with a layout, 1 with an error."""
    os.environ["TMPDIR"] = str(folder)  # that of the compilers
    try:
        document = generate.torch_document(torch, place=generate.Workplace(folder, Parts.of(torch), _show))
    except LayoutError as error:
        told = {"what": error.what, "why": error.why, "help": error.help}
        (folder / "error.json").write_text(json.dumps(told))
        return 1
    write(document, folder / "layout.json")
    return 0


def _show(doing: str) -> None:
    print(doing, flush=True)


class ParentWatch(threading.Thread):
    """Ends this process, its compilers and its folder when standard input ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._ending = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: None)  # for the compilers of our group, which get the default back
        self.start()

    def run(self) -> None:
        """Wait for the end."""
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


if __name__ == "__main__":
    place = Path(sys.argv[2])
    watch = ParentWatch(place)
    status = 1
    try:
        status = main(Path(sys.argv[1]), place)
    finally:
        watch.let_finish()
    sys.exit(status)
