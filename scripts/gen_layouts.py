#!/usr/bin/env python3
"""Generate layout files: offsets and enumerations of PyTorch's and CPython's structures, from installed headers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gdbext.errors import LayoutError  # noqa: E402
from gdbext.layouts import store  # noqa: E402
from gdbext.layouts.measure import generate, write  # noqa: E402

DATA = ROOT / "gdbext" / "layouts" / "data"


def main() -> int:
    """Exit status 0 when every file was written, 1 when one could not be made, 2 for wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", type=Path, action="append", default=[], metavar="DIR",
                        help="folder of an installed torch package (the one that holds include/ and lib/)")  # fmt: skip
    parser.add_argument("--cpython", type=Path, action="append", default=[], metavar="PREFIX",
                        help="prefix of an installed CPython (PREFIX/include/python3.X/Python.h)")  # fmt: skip
    parser.add_argument("--output", type=Path, default=DATA, metavar="DIR",
                        help="folder for the files (default: %(default)s)")  # fmt: skip
    parser.add_argument("--compiler", metavar="CXX", help="compiler (default: g++, c++, clang++; gcc, cc, clang for C)")
    parser.add_argument("--index", action="store_true", help="only make the folder's index.json again")
    options = parser.parse_args()
    jobs: list[tuple[Callable[..., dict[str, Any]], Path]] = []
    jobs += [(generate.torch_document, folder) for folder in options.torch]
    jobs += [(generate.cpython_document, folder) for folder in options.cpython]
    if not jobs and not options.index:
        parser.error("nothing to do: give --torch, --cpython or --index")
    status = 0
    for make, folder in jobs:
        try:
            print(keep(make(folder.resolve(), options.compiler), options.output))
        except LayoutError as error:
            print(f"error: {folder}: {error}\n  {error.why}\n  {error.help}", file=sys.stderr)
            status = 1
    write.write(store.make_index(options.output), options.output / store.INDEX)
    return status


def keep(document: dict[str, object], folder: Path) -> Path:
    """Write one document under its identity and say what it lacks."""
    path = folder / f"{document['id']}.json"
    write.write(document, path)
    if document["absent"]:
        print(f"{path.name}: not in these headers: {document['absent']}", file=sys.stderr)
    return path


if __name__ == "__main__":
    sys.exit(main())
