#!/usr/bin/env python3
"""Compares what two commits report of the same recordings and cores: every JSON document and every text, byte for byte.

    .venv/bin/python scripts/compare_documents.py COMMIT [--core FILE …]      COMMIT with the working tree
    .venv/bin/python scripts/compare_documents.py COMMIT COMMIT

Runs every command that reads, on every recording of tests/recordings, by the library (gdbext.open), and `ranks`
on the recorded jobs. A refactoring may change none of it; each difference is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "dispatch-diagnose --why",
    "dispatch-diagnose",
    "dispatch-bt --all --native --why",
    "dispatch-bt --all --args --values",
    "all-threads --stacks --why",
    "all-threads --tasks",
    "dispatch-tls",
    "dispatch-info --why",
    "dispatch-info --settings",
    "dispatch-info --memory",
    "dispatch-autograd --why",
    "dispatch-compile",
    "dispatch-collectives",
    "dispatch-op mm --why",
    "dispatch-lookup aten::mm Meta,AutogradMeta",
    "dispatch-lookup aten::mm --args CPU,AutogradCPU;CPU",
    "dispatch-keyset Meta,AutogradMeta",
)
MOST_LINES = 30
"""Lines of a difference that are printed."""


def main(argv: Sequence[str]) -> int:
    """Compare; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("old", metavar="COMMIT")
    parser.add_argument("new", metavar="COMMIT", nargs="?", default="", help="(default: the working tree)")
    parser.add_argument("--core", type=Path, nargs="+", default=[], metavar="FILE", help="cores to look at as well")
    parser.add_argument("--only", default="", metavar="TEXT", help="recordings with this in their names")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.write:
        write(options.write, options.only, [core.resolve() for core in options.core])
        return 0
    with tempfile.TemporaryDirectory(prefix="gdbext-compare-") as folder:
        trees = [extracted(options.old, Path(folder, "old"))]
        trees.append(extracted(options.new, Path(folder, "new")) if options.new else ROOT)
        outputs = [Path(folder, name) for name in ("old.json", "new.json")]
        with ThreadPoolExecutor(len(trees)) as pool:
            list(pool.map(lambda tree, output: reports_of(tree, output, argv), trees, outputs))
        old, new = (json.loads(output.read_text()) for output in outputs)
    return compare(old, new)


def extracted(commit: str, folder: Path) -> Path:
    """The packages of a commit, in a folder."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit, "gdbext"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
    return folder


def reports_of(tree: Path, output: Path, argv: Sequence[str]) -> None:
    """Write what the packages in that tree report."""
    command = [sys.executable, __file__, *argv, "--write", str(output)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(tree)})


def write(output: Path, only: str, cores: Sequence[Path]) -> None:
    """Write what the packages on sys.path report of everything: a dictionary of texts."""
    texts = {name: text for path in [*_recordings(only), *cores] for name, text in _reports(path)}
    texts.update(_jobs(only))
    output.write_text(json.dumps(texts))


def _recordings(only: str) -> list[Path]:
    return [path for path in sorted((ROOT / "tests/recordings").glob("*.rec")) if only in path.name]


def _reports(path: Path) -> Iterator[tuple[str, str]]:
    import gdbext

    where = {"recording" if path.suffix == ".rec" else "core": str(path)}
    for command in COMMANDS:
        name, *words = command.split()
        try:
            with gdbext.open(**where) as process:  # type: ignore[arg-type]
                answer = process.run(name, *words)
                yield f"{path.name}: {command} --json", json.dumps(answer.document, indent=1)
                yield f"{path.name}: {command}", str(answer)
        except gdbext.GdbextError as error:
            yield f"{path.name}: {command}", f"{type(error).__name__}: {error}"


def _jobs(only: str) -> Iterator[tuple[str, str]]:
    for job in sorted((ROOT / "tests/recordings/jobs").glob("*.json")):
        if only not in job.name:
            continue
        with tempfile.TemporaryDirectory(prefix="gdbext-job-") as folder:
            files = [Path(folder, f"{number}.json") for number, _ in enumerate(json.loads(job.read_text()))]
            for file, document in zip(files, json.loads(job.read_text())):
                file.write_text(json.dumps(document))
            for options in (["--json"], []):
                command = [sys.executable, "-m", "gdbext", "ranks", "--reports", *map(str, files), *options]
                done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
                text = done.stdout.replace(folder, "FOLDER")
                yield f"jobs/{job.name}: ranks {' '.join(options)}", f"{text}\nexit status {done.returncode}"


def compare(old: dict[str, str], new: dict[str, str]) -> int:
    """Print what differs."""
    different = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    for name in different:
        lines = difflib.unified_diff(
            old.get(name, "").splitlines(), new.get(name, "").splitlines(), "old", "new", n=2, lineterm=""
        )
        shown = list(lines)
        print(f"== {name}", *shown[:MOST_LINES], sep="\n")
        if len(shown) > MOST_LINES:
            print(f"({len(shown) - MOST_LINES} more lines)")
    print(f"{len(different)} of {len({**old, **new})} reports differ")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
