"""Python that runs, or sleeps in a loop: what is read of it in a brief look."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gdbext.cpython.abi.bytecode import BYTECODES, loads_of_loop
from gdbext.cpython.sync.polled_objects import PolledKind
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import briefly_stopped
from support.installed import pythons
from support.programs.harness import some, started
from support.programs.python_targets import brief_threads

LOOKED_AT = {
    "attribute": [(PolledKind.OBJECT, "ready")],
    "event": [(PolledKind.OBJECT, "NEVER")],
    "file": [(PolledKind.FILE, "path")],
    "process": [(PolledKind.PROCESS, "child")],
    "flag": [(PolledKind.FLAG, "stopping")],
    "written": [(PolledKind.FILE, "")],
    "reading": [(PolledKind.FILE, "")],
}
"""All other threads look at nothing."""
VERSIONS = (*pythons.SUPPORTED, "3.14", "3.15")


@pytest.mark.parametrize("version", VERSIONS)
def test_only_what_the_loop_loads(version: str) -> None:
    with started("sleeping-loops", python=version) as inferior:
        tids, target = inferior.truth["tids"], briefly_stopped(inferior.pid)
        target.memory.threads()
        waits = some(Session(target).python_waits)
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
    assert loads_of_loop(form, unknown + code, 4) is None
    assert loads_of_loop(form, b"", 0) is None


LOOKS = 8
OLD_AND_NEW = pytest.mark.parametrize("version", ["3.8", "3.13"])


@OLD_AND_NEW
def test_whoever_holds_the_gil_has_frames_to_its_beginning(version: str) -> None:
    holders = []
    with started("running-python", "spin", python=version) as target:
        for _ in range(LOOKS):
            threads = brief_threads(target.pid).values()
            assert all(thread.python_frames for thread in threads)
            holders += [thread for thread in threads if any(held.kind is WaitKind.GIL for held in thread.holds)]
    assert holders
    assert {thread.python_frames[-1].function.rpartition(".")[2] for thread in holders} <= {"<module>", "_bootstrap"}


@OLD_AND_NEW
def test_threads_that_come_and_go_do_not_tear_the_list(version: str) -> None:
    with started("running-python", "churn", python=version) as target:
        for _ in range(LOOKS):
            assert brief_threads(target.pid)[target.pid].python_frames[-1].function == "<module>"


@OLD_AND_NEW
def test_only_a_lock_was_taken_by_somebody(version: str) -> None:
    with started("running-python", "objects", python=version) as target:
        threads = brief_threads(target.pid)
    waits = {name: threads[tid].wait for name, tid in target.truth["tids"].items()}
    ended = {name for name, wait in waits.items() if wait is not None and "its owner did not release it" in wait.phrase}
    assert ended == {"killed", "killed with"}
    assert all(wait is not None for wait in waits.values())


@OLD_AND_NEW
def test_a_worker_that_works_in_c_does_not_idle(version: str) -> None:
    with started("running-python", "workers", python=version) as target:
        pids = target.truth["pids"]
        mains = {name: brief_threads(pid)[pid] for name, pid in pids.items()}
    idle = {name for name, each in mains.items() if each.state is RunState.IDLE}
    assert idle == {name for name in pids if name.startswith("idle")}
    for each in mains.values():
        assert each.python_frames[-1].function.endswith("_launch")
        assert each.python_frames[-1].file.endswith("/popen_fork.py")
