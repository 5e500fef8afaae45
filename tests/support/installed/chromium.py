"""Pages in headless Chromium: what they look like when their scripts have run, and what they say on the console."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

_CONSOLE = re.compile(r'CONSOLE[:(].*?"(.*)", source', re.DOTALL)


class Loaded(NamedTuple):
    """The document as HTML, and the messages on the console."""

    dom: str
    console: list[str]

    def text(self, identity: str) -> str:
        """What stands in the element with that id, which has no elements inside."""
        found = re.search(rf'<[^>]* id="{identity}"[^>]*>([^<]*)<', self.dom)
        assert found is not None, f"no element {identity}"
        return found[1]


def load(page: Path, fragment: str = "") -> Loaded:
    """The page, three seconds of its own time after it was loaded. Nothing of the user's Chromium is used."""
    with tempfile.TemporaryDirectory() as home:
        options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1300,900 --v=0"
        words = [*options.split(), "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"]
        done = subprocess.run(
            ["chromium", f"--user-data-dir={home}", *words, f"{page.as_uri()}{fragment}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "HOME": home},
        )
    return Loaded(done.stdout, _CONSOLE.findall(done.stderr))
