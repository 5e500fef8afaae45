"""Makes the wheel of a folder of sources with this Python's own setuptools; started by scripts/package.

Fails where that is older than pyproject.toml asks for, or missing: then pip has to fetch one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from pathlib import Path

NEEDED = 64
"""What pyproject.toml says of setuptools."""


def make(sources: Path, folder: Path) -> None:
    """Write the wheel into the folder as pip has it made: by the hook of PEP 517, which works in the current folder."""
    os.chdir(sources)
    build_meta = importlib.import_module("setuptools.build_meta")
    build_meta.build_wheel(str(folder))


def main() -> None:
    """The command line: the sources and the folder."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("make_wheel: no setuptools here")
    if int(version.split(".")[0]) < NEEDED:
        sys.exit(f"make_wheel: setuptools {version} is older than {NEEDED}")
    make(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())


if __name__ == "__main__":
    main()
