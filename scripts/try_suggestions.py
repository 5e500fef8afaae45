#!/usr/bin/env python3
"""Run every command that the texts of recorded processes suggest, in a shell: how many there are, and how many are
refused.

The texts are those of dispatch-diagnose and of all-threads, for each recording. What changes a process (gcore, kill,
echo into a file of the kernel's) is counted and not run; a recording suggests none of it. Exit status 0: each command
ended with 0.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISPATCH = str(ROOT / "scripts" / "dispatch")
_SUGGESTED = re.compile(rf"(?:: |   )({re.escape(DISPATCH)} .*?)\.?$", re.MULTILINE)
_CHANGES = re.compile(r": ((?:gcore|kill -CONT|echo) .*)$", re.MULTILINE)
_COMMAND = re.compile(r" (dispatch-[a-z]+|all-threads|ranks)\b")
_SECONDS = 300


def main() -> int:
    """Exit status 0 when every suggestion was taken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="FILE.rec|PID", help="default: all recordings of the tests")
    options = parser.parse_args()
    sources = options.sources or sorted(map(str, (ROOT / "tests" / "recordings").glob("*.rec")))
    commands: dict[str, str] = {}
    changes: set[str] = set()
    failed = []
    for source in sources:
        for words in ([], ["all-threads"]):
            status, text = _run([DISPATCH, "-p" if source.isdecimal() else "-r", source, *words])
            if status:
                failed.append(f"{source} {' '.join(words)}: {text.strip().splitlines()[-1]}")
            commands.update((command, source) for command in _SUGGESTED.findall(text))
            changes.update(_CHANGES.findall(text))
    failed += _refused(commands)
    kinds = Counter(word for command in commands for word in _COMMAND.findall(command)[:1])
    print(f"{len(sources)} sources, {len(commands)} different commands, {len(failed)} refused; not run: {len(changes)}")
    print(", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    print("\n".join(failed))
    return 1 if failed else 0


def _refused(commands: dict[str, str]) -> Iterator[str]:
    for command, source in commands.items():
        status, text = _run(command)
        if status:
            yield f"{Path(source).name}: {command}: status {status}: {text.strip().splitlines()[-1:]}"


def _run(command: str | Sequence[str]) -> tuple[int, str]:
    """The exit status and all that was written; a text is run by a shell."""
    done = subprocess.run(command, shell=isinstance(command, str), capture_output=True, text=True, timeout=_SECONDS,
                          stdin=subprocess.DEVNULL, cwd=ROOT, check=False)  # fmt: skip
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
