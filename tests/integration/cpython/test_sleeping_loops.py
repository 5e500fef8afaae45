"""What a loop looks at between two sleeps is what it loads inside of the loop, and nothing else."""

from __future__ import annotations

import dis
import json
import subprocess
import sys

import pytest

from gdbext.cpython.abi.bytecode import BYTECODES, LoadKind, loop_around
from gdbext.cpython.sync.polled_objects import PolledKind
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import brief_look
from support.installed import pythons
from support.programs.harness import started

LOOKED_AT = {
    "attribute": [(PolledKind.OBJECT, "ready")],
    "event": [(PolledKind.OBJECT, "NEVER")],
    "file": [(PolledKind.FILE, "path")],
    "process": [(PolledKind.PROCESS, "child")],
    "flag": [(PolledKind.FLAG, "stopping")],
    "written": [(PolledKind.FILE, "")],
}
"""All other threads look at nothing."""
VERSIONS = (*pythons.SUPPORTED, "3.14", "3.15")


@pytest.mark.parametrize("version", VERSIONS)
def test_only_what_the_loop_loads(version: str) -> None:
    with started("sleeping-loops", python=version) as inferior:
        tids, target = inferior.truth["tids"], brief_look(inferior.pid)
        target.threads()
        waits = Session(target).python_waits
        assert waits is not None
        found = {name: [(each.polled_as, each.name) for each in waits.polled_objects(tids[name])] for name in tids}
        target.close()
    assert found == {name: LOOKED_AT.get(name, []) for name in tids}


ASKS = """
import dis, json, opcode
special = {name: base for base, names in getattr(opcode, "_specializations", {}).items() for name in names}
try:
    import _opcode_metadata as meta
    special = {name: base for base, names in meta._specializations.items() for name in names}
    known = dict(meta.opmap, **meta._specialized_opmap)
except ImportError:
    known = dict(getattr(dis, "_all_opmap", opcode.opmap))
caches = getattr(opcode, "_inline_cache_entries", {})
found = {}
for name, number in known.items():
    base = special.get(name, name).replace("INSTRUMENTED_", "").replace("EXTENDED_ARG_QUICK", "EXTENDED_ARG")
    plain = opcode.opmap.get(base, -1)
    cached = caches.get(base, 0) if hasattr(caches, "get") else caches[plain] if 0 <= plain < len(caches) else 0
    if number <= 255:
        found[number] = [base, cached]
print(json.dumps(found))
"""
ROLES = dict.fromkeys(("LOAD_FAST", "LOAD_FAST_BORROW"), "f")
ROLES.update(LOAD_GLOBAL="g", LOAD_NAME="n", LOAD_ATTR="a", LOAD_METHOD="a", LOAD_DEREF="d", EXTENDED_ARG="e")
ROLES.update(JUMP_BACKWARD="b", POP_JUMP_BACKWARD_IF_TRUE="b", JUMP_ABSOLUTE="j")
ROLES.update(LOAD_FAST_LOAD_FAST="2", LOAD_FAST_BORROW_LOAD_FAST_BORROW="2")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_rows_are_those_of_the_interpreter(version: str) -> None:
    done = subprocess.run([pythons.need(version), "-c", ASKS], capture_output=True, text=True, check=True)
    known = {int(number): (base, caches) for number, (base, caches) in json.loads(done.stdout).items()}
    form = BYTECODES[3, int(version.partition(".")[2])]
    assert len(form.roles) == 256
    for number, (base, caches) in known.items():
        assert (int(form.caches[number], 16) if form.caches else 0) == caches, base
        assert form.roles[number] == ROLES.get(base, form.roles[number]), base
        assert (form.roles[number] == "x") == (base in ("LINE", "INSTRUCTION", "ENTER_EXECUTOR", "RESERVED")), base
    assert {number for number, role in enumerate(form.roles) if role != "x"} <= known.keys()


def test_code_that_is_not_known_tells_nothing() -> None:
    code = (lambda event: [event.is_set() for _ in iter(int, 1)]).__code__.co_code
    form = BYTECODES[sys.version_info[:2]]
    unknown = bytes([form.roles.index("x"), 0])
    assert loop_around(form, unknown + code, 4) is None
    assert loop_around(form, b"", 0) is None


def test_loads_are_in_order_and_attributes_follow_their_owner() -> None:
    def polls(event: object) -> None:
        while not event.is_set():  # type: ignore[attr-defined]
            print(event)

    at = next(each.offset for each in dis.get_instructions(polls) if each.argval == "print")
    loads = loop_around(BYTECODES[sys.version_info[:2]], polls.__code__.co_code, at)
    assert loads is not None
    kinds = [(load.kind, load.follows) for load in loads]
    assert (LoadKind.ATTRIBUTE, True) in kinds
    assert (LoadKind.GLOBAL, False) in kinds
