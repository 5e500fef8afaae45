"""The room for what is kept of crashes: so many of them, so many megabytes with the users' caches.

Whoever has the most of what there is too much of loses their oldest: nobody drives out what is others'. The files are
their users', who may change times, and sizes without bytes: time, order and user of a crash are those of its name.
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
"""The folder of the users' caches, USER-UID each."""
STATE_SECONDS = 60
"""Seconds for which ``.last-USER`` says anything."""
_BLOCK = 512
"""Bytes that st_blocks counts in (stat(2))."""
_TIME = "%Y%m%d-%H%M%S"


class KeptThing(NamedTuple):
    """A crash, or a cache, which goes first: it can be made again. They are deleted in their order."""

    is_crash: bool
    is_newest: bool
    when: str
    name: str
    user: int
    size: int


def crash_stem(name: str, pid: int, uid: int, user: int) -> str:
    """The name of a crash of now, which says whose it is where its files' owner does not."""
    whose = f".{user}" if user != uid else ""
    return f"crash-{name}-{pid}{whose}-{time.strftime(_TIME)}"


def make_room(folder: Path, newest: str, keep: int, size: int) -> None:
    """Delete until there are so many crashes, so many caches, and so many bytes at most; the crash ``newest`` stays."""
    _forget(folder)
    kept = sorted([*_crashes(folder, newest), *_caches(folder / CACHES)])
    while True:
        crashes = [each for each in kept if each.is_crash]
        caches = [each for each in kept if not each.is_crash]
        some = next((each for each in (crashes, caches) if len(each) > max(keep, 1)), None)
        if some is None and sum(each.size for each in kept) <= size:
            return
        held = Counter[int]()
        for each in some or kept:
            held[each.user] += 1 if some else each.size
        victim = max(
            (each for each in some or kept if not each.is_newest), key=lambda each: held[each.user], default=None
        )
        if not victim:
            return
        kept.remove(victim)
        _delete(folder, victim)


def _forget(folder: Path) -> None:
    """Delete what says nothing any more of users who crashed; ``.places-`` is what earlier versions left."""
    for file in [*folder.glob(".last-*"), *folder.glob(".places-*")]:
        with contextlib.suppress(FileNotFoundError):
            if not 0 <= time.time() - file.stat().st_mtime < STATE_SECONDS:
                file.unlink()


def _crashes(folder: Path, newest: str) -> Iterator[KeptThing]:
    files: dict[str, list[os.stat_result]] = {}
    for file in folder.glob("crash-*"):
        with contextlib.suppress(FileNotFoundError):
            files.setdefault(file.stem, []).append(file.lstat())
    for stem, found in files.items():
        before, *when = stem.rsplit("-", 2)
        user = before.rpartition("-")[2].partition(".")[2]
        whose = integer(user) if user.isdecimal() else found[0].st_uid
        size = sum(each.st_blocks for each in found) * _BLOCK
        yield KeptThing(True, stem == newest, "-".join(when), stem, whose, size)


def _caches(folder: Path) -> Iterator[KeptThing]:
    for cache in folder.iterdir() if folder.exists() else ():
        blocks, latest = 0, 0.0
        for place, _, names in os.walk(cache):
            for name in [".", *names]:
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(f"{place}/{name}")
                    blocks, latest = blocks + found.st_blocks, max(latest, found.st_mtime)
        user = cache.name.partition("-")[0]
        when = time.strftime(_TIME, time.localtime(latest))
        yield KeptThing(False, False, when, cache.name, integer(user) if user.isdecimal() else -1, blocks * _BLOCK)


def _delete(folder: Path, thing: KeptThing) -> None:
    if thing.is_crash:
        for suffix in SUFFIXES:
            (folder / f"{thing.name}.{suffix}").unlink(missing_ok=True)
        return
    shutil.rmtree(folder / CACHES / thing.name, ignore_errors=True)
