"""A trace that is shown when its process is gone: what it is about was read before."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import TargetGone
from gdbext.tools.probes.bpf.trace_program import HEADER, RECORD
from gdbext.tools.probes.dispatch_tracer import DispatchTracer, SeenDispatch
from gdbext.tools.trace import nesting
from gdbext.tools.trace.hook_installer import TraceRequest
from gdbext.tools.trace.nesting import Nesting
from gdbext.torch.stack import DispatchEvent

OWN, SHARED = 0, 1
PLACES: list[Any] = [
    SimpleNamespace(operator=0x1000, event=DispatchEvent.CALL, path="torch.so"),
    SimpleNamespace(operator=0, event=DispatchEvent.REDISPATCH, path="torch.so"),
]


class Tracer(DispatchTracer):
    """Without a kernel."""

    def __init__(self) -> None:
        self.places = PLACES

    def dispatches(self, data: bytes) -> Iterable[SeenDispatch]:
        for time, entry, keyset, slot, returns_to, tid, place, depth in struct.iter_unpack("<8xQQQQQIHH", data):
            yield SeenDispatch(time, entry or self.places[place].operator, keyset, slot, returns_to, tid, place, depth)


def record(place: int, entry: int, keyset: int, number: int) -> bytes:
    return bytes(HEADER) + RECORD.pack(number, entry, keyset, 0x7000, 0x4000, 9, place, 1)


class Process:
    """Its operators can be read as long as it is there."""

    def __init__(self) -> None:
        self.gone = False
        self.read_operators: list[int] = []
        self.target = SimpleNamespace(read=self.read)
        self.modules = SimpleNamespace(modules=())

    def read(self, _address: int, size: int) -> bytes:
        if self.gone:
            raise TargetGone("gone")
        return bytes(size)

    def operator(self, address: int) -> int:
        self.read(address, 8)
        self.read_operators.append(address)
        return address

    def find(self, operator: int, event: str, keyset: int) -> Any:
        return SimpleNamespace(qualified=f"{event} {operator:x} {keyset}", table_entry=8, table_bytes=bytes(8))


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    found = Process()
    monkeypatch.setattr(nesting, "Describer", lambda *_, **__: found)
    return found


def test_what_was_foreseen_is_shown_when_the_process_is_gone(process: Process) -> None:
    shown: list[str] = []
    sink: Any = SimpleNamespace(dispatch=lambda one: shown.append(one.found.qualified), ended=lambda _: None)
    operators: Any = SimpleNamespace(since=(), has=lambda _: True)
    follows = Nesting(process, operators, TraceRequest((), True), sink, 0, PLACES)  # type: ignore[arg-type]
    tracer = Tracer()
    data = [record(OWN, 0, 3, 1), record(SHARED, 0x2000, 4, 2), record(OWN, 0, 3, 3)]
    follows.foresee(tracer, b"".join(data))
    follows.foresee(tracer, data[0])
    assert sorted(process.read_operators) == [0x1000, 0x2000]
    process.gone = True
    late = record(OWN, 0, 5, 5_000_000_000)
    follows.foresee(tracer, late)
    follows.take(tracer, b"".join([*data, record(OWN, 0, 3, 4_000_000_000), late]))
    assert shown == ["call 1000 3", "redispatch 2000 4", "call 1000 3", "call 1000 3"]
    assert follows.unread == 1
