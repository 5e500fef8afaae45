"""A replay reads nothing of this machine: what a stranger's recording names are not our files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gdbext.cache import cache_folder

ROOT = Path(__file__).resolve().parents[4]
SITE = re.compile(r".*/lib/python[\d.]+(/(site|dist)-packages(/[^/]+-info/entry_points\.txt)?)?")
"""Where other packages may add something to gdbext, of the Python that runs it (engine/entry_points.py)."""
LOOK = """
import json, os, sys
sys.path.append(sys.argv.pop(1))
asked = []
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.open", "mmap.__new__") and arguments:
        asked.append(str(arguments[0]))
for name in ("stat", "lstat", "readlink", "access"):
    def asking(path, *rest, _call=getattr(os, name), **options):
        asked.append(os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else "")
        return _call(path, *rest, **options)
    setattr(os, name, asking)
sys.addaudithook(hook)
from gdbext.hosts.cli import launcher
status = launcher.main(sys.argv[1:])
sys.stdout.flush()
sys.stderr.write(json.dumps([status, asked]))
"""


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("meta-mm", "dispatch-diagnose"),
        ("gil-mutex", "dispatch-bt --all --native --why"),
        pytest.param("meta-mm", "dispatch-info --settings", marks=pytest.mark.extended),
        pytest.param("gil-mutex", "all-threads --stacks", marks=pytest.mark.extended),
    ],
)
def test_nothing_but_our_own_files_is_asked_for(name: str, command: str) -> None:
    recording = ROOT / "tests" / "recordings" / f"{name}.rec"
    words = [sys.executable, "-I", "-S", "-c", LOOK, str(ROOT), "-r", str(recording), *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    status, asked = json.loads(done.stderr[done.stderr.index("[") :])
    assert status == 0
    known = f"{os.environ.get('XDG_CONFIG_HOME') or Path.home() / '.config'}/gdbext/known"
    ours = [str(ROOT / "gdbext"), str(recording), sys.base_prefix, "/usr/lib/python", "/dev/null", "/proc/self/statm"]
    ours += [known, f"{cache_folder()}/demangled", f"{cache_folder()}/jumps"]
    assert str(recording) in asked
    sites = {path for path in asked if SITE.fullmatch(path)}
    foreign = {path for path in asked if path.startswith("/") and not path.startswith(tuple(ours))} - sites
    own = [ROOT / "x", Path(cache_folder(), "demangled"), Path.home() / ".local" / "x", *map(Path, sites)]
    parents = {str(parent) for path in own for way in (path, path.resolve()) for parent in way.parents}
    assert foreign - parents == set(), "of our own folders the parents are asked for, too: whose are they?"
