"""Layouts: generated structure offsets and enums for one build of PyTorch or CPython.

A release's own file (schema "gdbext-layout/2") has its identity and, under "parts", numbers of lines in the file beside
it that all layouts of its kind share (``shared_file``). Each of those lines is a JSON array: the section, the name, the
value. The value of a structure is its size and the number of a further line, which has its members:

- ``[name, offset, size, type]``, with the bit offset and the bit size after it where it is a bit-field;
- ``[name, offset, size, type, number]``: a structure, whose members are another line's, counted from there;
- ``[offset, base class, number]``: the members of a base class, likewise.

So a class whose member class did not change refers to the same line, although all offsets in it have moved. A report
needs a handful of the 150 structures, and only these are parsed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdbext.engine.layouts import validate
from gdbext.engine.process.memory import FieldLayout, StructLayout
from gdbext.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike
    from typing import Union

    from gdbext.engine.layouts.declarations import Member

    AnyPath = Union[str, PathLike[str]]


class Layout:
    """Offsets of one build, from a document of schema "gdbext-layout/1".

    ``match`` tells how it was chosen: "exact" (measured on the build-id in memory), "generated" (measured now or
    earlier on the installed headers), "probed" (measured on another build of the same version; the live structures make
    sense through it).
    """

    def __init__(self, document: Mapping[str, Any], match: str = "exact") -> None:
        """``document`` is validated (validate.py)."""
        self.id: str = document["id"]
        self.kind: str = document["kind"]
        self.match = match
        self.provenance: Mapping[str, Any] = document["provenance"]
        self.build_ids: Mapping[str, str] = document["build_ids"]
        self.absent: tuple[str, ...] = tuple(document.get("absent", ()))
        self.evidence: tuple[str, ...] = ()  # the evidence of the probe, for --why; empty when the build-id matched
        self.unsound: tuple[LayoutError, ...] = ()
        """Errors of better files that cannot be used: damaged, or another build's."""
        self.find_renamed: Callable[[], Mapping[str, str]] = dict
        """Reads the new names that the process gave to enumerators: the layout has the headers' names."""
        self._renamed: Mapping[str, str] | None = None
        self._document = document
        self._structs: dict[str, StructLayout] = {}
        self._checked: dict[tuple[str, str], Any] = {}

    def require(self, members: Iterable[Member[Any]]) -> Layout:
        """Return this layout. Raises LayoutError if it lacks one of these members, or has it smaller than it is
        read."""
        for member in members:
            if not self.has_struct(member.owner):
                raise validate.unusable(f"layout {self.id}", f"it lacks {member.owner}")
            field = self.struct(member.owner).fields.get(member.path)
            if not field or 0 < field.size < member.width:
                raise validate.unusable(f"layout {self.id}", f"{member!r} is missing or too small")
        return self

    def of_process(self, find_renamed: Callable[[], Mapping[str, str]]) -> Layout:
        """A copy for one process, which may have renamed enumerators; the cached layout serves several."""
        layout = object.__new__(type(self))
        layout.__dict__.update(self.__dict__, find_renamed=find_renamed, _renamed=None)
        return layout

    @property
    def version(self) -> str:
        """The version that the layout was measured on, such as "2.13.0+cpu"."""
        return str(self.provenance["version"])

    def text(self) -> str:
        """The document as JSON, for a recording."""
        return json.dumps(self._document, default=dict)

    def has_struct(self, name: str) -> bool:
        """True if ``struct(name)`` will find something."""
        return name in self._document["structs"]

    def struct(self, name: str) -> StructLayout:
        """The class ``name``. Raises LayoutError when the layout lacks it."""
        if name not in self._structs:
            entry = self._lookup("structs", name)
            fields = {}
            for field, at in entry["fields"].items():
                bits = at.get("bit_offset", 0), at.get("bit_size", 0)
                fields[field] = FieldLayout(field, at["offset"], at["size"], at["type"], *bits)
            self._structs[name] = StructLayout(name, entry["size"], fields)
        return self._structs[name]

    @property
    def renamed(self) -> Mapping[str, str]:
        """Name of an enumerator in the headers → its name in the process."""
        if self._renamed is None:
            self._renamed = self.find_renamed()
        return self._renamed

    def enum(self, name: str) -> dict[str, int]:
        """Enumerator name to value, in order of declaration. Raises LayoutError."""
        return dict(self._lookup("enums", name))

    def renamed_enum(self, name: str) -> dict[str, int]:
        """``enum`` with the enumerators' names in the process. Raises LayoutError."""
        return {self.renamed.get(enumerator, enumerator): value for enumerator, value in self.enum(name).items()}

    def constant(self, name: str) -> int:
        """A constant of the headers; names are in torch/measure/wants.json. Raises LayoutError."""
        return int(self._lookup("constants", name))

    def dispatch(self, name: str) -> Any:
        """The results of libc10's functions on dispatch keys (torch layouts only). Raises LayoutError.

        key_names: list, c10::toString(DispatchKey) by value; backend_names: list, likewise for BackendComponent;
        offsets_and_masks: [offset, mask] by functionality; table_index: index into a dispatch table by
        DispatchKey value, -1 for markers and for functionalities that need a backend; runtime_keysets: alias
        key name to bits of the runtime keys that belong to it; backend_keys: values k with
        c10::isBackendDispatchKey(k); backends_of_autograd: str(k) to bits of getBackendKeySetFromAutograd(k),
        zero ones left out; autograd_of_backend and autocast_of_backend: bits by BackendComponent value less
        one; scalar_types: [name, element size in bytes] by ScalarType value.
        """
        return self._lookup("dispatch", name)

    def _lookup(self, section: str, name: str) -> Any:
        """The checked entry ``name`` of a section; cached, since each argument of each call on a stack asks for an
        enumeration. Entries of a shipped layout need no check: its checksum is right. Raises LayoutError."""
        entry = self._checked.get((section, name))
        if entry is None:
            try:
                entry = self._document[section][name]
            except KeyError:
                raise LayoutError(f"layout {self.id} has no {name} among its {section}") from None
            if not isinstance(self._document[section], LayoutSection):
                validate.check_part(section, name, entry, f"layout {self.id}")
            self._checked[section, name] = entry
        return entry


SCHEMA = "gdbext-layout/2"
SECTIONS = ("structs", "enums", "constants", "dispatch")
_LIMIT = 16 << 20  # bytes of a shared file
_DECODER = json.JSONDecoder()
_OF_BASE, _PLAIN, _HOLDS, _BITS = 3, 4, 5, 6  # kinds of a member, by the length of its array


class LayoutSection(Mapping[str, Any]):
    """One section of a layout document: each value is parsed when it is first asked for."""

    def __init__(self, lines: Mapping[str, str], shared: Sequence[str], where: str) -> None:
        """``lines``: name → line; ``shared``: all lines of the shared file; ``where``: the file, for errors."""
        self._lines = lines
        self._shared = shared
        self._where = where
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The value of entry ``name``, as in a document of schema "gdbext-layout/1". Raises KeyError if there is none,
        LayoutError if it is damaged."""
        if name not in self._values:
            line = self._lines[name]
            try:
                section, _, value = _parse_line(line)
                if section == "structs":
                    size, number = value
                    fields: dict[str, Any] = {}
                    _add_members(fields, self._shared, number, "", 0, "")
                    value = {"size": size, "fields": fields}
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
                raise LayoutError(f"a part of {self._where} is damaged: {line[:80]!r}") from error
            self._values[name] = value
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def shared_file(kind: str) -> str:
    """The name of the file that all layouts of that kind share."""
    return f"parts-{kind}.json"


def unpack(head: Mapping[str, Any], path: AnyPath, schema: str) -> dict[str, Any]:
    """The layout document (of ``schema``) of the file at ``path``, whose content is ``head``. Raises LayoutError."""
    if head.get("kind") not in validate.KINDS:
        raise LayoutError(f"{path} has an unknown kind")
    name = shared_file(head["kind"])
    shared = os.path.join(os.path.dirname(path), name)
    try:
        with open(shared, "rb") as stream:
            data = stream.read(_LIMIT)
    except OSError as error:
        raise LayoutError(f"cannot read {shared}: {error.strerror}") from error
    lines = data.decode(errors="replace").split("\n")
    numbers = head.get("parts")
    if not isinstance(numbers, list) or not all(isinstance(n, int) and 0 < n < len(lines) for n in numbers):
        raise LayoutError(f"{path} refers to parts that {name} does not have")
    if checksum(data) != head.get("crc32"):
        raise LayoutError(f"{path} and {name} beside it do not belong together")
    parts: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    try:
        for number in numbers:  # without parsing: section and name come first, and need no escapes
            _, section, _, entry, _ = lines[number].split('"', 4)
            parts[section][entry] = lines[number]
    except (ValueError, KeyError) as error:
        raise LayoutError(f"{shared} is damaged") from error
    identity = {key: value for key, value in head.items() if key not in ("parts", "crc32")}
    names = [section for section in SECTIONS if parts[section] or section != "dispatch"]
    return {**identity, "schema": schema, **{name: LayoutSection(parts[name], lines, str(path)) for name in names}}


def _parse_line(line: str) -> Any:
    """The value in a line, which may end with a comma. Raises ValueError."""
    return _DECODER.raw_decode(line)[0]


def checksum(shared: bytes) -> int:
    """The checksum in a release's file, which proves that it was written together with the shared file."""
    return zlib.crc32(shared)


def _add_members(fields: dict[str, Any], lines: Sequence[str], number: int, prefix: str, start: int, base: str) -> None:
    """Add the members in line number ``number`` of the shared file, a structure at offset ``start`` of another one, to
    ``fields`` (name → JSON of a member), with ``prefix`` before their names. ``base``: the base class that has them,
    "" for none. Raises TypeError, IndexError and the like if the line is damaged."""
    for entry in _parse_line(lines[number]):
        if len(entry) == _PLAIN:  # nearly all of them
            name, offset, size, kind = entry
            field = {"offset": start + offset, "size": size, "type": kind}
        elif len(entry) == _OF_BASE:
            offset, name, inner = entry
            _add_members(fields, lines, inner, prefix, start + offset, name)
            continue
        else:
            name, offset, size, kind, first, *bits = entry
            field = {"offset": start + offset, "size": size, "type": kind}
            if len(entry) == _BITS:
                field.update(bit_offset=8 * start + first, bit_size=bits[0])
            elif len(entry) != _HOLDS:
                raise ValueError(f"{name} has {len(entry)} numbers")
        if base:
            field["base"] = base
        fields[prefix + name] = field
        if len(entry) == _HOLDS:
            _add_members(fields, lines, entry[-1], f"{prefix}{name}.", start + offset, base)
