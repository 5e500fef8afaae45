"""A process's code beside that of its files."""

from __future__ import annotations

from pathlib import Path


def changed_text(pid: int, only: str = "/") -> list[str]:
    """The mapped files, with that in their path, whose executable pages in memory are not those of the file."""
    changed = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, permissions, offset, _, _, *path = line.split(maxsplit=5)
            if permissions != "r-xp" or not path or not path[0].startswith("/") or only not in path[0]:
                continue
            start, end = (int(each, 16) for each in span.split("-"))
            memory.seek(start)
            with open(path[0], "rb") as file:
                file.seek(int(offset, 16))
                if memory.read(end - start) != file.read(end - start):
                    changed.append(path[0])
    return changed
