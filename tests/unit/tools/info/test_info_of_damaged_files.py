"""dispatch-info on a process whose memory map contradicts its files."""

from __future__ import annotations

from gdbext.engine.targets.recording.recording import RecordedModule
from support.recorded.recordings import Replay, recording


def test_a_file_that_is_mapped_below_its_addresses_has_a_base_modulo_the_address_space() -> None:
    """Its schema knows no negative addresses: the document is compared with it."""
    whole = recording("python-lock-abba")
    first = next(mapping for mapping in whole.maps if mapping.path.endswith("libc.so.6"))
    moved = [
        mapping._replace(offset=mapping.offset + (1 << 48)) if mapping.path == first.path else mapping
        for mapping in whole.maps
    ]
    modules = {**whole.modules, first.start: RecordedModule("missing", "not here", None)}
    gone = frozenset({first.start})
    replay = Replay("python-lock-abba", whole._replace(maps=tuple(moved), modules=modules, unreadable=gone))
    bases = [int(module["base"], 16) for module in replay.document("dispatch-info")["info"]["modules"]]
    assert any(base >> 63 for base in bases)
