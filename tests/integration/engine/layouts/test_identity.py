"""Build-ids of files are what readelf prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gdbext.engine.layouts import store


@pytest.mark.compiler
def test_build_id_is_readelf_s() -> None:
    shown = subprocess.run(["readelf", "-n", "/bin/ls"], capture_output=True, text=True, check=True).stdout
    expected = shown.partition("Build ID: ")[2].split()[0]
    assert store.build_id_of_file(Path("/bin/ls")) == expected
