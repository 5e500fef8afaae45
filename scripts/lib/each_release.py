"""One comparison for each of some releases of PyTorch, and a page of docs/ with a row for each."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import installed_torch
import release_page

from gdbext.errors import GdbextError
from support.installed import pythons

Compare = Callable[[str, str], tuple[Sequence[str], Sequence[str]]]
"""(release, interpreter that has it) to (the page's row, what differs in words). Raises GdbextError, AssertionError."""
_VERSION = "import torch; print(torch.__version__.partition('+')[0])"


def run(
    description: str | None, page: Path, head: str, columns: Sequence[str], compare: Compare, headers: bool = True
) -> int:
    """Parse the command line and compare them all; without ``headers`` those of the wheels are removed, so that what is
    installed already cannot be compared. Exit status 0: everything that was compared is equal."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="releases")
    parser.add_argument("--python", default="3.11", metavar="X.Y", help="CPython to use (default: %(default)s)")
    parser.add_argument("--index-url", metavar="URL", help="package index for torch alone (default: pip's)")
    parser.set_defaults(installed=[], headers=headers)
    if headers:
        parser.add_argument("--installed", action="append", metavar="PYTHON", help="instead: a Python that has torch")
    parser.add_argument("--output", type=Path, default=page, metavar="FILE")
    options = parser.parse_args()
    good = True
    for wanted in (*options.installed, *options.versions):
        try:
            with _release(wanted, wanted in options.installed, options) as (version, executable):
                row, problems = compare(version, executable)
        except (GdbextError, AssertionError) as error:
            print(f"{wanted}: {error}", file=sys.stderr)
            good = False
            continue
        good = good and not problems
        print("\n".join([" ".join(row), *problems]), file=sys.stderr, flush=True)
        release_page.keep(options.output, head, columns, row)
    return 0 if good else 1


@contextmanager
def _release(wanted: str, installed: bool, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(version, interpreter); what is not there already is installed into a folder that is removed again."""
    if installed:
        done = subprocess.run([wanted, "-W", "ignore", "-c", _VERSION], capture_output=True, text=True, check=True)
        yield done.stdout.strip(), wanted
        return
    with tempfile.TemporaryDirectory(prefix="gdbext-release-") as folder:
        python = pythons.need(options.python)
        executable = installed_torch.install(wanted, python, Path(folder), options.index_url)
        if not options.headers:
            shutil.rmtree(installed_torch.package(Path(folder)) / "include")
        yield wanted, executable
