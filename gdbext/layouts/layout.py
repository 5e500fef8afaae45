"""A loaded layout: structures, enumerations and constants of one build of PyTorch or CPython."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdbext.errors import LayoutError
from gdbext.process.struct_view import Field, Struct


class Layout:
    """Offsets of one build, from a document of schema "gdbext-layout/1".

    ``match`` says how it was chosen: "exact" (the build-id in memory is the one it was measured on),
    "generated" (measured just now, or earlier, on the installed headers), "probed" (another build of the same
    version, and the live structures make sense through it). Structures are turned into objects when asked for,
    since a report needs a handful of the 150.
    """

    def __init__(self, document: Mapping[str, Any], match: str = "exact") -> None:
        self.id: str = document["id"]
        self.kind: str = document["kind"]
        self.match = match
        self.provenance: Mapping[str, Any] = document["provenance"]
        self.build_ids: Mapping[str, str] = document["build_ids"]
        self.absent: tuple[str, ...] = tuple(document.get("absent", ()))
        self.evidence: tuple[str, ...] = ()
        """What the probe found, for --why; empty when the build-id matched."""
        self.unsound: tuple[LayoutError, ...] = ()
        """Files that came first and cannot be used: damaged, or those of another build."""
        self._document = document
        self._structs: dict[str, Struct] = {}

    @property
    def version(self) -> str:
        """The version that the layout was measured on, such as "2.13.0+cpu"."""
        return str(self.provenance["version"])

    def text(self) -> str:
        """The document as JSON, for a recording."""
        import json

        return json.dumps(self._document, default=dict)

    def has_struct(self, name: str) -> bool:
        """Whether ``struct(name)`` will find something."""
        return name in self._document["structs"]

    def struct(self, name: str) -> Struct:
        """The class ``name``. Raises LayoutError when the layout lacks it."""
        found = self._structs.get(name)
        if found is None:
            entry = self._lookup("structs", name)
            fields = {n: _field(n, f) for n, f in entry["fields"].items()}
            found = self._structs[name] = Struct(name, entry["size"], fields)
        return found

    def enum(self, name: str) -> dict[str, int]:
        """Enumerator name to value, in order of declaration. Raises LayoutError."""
        return dict(self._lookup("enums", name))

    def constant(self, name: str) -> int:
        """A constant of the headers; names are in measure/torch_types.py and cpython_types.py. Raises LayoutError."""
        return int(self._lookup("constants", name))

    def dispatch(self, name: str) -> Any:
        """What libc10 said of its dispatch keys (torch layouts only). Raises LayoutError.

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
        try:
            return self._document[section][name]
        except KeyError:
            raise LayoutError(f"layout {self.id} has no {name} among its {section}") from None


def _field(name: str, entry: Mapping[str, Any]) -> Field:
    return Field(
        name, entry["offset"], entry["size"], entry["type"], entry.get("bit_offset", 0), entry.get("bit_size", 0)
    )
