"""The process that measures, seen from the one that started it.

It has a session of its own, so that Ctrl+C reaches only us, and it is ended as a whole, compilers included. Its
standard input is a pipe that only we hold: when we end, by whatever signal, it reads the end of it and ends, too
(``__main__``). What it writes there is one line for each thing that it begins.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

from gdbext.layouts.measure.types.debug_types import no_pyelftools

ROOT = Path(__file__).resolve().parents[3]
"""The folder (or archive) that holds the package gdbext."""
_CHECK = "import sys, elftools.elf.elffile; sys.exit(sys.version_info < (3, 9))"
_CHECK_SECONDS = 30
_GRACE_SECONDS = 5.0
"""How long the child gets to end its compilers and remove its folder, before it is killed."""
_TICK_SECONDS = 1.0


class MeasuringProcess:
    """``python -m gdbext.layouts.measure`` with ``arguments``, working in ``folder``. Raises LayoutError, OSError."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._folder = folder
        surroundings = environment()
        command = [find_python(surroundings), "-m", "gdbext.layouts.measure", *arguments]
        with (folder / "messages").open("wb") as messages:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, cwd=folder,
                env=surroundings, start_new_session=True,
            )  # fmt: skip

    def wait(self, show: Callable[[str], None]) -> None:
        """Until it has ended, showing every second what it does; whatever interrupts us ends it."""
        try:
            self._follow(show)
        finally:
            self.end()

    def _follow(self, show: Callable[[str], None]) -> None:
        output = self._process.stdout
        assert output is not None
        doing = "starting"
        while True:
            show(doing)
            if not select.select([output], [], [], _TICK_SECONDS)[0]:
                continue
            said = os.read(output.fileno(), 1 << 12)
            if not said:
                return
            doing = said.decode(errors="replace").splitlines()[-1]

    def end(self) -> None:
        """Make sure that nothing of it runs any more; idempotent."""
        if self._process.returncode is not None:
            return
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        waited = None
        while waited is None and time.monotonic() < deadline:
            # it stays a zombie until its compilers were killed, so that nobody else can have its number
            waited = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if waited is None:
                time.sleep(0.01)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """How it ended, where it left neither a result nor an error of its own."""
        try:
            lines = (self._folder / "messages").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        status = self._process.returncode
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the process that measures {how}" + (f": {lines[-1][:300]}" if lines else "")


def environment() -> dict[str, str]:
    """Ours, with gdbext and the packages that install.sh fetched on the path, and messages of compilers in English."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    folders = [ROOT, *sorted(Path(data, "gdbext").glob("site-*"), reverse=True)]
    return {**ours, "PYTHONPATH": os.pathsep.join(map(str, folders)), "LC_ALL": "C.UTF-8"}


def find_python(surroundings: Mapping[str, str]) -> str:
    """A Python 3.9 or later that finds pyelftools in these ``surroundings``. Raises LayoutError.

    Inside gdb sys.executable is a name that may not exist, and scripts/dispatch runs without site-packages.
    """
    names = (os.environ.get("GDBEXT_PYTHON", ""), sys.executable, "python3", str(ROOT / ".venv" / "bin" / "python"))
    for path in dict.fromkeys(filter(None, map(shutil.which, filter(None, names)))):
        try:
            done = subprocess.run([path, "-c", _CHECK], env=surroundings, capture_output=True, check=False,
                                  cwd="/", timeout=_CHECK_SECONDS)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return path
    raise no_pyelftools()
