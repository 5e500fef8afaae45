"""Finds layout files by build-id or version: those shipped with gdbext and those generated on this machine."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext import cache
from gdbext.engine.formats import parse_json
from gdbext.engine.layouts import SCHEMA, SECTIONS, Layout, shared_file, unpack, validate
from gdbext.engine.numbers import number
from gdbext.errors import BadData, LayoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gdbext.engine.layouts import AnyPath
    from gdbext.engine.targets.host_files import HostFiles

PERMISSION = "GDBEXT_GENERATE"
"""Environment variable: "0" forbids running a compiler if no shipped layout fits; "as-me" (--measure-as-me) permits
running it with our own rights even if the process or its files belong to another user."""
FORBIDDEN = "0"
AS_ME = "as-me"


def package_of(library: str) -> str:
    """The folder of the installed package torch, which has its libraries in lib/."""
    return os.path.dirname(os.path.dirname(library))


def torch_version(torch: AnyPath, files: HostFiles) -> tuple[str, str]:
    """(version, git hash) of the PyTorch in folder ``torch``, "" if unknown: from the text of torch/version.py, else
    from the name of its dist-info."""
    text = files.foreign_text(f"{torch}/version.py", 1 << 16)
    line = r"^(__version__|git_version)\s*(?::[^=]*)?=\s*['\"]([^'\"]*)['\"]"
    values = dict(re.findall(line, text, re.MULTILINE))
    names = sorted(files.foreign_names(os.path.dirname(torch))) if not values.get("__version__") else []
    named = (re.fullmatch(r"torch-(.*)\.dist-info", name) for name in names)
    version = values.get("__version__") or next((match[1] for match in named if match), "")
    return version, values.get("git_version", "")


DATA = os.path.join(os.path.dirname(os.path.realpath(__file__)), "data", os.uname().machine)
"""The folder of the shipped layouts for this machine's architecture."""
INDEX = "index.json"
TORCH_LIBRARY = "libtorch_cpu.so"
_HEX = frozenset("0123456789abcdef")
_DOCUMENT_LIMIT = 16 << 20


def data_of(architecture: str) -> str:
    """The folder of the shipped layouts for an architecture (uname -m), which may not exist."""
    return DATA if architecture == os.uname().machine else f"{os.path.dirname(DATA)}/{architecture}"


def load(path: AnyPath, match: str = "exact", full: bool = False) -> Layout:
    """The layout in a file, validated (every structure of it with ``full``). Raises LayoutError."""
    document = read_layout(path)
    (validate.check_all if full else validate.check)(document, str(path))
    return Layout(document, match)


def parse(text: str, where: str, match: str) -> Layout:
    """The layout in a JSON text, every structure of it validated. Raises LayoutError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"the layout in {where} is not JSON: {error}") from error
    validate.check_all(document, where)
    return Layout(document, match)


def read_layout(path: AnyPath, whole: bool = False) -> Any:
    """The layout document in a file, alone or with the shared file. ``whole``: parse all of it into plain JSON values;
    by default the entries of the shared file are parsed on demand. Raises LayoutError."""
    document = read_document(path)
    if isinstance(document, dict) and document.get("schema") == SCHEMA:
        document = unpack(document, path, validate.SCHEMA)
        if whole:
            document.update({name: dict(document[name]) for name in SECTIONS if name in document})
    return document


def read_document(path: AnyPath) -> Any:
    """The JSON in a file. Raises LayoutError."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(_DOCUMENT_LIMIT + 1)
    except OSError as error:
        raise LayoutError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _DOCUMENT_LIMIT:
        raise LayoutError(f"{path} is larger than {_DOCUMENT_LIMIT >> 20} MB", why="it is not a layout file")
    try:
        return parse_json(data, _DOCUMENT_LIMIT)
    except BadData as error:
        raise LayoutError(f"{path} is not JSON: {error.what}", why="the file is damaged or was cut short") from error


def nccl_release(version: str, folder: AnyPath = DATA) -> dict[str, Any] | None:
    """The row of nccl.json for a release (``2.27.5``): offsets in NCCL's own structures, and the meaning of values;
    None if not measured. Raises LayoutError for a damaged file."""
    if not os.path.exists(f"{folder}/nccl.json"):
        return None
    document = read_document(f"{folder}/nccl.json")
    try:
        row_number: int | None = document["releases"].get(version)
        return None if row_number is None else dict(document["rows"][row_number])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise LayoutError(f"{folder}/nccl.json is damaged: {error}") from error


def member_offsets(
    kind: str, version: str, cxx11: bool = True, folder: AnyPath = DATA
) -> Mapping[str, Mapping[str, int]]:
    """Class → member → offset, for the release of ``version`` and that ABI of the standard library: of tensors that
    autograd's nodes save (``kind`` "saved-members"), or of members of PyTorch's NCCL process groups ("nccl-groups");
    {} if not measured. Raises LayoutError for a damaged file."""
    path = f"{folder}/{kind}-{'.'.join(map(str, release(version)))}{'' if cxx11 else '-precxx11'}.json"
    if not os.path.exists(path):
        return {}
    structs = read_document(path).get("structs")
    if not isinstance(structs, dict) or not all(isinstance(members, dict) for members in structs.values()):
        raise LayoutError(f"{path} has no structs", why="the file is damaged or was cut short")
    return structs


def by_build_id(build_id: str | None, folder: AnyPath = DATA) -> Layout | None:
    """The layout that was measured on the libtorch_cpu.so with this build-id, shipped or generated earlier; None if
    there is none. Raises LayoutError for a shipped file that is damaged or another build's."""
    if not build_id or not _HEX.issuperset(build_id):
        return None
    name = index(folder)["build_ids"].get(build_id)
    if name is None:
        return _cached(build_id)
    path = f"{folder}/{name}"
    layout = _loaded(path, *map(_modified_at, (path, f"{folder}/{shared_file('torch')}")))
    if layout.build_ids.get(TORCH_LIBRARY) != build_id:
        raise _of_another(path, layout)
    return layout


def shipped(path: AnyPath) -> Layout:
    """The whole layout in a shipped file, for a probe. Raises LayoutError, also if its id is not the file's name."""
    layout = load(path, "probed", full=True)
    if f"{layout.id}.json" != os.path.basename(path):
        raise _of_another(path, layout)
    return layout


def _of_another(path: AnyPath, layout: Layout) -> LayoutError:
    """The error for a file with the layout of another build than its name or the index says."""
    return LayoutError(
        f"{path} holds the layout of another build, {layout.id}",
        why="the file was replaced or renamed",
        help="reinstall gdbext",
    )


@lru_cache(maxsize=4)
def _loaded(path: AnyPath, *_modification_times: int) -> Layout:
    """The layout in a file; processes of one job often have the same. Raises LayoutError."""
    return load(path)


def _modified_at(path: AnyPath) -> int:
    """The modification time of a file, in nanoseconds; 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def has(build_id: str) -> bool:
    """True if there is a layout that was measured on this build; it may be damaged."""
    return build_id in index()["build_ids"] or os.path.exists(path_of_measured(build_id))


def of_release(version: str, folder: AnyPath = DATA) -> list[str]:
    """The files of the shipped layouts of the release of ``version`` (2.13.0), the nearest build first."""
    return [path for path, measured in by_version(version, folder) if release(measured) == release(version)]


def nearest_older(version: str, folder: AnyPath = DATA) -> list[str]:
    """The files of the newest shipped release, if ``version`` is of a newer minor version; else []."""
    releases = {f"{folder}/{name}": release(measured) for name, measured in index(folder)["torch"].items()}
    newest = max(releases.values(), default=())
    is_newer = release(version)[:2] > newest[:2]
    return [path for path in sorted(releases) if is_newer and releases[path] == newest]


def by_version(version: str, folder: AnyPath = DATA) -> Sequence[tuple[str, str]]:
    """(file, version) of the shipped layouts of this minor version, the nearest first.

    "2.13.0+cu126" is nearest to "2.13.0+cpu", then come 2.13.1 and so on. Other minor versions are left out: their
    dispatch keys differ, and a probe of the live structure cannot see that.
    """
    wanted = release(version)
    layouts = [(f"{folder}/{name}", measured) for name, measured in index(folder)["torch"].items()]
    minor = [layout for layout in layouts if len(wanted) > 1 and release(layout[1])[:2] == wanted[:2]]
    return sorted(minor, key=lambda layout: (release(layout[1]) != wanted, layout[1] != version, layout[1]))


def release(version: str) -> tuple[int, ...]:
    """(2, 13, 0) of "2.13.0+cpu" or "2.13.0a0+git1234567"; () when it starts with no number."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]  # "0" of "0a0"
        value = number(digits)
        if value is None:
            break
        numbers.append(value)
    return tuple(numbers)


def is_before(version: str, other: str) -> bool:
    """True if ``version`` is an older release than ``other``; False if either is unknown."""
    return () < release(version) < release(other)


def newest_release(folder: AnyPath = DATA) -> str:
    """The newest release with a shipped layout ("2.15.0"), "" if there is none. Raises LayoutError."""
    return ".".join(map(str, max(map(release, index(folder)["torch"].values()), default=())))


def index(folder: AnyPath = DATA) -> Mapping[str, Mapping[str, str]]:
    """{"build_ids": build-id of libtorch_cpu.so to file name, "torch": file name to version}. Raises LayoutError."""
    if not os.path.exists(folder):
        return {"build_ids": {}, "torch": {}}  # no layout is shipped for that architecture
    tables = read_document(f"{folder}/{INDEX}")
    if not isinstance(tables, dict) or not all(isinstance(tables.get(k), dict) for k in ("build_ids", "torch")):
        raise LayoutError(f"{folder}/{INDEX} is damaged", help="make it again: scripts/gen_layouts.py --index")
    return tables


def layout_cache() -> str:
    """The folder of layouts generated on this machine: $XDG_CACHE_HOME/gdbext/layouts."""
    return f"{cache.cache_folder()}/layouts"


def path_of_measured(build_id: str, uid: int | None = None) -> str:
    """The path of the layout of a build that was measured here with our rights, or with those of the user ``uid``: that
    user controls its content, so it may serve only that user's processes."""
    folder = layout_cache() if uid is None else f"{layout_cache()}/user-{uid}"
    return f"{folder}/{build_id}.json"


def measured_by(uid: int, build_id: str | None) -> Layout | None:
    """The layout of that build that was measured with the rights of the user ``uid``; None if there is none."""
    return _cached(build_id, uid) if build_id and _HEX.issuperset(build_id) else None


def _cached(build_id: str, uid: int | None = None) -> Layout | None:
    """The layout of that build that was measured on this machine (path_of_measured); None if there is no sound one."""
    path = path_of_measured(build_id, uid)
    try:
        os.close(cache.open_ours(path))
        layout = load(path, "generated", full=True)
    except (OSError, LayoutError):
        return None
    return layout if layout.build_ids.get(TORCH_LIBRARY) == build_id else None
