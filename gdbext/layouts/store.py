"""The layout files: those shipped with gdbext and those generated on this machine, found by build-id or version."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gdbext import cache
from gdbext.errors import LayoutError
from gdbext.layouts import packed, validate
from gdbext.layouts.layout import Layout

DATA = Path(__file__).resolve().parent / "data"
INDEX = "index.json"
TORCH_LIBRARY = "libtorch_cpu.so"
_HEX = frozenset("0123456789abcdef")
_LIMIT = 16 << 20


def load(path: Path, match: str = "exact", full: bool = False) -> Layout:
    """The layout in a file, validated (every structure of it with ``full``). Raises LayoutError."""
    document = read_layout(path)
    (validate.check_all if full else validate.check)(document, str(path))
    return Layout(document, match)


def parse(text: str, where: str, match: str) -> Layout:
    """The layout in a JSON text, every structure of it validated. Raises LayoutError."""
    import json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"the layout in {where} is not JSON: {error}") from error
    validate.check_all(document, where)
    return Layout(document, match)


def read_layout(path: Path, whole: bool = False) -> Any:
    """The layout document in a file, in one piece or with shared parts. Raises LayoutError.

    Of the latter only what is asked for is parsed, unless the ``whole`` of it is wanted as plain JSON values.
    """
    document = read_document(path)
    if isinstance(document, dict) and document.get("schema") == packed.SCHEMA:
        document = packed.unpack(document, path, validate.SCHEMA)
        if whole:
            document.update({name: dict(document[name]) for name in packed.SECTIONS if name in document})
    return document


def read_document(path: Path) -> Any:
    """The JSON in a file. Raises LayoutError."""
    import json

    try:
        with path.open("rb") as stream:
            data = stream.read(_LIMIT + 1)
    except OSError as error:
        raise LayoutError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _LIMIT:
        raise LayoutError(f"{path} is larger than {_LIMIT >> 20} MB", why="it is not a layout file")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is not JSON: {error}", why="the file is damaged or was cut short") from error


def saved_members(version: str, cxx11: bool = True, folder: Path = DATA) -> dict[str, dict[str, int]]:
    """Node class → member → offset of the tensors that autograd's nodes save, of the very release that ``version`` is a
    build of, under that ABI of the standard library; empty where that was not measured. Raises LayoutError for a
    damaged file."""
    return _members("saved-members", version, cxx11, folder)


def nccl_groups(version: str, cxx11: bool = True, folder: Path = DATA) -> dict[str, dict[str, int]]:
    """Class → member → offset of what is read of NCCL's process groups, as ``saved_members``."""
    return _members("nccl-groups", version, cxx11, folder)


def _members(kind: str, version: str, cxx11: bool, folder: Path) -> dict[str, dict[str, int]]:
    path = folder / f"{kind}-{'.'.join(map(str, release(version)))}{'' if cxx11 else '-precxx11'}.json"
    if not path.exists():
        return {}
    structs = read_document(path).get("structs")
    if not isinstance(structs, dict) or not all(isinstance(each, dict) for each in structs.values()):
        raise LayoutError(f"{path} has no structs", why="the file is damaged or was cut short")
    return structs


def by_build_id(build_id: str | None, folder: Path = DATA) -> Layout | None:
    """The layout that was measured on the libtorch_cpu.so with this build-id, shipped or generated earlier.

    Raises LayoutError when there is one and it is damaged or that of another build (a shipped one; such a file in the
    cache is passed over).
    """
    if not build_id or not _HEX.issuperset(build_id):
        return None
    name = index(folder)["build_ids"].get(build_id)
    if name is None:
        return _cached(build_id)
    path = folder / name
    layout = _loaded(path, *(_changed(each) for each in (path, folder / packed.shared_file("torch"))))
    if layout.build_ids.get(TORCH_LIBRARY) != build_id:
        raise _of_another(path, layout)
    return layout


def shipped(path: Path) -> Layout:
    """The whole layout in a shipped file, for a probe. Raises LayoutError, also for another one's under this name."""
    layout = load(path, "probed", full=True)
    if layout.id != path.stem:
        raise _of_another(path, layout)
    return layout


def _of_another(path: Path, layout: Layout) -> LayoutError:
    return LayoutError(
        f"{path} holds the layout of another build, {layout.id}",
        why="the file was replaced, or its name was changed",
        help="install gdbext again",
    )


@lru_cache(maxsize=4)
def _loaded(path: Path, *_: int) -> Layout:
    """The layout in a file; processes looked at one after the other often have the same. Raises LayoutError."""
    return load(path)


def _changed(path: Path) -> int:
    """When a file was written, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def has(build_id: str) -> bool:
    """A layout that was measured on this build is there; whether it is sound turns out when it is loaded."""
    return build_id in index()["build_ids"] or (layout_cache() / f"{build_id}.json").exists()


def of_release(version: str, folder: Path = DATA) -> list[Path]:
    """The shipped layouts of the very release that ``version`` is a build of, the nearest first."""
    return [path for path, each in by_version(version, folder) if release(each) == release(version)]


def nearest_older(version: str, folder: Path = DATA) -> list[Path]:
    """For a release newer than all that are shipped the layouts of the newest one; for any other none."""
    releases = {folder / name: release(each) for name, each in index(folder)["torch"].items()}
    newest = max(releases.values(), default=())
    if release(version)[:2] <= newest[:2]:
        return []
    return [path for path, each in sorted(releases.items()) if each == newest]


def by_version(version: str, folder: Path = DATA) -> Sequence[tuple[Path, str]]:
    """(file, version) of the shipped layouts of this minor version, the nearest first.

    "2.13.0+cu126" is nearest to "2.13.0+cpu", then come 2.13.1 and so on. Other minor versions are left out: their
    dispatch keys differ, and a probe of the live structure cannot see that.
    """
    wanted = release(version)
    if len(wanted) < 2:
        return ()
    found = [
        (folder / name, each)
        for name, each in index(folder)["torch"].items()
        if release(each)[:2] == wanted[:2]
    ]
    return sorted(found, key=lambda item: (release(item[1]) != wanted, item[1] != version, item[1]))


def release(version: str) -> tuple[int, ...]:
    """(2, 13, 0) of "2.13.0+cpu" or "2.13.0a0+git1234567"; () when it starts with no number."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]  # "0" of "0a0"
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def index(folder: Path = DATA) -> Mapping[str, Mapping[str, str]]:
    """{"build_ids": build-id of libtorch_cpu.so to file name, "torch": file name to version}. Raises LayoutError."""
    found = read_document(folder / INDEX)
    if not isinstance(found, dict) or not all(isinstance(found.get(k), dict) for k in ("build_ids", "torch")):
        raise LayoutError(f"{folder / INDEX} is damaged", help="make it again: scripts/gen_layouts.py --index")
    return found


def make_index(folder: Path = DATA) -> dict[str, dict[str, str]]:
    """What ``index`` reads, made from the layout files themselves. Raises LayoutError."""
    made: dict[str, dict[str, str]] = {"build_ids": {}, "torch": {}}
    for path in sorted(folder.glob("torch-*.json")):
        layout = load(path, full=True)
        made["torch"][path.name] = layout.version
        if TORCH_LIBRARY in layout.build_ids:
            made["build_ids"][layout.build_ids[TORCH_LIBRARY]] = path.name
    return made


def layout_cache() -> Path:
    """Where layouts generated on this machine are kept: $XDG_CACHE_HOME/gdbext/layouts."""
    return Path(cache.cache_folder()) / "layouts"


def _cached(build_id: str) -> Layout | None:
    path = layout_cache() / f"{build_id}.json"
    try:
        if path.stat().st_uid != os.geteuid():
            return None
        layout = load(path, "generated", full=True)
    except (OSError, LayoutError):
        return None
    return layout if layout.build_ids.get(TORCH_LIBRARY) == build_id else None
