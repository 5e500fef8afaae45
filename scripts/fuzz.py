#!/usr/bin/env python3
"""Damages what gdbext reads, looks at it, and says what went wrong: the damage campaign.

    .venv/bin/python scripts/fuzz.py                         for a minute, all kinds
    .venv/bin/python scripts/fuzz.py --looks 100000          so many looks
    .venv/bin/python scripts/fuzz.py --kind registers live   these kinds (or those whose names begin so)
    .venv/bin/python scripts/fuzz.py --one registers:17      that look again, with the smallest damage that does it

A look is one command on one damaged target. It fails by
- an internal error, an exception that nobody caught, the end of the process;
- more than 10 s of processor time, a minute without an answer, or 1 GB of memory;
- what it leaves behind in its process: limits, timers, signals, garbage collection that is switched off;
- a document that is not as docs/gdbext-1.schema.json has it;
- a false statement: an operator, a kernel, a key with its keyset (exact or verified), a lock's owner (recorded) or a
  deadlock that the undamaged target does not have.

A false statement is excused where the damage itself says so, for whoever reads a process can know no better: the lock's
own word names another owner, the very register in which the keyset is passed holds another one. Which damage it was is
found out: the changes are taken away one by one until none can be left out. Of those that are left one must
be what the statement says or what its evidence names,
- by value: the changed word, as 4 or 8 bytes, is a number (of 4096 or more) in the statement's evidence;
- by place: it lies in the first 64 bytes of an object whose address the evidence names;
- by text: the operator's or the kernel's name has the text of the changed word in it, four characters of it or all.
A gone owner and a thread that waits for itself are excused by place alone, a lost thread by nothing: these conclude
from what is not there, for which one damaged word is not enough.
Memory that cannot be read excuses nothing, and nothing excuses an operator whose name is none, or an owner beyond the
largest tid.

Seeds are fixed: the same kind and seed are the same look, on any machine that has the same recordings. Kinds that need
gdb, gcc or the rights to trace a process are left out where these are missing.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.fuzzing import campaign, folders, worker  # noqa: E402
from support.fuzzing.look import Kind, Result  # noqa: E402

SECONDS = _MINUTE = 60.0


def main() -> int:
    """Run what the command line asks for; 1 where a look failed."""
    options = _options()
    chosen = _chosen(campaign.available(), options.kind)
    if options.one:
        return max(_one(chosen, name) for name in options.one)
    seconds = options.seconds or (0.0 if options.looks else SECONDS)
    report = _Report()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        rows = campaign.run(chosen, options.seed, options.looks, seconds, report.show)
    finally:
        for kind in chosen:
            kind.close()
    print(campaign.table(rows))
    return 1 if report.failed else 0


class _Report:
    """Shows failures as they come."""

    def __init__(self) -> None:
        self.failed = 0
        self._looks = 0
        self._begin = self._last = time.monotonic()

    def show(self, result: Result) -> None:
        """One line and the details of a failure, with what to run to see it again."""
        self._looks += 1
        if time.monotonic() - self._last > _MINUTE:
            self._last = time.monotonic()
            minutes = (self._last - self._begin) / _MINUTE
            print(f"{self._looks} looks in {minutes:.0f} min", file=sys.stderr, flush=True)
        for what, how in result.failures:
            self.failed += 1
            print(f"{what}: {result.title}\n    {how.strip()}\n    scripts/fuzz.py --one {result.name}", flush=True)
            for change in result.smallest[:10]:
                print(f"    damage: {change:.200}", flush=True)


def _one(chosen: list[Kind], name: str) -> int:
    os.environ["GDBEXT_DEBUG"] = "1"
    kind, _, seed = name.rpartition(":")
    found = next(each for each in chosen if each.name == kind)
    folders.own_cache()
    result = worker.run(found, int(seed), shrink=True)
    found.close()
    report = _Report()
    report.show(result)
    print(f"{result.name}: {result.title}, {result.seconds:.3f} s, {result.megabytes} MB, status {result.status}")
    return 1 if report.failed else 0


def _chosen(found: list[Kind], names: list[str]) -> list[Kind]:
    if not names:
        return found
    chosen = [kind for kind in found if any(kind.name == name or kind.name.startswith(name) for name in names)]
    if not chosen:
        raise SystemExit(f"kinds are: {', '.join(kind.name for kind in found)}")
    return chosen


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.0, help=f"how long (default {SECONDS:.0f})")
    parser.add_argument("--looks", type=int, default=0, help="how many looks")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of each kind (default 0)")
    parser.add_argument("--kind", nargs="+", default=[], help="these kinds only")
    parser.add_argument("--one", nargs="+", default=[], metavar="KIND:SEED", help="these looks only, in this process")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
