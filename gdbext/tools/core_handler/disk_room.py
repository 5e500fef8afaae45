"""The room for what is kept of crashes: a number of them, and megabytes including the users' caches.

The user with the most loses the oldest: no user drives out what is others'. The files belong to their users, who may
change times, and sizes without bytes: time, order and user of a crash are taken from its name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gdbext.engine.numbers import integer

SUFFIXES = ("txt", "json", "rec")
CACHES = "cache"
"""The folder of the users' caches, each named USER-UID."""
STATE_SECONDS = 60
"""Seconds for which ``.last-USER`` is valid."""
_TIME = "%Y%m%d-%H%M%S"


class KeptThing(NamedTuple):
    """A crash or a cache. They are deleted in their order: caches first, which can be made again."""

    is_crash: bool
    is_newest: bool
    when: str
    name: str
    user: int
    size: int


def crash_stem(name: str, pid: int, uid: int, user: int) -> str:
    """The name of a crash of now, with the user if that is not its files' owner."""
    whose = f".{user}" if user != uid else ""
    return f"crash-{name}-{pid}{whose}-{time.strftime(_TIME)}"


def make_room(folder: Path, newest: str, keep: int, size: int) -> None:
    """Delete until there are at most ``keep`` crashes, as many caches, and ``size`` bytes; the crash ``newest``
    stays."""
    for file in [*folder.glob(".last-*"), *folder.glob(".places-*")]:  # the latter are left from earlier versions
        with contextlib.suppress(FileNotFoundError):
            if not 0 <= time.time() - file.stat().st_mtime < STATE_SECONDS:
                file.unlink()
    kept = sorted([*_crashes(folder, newest), *_caches(folder / CACHES)])
    while True:
        crashes = [thing for thing in kept if thing.is_crash]
        caches = [thing for thing in kept if not thing.is_crash]
        too_many = next((things for things in (crashes, caches) if len(things) > max(keep, 1)), None)
        if too_many is None and sum(thing.size for thing in kept) <= size:
            return
        shares = Counter[int]()  # by user: the number if there are too many, else the bytes
        for thing in too_many or kept:
            shares[thing.user] += 1 if too_many else thing.size
        candidates = [thing for thing in too_many or kept if not thing.is_newest]
        victim = max(candidates, key=lambda thing: shares[thing.user], default=None)
        if not victim:
            return
        kept.remove(victim)
        if victim.is_crash:
            for suffix in SUFFIXES:
                (folder / f"{victim.name}.{suffix}").unlink(missing_ok=True)
        else:
            shutil.rmtree(folder / CACHES / victim.name, ignore_errors=True)


def _crashes(folder: Path, newest: str) -> Iterator[KeptThing]:
    files: dict[str, list[os.stat_result]] = {}
    for file in folder.glob("crash-*"):
        with contextlib.suppress(FileNotFoundError):
            files.setdefault(file.stem, []).append(file.lstat())
    for stem, stats in files.items():
        before, *when = stem.rsplit("-", 2)
        user = before.rpartition("-")[2].partition(".")[2]
        owner = integer(user) if user.isdecimal() else stats[0].st_uid
        size = sum(stat.st_blocks for stat in stats) * 512  # stat(2)
        yield KeptThing(True, stem == newest, "-".join(when), stem, owner, size)


def _caches(folder: Path) -> Iterator[KeptThing]:
    for cache in folder.iterdir() if folder.exists() else ():
        blocks, latest = 0, 0.0
        for path, _, names in os.walk(cache):
            for name in [".", *names]:
                with contextlib.suppress(FileNotFoundError):
                    stat = os.lstat(f"{path}/{name}")
                    blocks, latest = blocks + stat.st_blocks, max(latest, stat.st_mtime)
        user = cache.name.partition("-")[0]
        when = time.strftime(_TIME, time.localtime(latest))
        yield KeptThing(False, False, when, cache.name, integer(user) if user.isdecimal() else -1, blocks * 512)
