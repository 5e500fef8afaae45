"""GIL, locks, waits and objects of every supported Python against what the programs say of themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync import locks
from gdbext.cpython.sync.locks import GilPart, read_gils
from gdbext.cpython.sync.python_wait import PythonWait, python_wait
from gdbext.cpython.threads.object_text import describe
from support.programs.harness import some, wait_until
from support.programs.python_targets import PYTHONS, View, look, running

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]
PROGRAM = "python_locks"
"""Of tests/inferiors, for the fixtures of conftest.py."""
NOWHERE = 0xDEADBEEF0


def futex_of(view: View, tid: int) -> int:
    """The first argument of futex(2), 202, in rdi; it stays when restart_syscall(2), 219, goes on with a timed wait."""
    registers = next(each for each in view.target.memory.threads() if each.tid == tid).registers()
    assert registers["orig_rax"] in (202, 219)
    return registers["rdi"]


def test_nobody_holds_the_gil(view: View) -> None:
    if not view.has_gil:
        assert read_gils(view.runtime) == []
        return
    (found,) = read_gils(view.runtime)
    assert not found.locked
    assert found.holder_tid is None
    assert found.last_holder in {states[0].address for states in view.states.values()}
    ranges = found.ranges
    # sizeof(pthread_cond_t), sizeof(pthread_mutex_t) of glibc on x86-64
    assert [end - start for start, end in ranges] == [48, 40, 48, 40]
    assert found.part_at(ranges[0][0]) is GilPart.COND
    for address in (ranges[3][1], found.address - 8, view.truth["lock"]):
        assert found.part_at(address) is None


@pytest.mark.parametrize("python", [version for version in PYTHONS if not version.endswith("t")])
def test_gil_holder_and_waiter(python: str) -> None:
    """The main thread sleeps in C with the GIL."""
    with running(python, PROGRAM, "gil") as holder:
        call = Path(f"/proc/{holder.pid}/task/{holder.truth['wants_gil']}/syscall")
        wait_until(lambda: call.read_text().split()[0] in ("202", "219"), "it waits for the GIL (futex)")
        with look(holder) as view:
            (found,) = read_gils(view.runtime)
            assert found.locked
            assert found.holder_tid == view.target.pid
            assert view.state(view.target.pid).address == found.holder
            assert found.part_at(futex_of(view, view.truth["wants_gil"])) in (GilPart.COND, GilPart.MUTEX)
            assert view.state(view.truth["wants_gil"]).interpreter.id in found.interpreters


def wait_of(view: View, tid: int, futex: bool = True) -> PythonWait:
    found = python_wait(view.runtime, view.state(tid), futex_of(view, tid) if futex else None)
    assert found is not None, tid
    return found


BY_FRAMES = {f"wait_for_{kind}" for kind in ("condition", "event", "semaphore", "queue", "barrier", "future")}


def test_waits(view: View) -> None:
    for name, expected in view.truth["waits"].items():
        tid = expected["tid"]
        found = wait_of(view, tid)
        assert (found.kind.value, found.address) == (expected["kind"], expected["address"]), name
        assert found.lock is not None, name
        assert found.lock.word in locks.waited_words(view.runtime, futex_of(view, tid)), name
        assert found.lock.locked, name
        assert found.lock.waiters >= 1, name
        if name in BY_FRAMES:
            by_frames = wait_of(view, tid, futex=False)
            assert (by_frames.kind, by_frames.address) == (found.kind, found.address), name
    assert python_wait(view.runtime, view.state(view.target.pid)) is None, "it waits for nothing"


def test_owners(view: View) -> None:
    truth, waits = view.truth, view.truth["waits"]
    holder = (truth["holder"]["ident"], truth["holder"]["tid"])
    found = wait_of(view, waits["wait_for_rlock"]["tid"])
    assert (found.owner_ident, found.owner_tid) == holder
    assert view.runtime.tid_of_ident(holder[0]) == holder[1]
    found = wait_of(view, waits["wait_to_reacquire"]["tid"])
    assert found.reacquiring
    assert found.lock is not None
    assert found.lock.address == truth["handed"]
    assert (found.owner_ident, found.owner_tid) == (truth["main"], view.target.pid)
    found = wait_of(view, waits["wait_for_condition"]["tid"])
    assert not found.reacquiring
    assert found.owner_ident is None
    found = wait_of(view, truth["join"]["tid"], futex=False)
    assert (found.kind.value, found.address) == ("thread", truth["join"]["address"])
    assert (found.owner_ident, found.owner_tid) == (truth["sleeper"]["ident"], truth["sleeper"]["tid"])


def test_states_of_locks(view: View) -> None:
    expected = {"lock": (True, None, 0), "free_lock": (False, None, 0), "free_rlock": (False, None, 0)}
    expected["rlock"] = (True, view.truth["holder"]["ident"], 3)
    for name, state in expected.items():
        found = locks.read_lock(view.runtime, view.truth[name])
        assert found is not None, name
        assert (found.locked, found.owner_ident, found.depth or 0) == state, name
    assert locks.read_lock(view.runtime, view.truth["objects"]["plain"]["address"]) is None
    assert locks.read_lock(view.runtime, NOWHERE) is None


def test_descriptions(view: View) -> None:
    addresses = {name: facts["address"] for name, facts in view.truth["objects"].items()}
    expected = {name: facts["repr"] for name, facts in view.truth["objects"].items() if facts["repr"]}
    assert len(expected) > 15
    expected["list"] = "[1, 2, 3, 4, … 6 items]"
    expected["class"] = "<class Plain>"
    expected["plain"] = f"<Plain at {addresses['plain']:#x}>"
    expected["builtin"] = "<builtin_function_or_method len>"
    for name, text in expected.items():
        assert describe(PyRef(view.runtime, addresses[name])) == text
    assert describe(PyRef(view.runtime, addresses["nested"])).startswith("[[<list at 0x")
    long = describe(PyRef(view.runtime, addresses["long"]))
    assert re.fullmatch(r"'x+…' \(300 characters\)", long)
    assert len(long) <= 80
    assert describe(PyRef(view.runtime, 0)) == "<NULL>"
    assert describe(PyRef(view.runtime, NOWHERE)) == f"<unreadable {NOWHERE:#x}>"


def test_functions(view: View) -> None:
    objects = view.truth["objects"]
    expected = {
        "function": ("function", "make_objects", objects["function"]["line"]),
        "method": ("function", "Plain.method", objects["method"]["line"]),
        "partial": ("function", "Plain.method", objects["method"]["line"]),
        "wrapped": ("function", "wrapped", objects["wrapped"]["line"]),
        "lambda": ("function", "make_objects.<locals>.<lambda>", objects["lambda"]["line"]),
        "builtin": ("builtin", "len", None),
        "plain": ("object", "Plain", None),
        "class": ("class", "Plain", None),
    }
    for name, facts in expected.items():
        found = some(view.runtime.functions.source(objects[name]["address"]))
        assert (found.kind, found.qualname, found.line) == facts
        assert found.line is None or str(found.file).endswith("python_locks.py")
    found = some(view.runtime.functions.source(objects["late"]["address"]))
    assert (found.kind, found.qualname) == ("instance", "Late.__call__")
    assert view.runtime.functions.source(NOWHERE) is None


def test_attributes(view: View) -> None:
    objects, dicts, reader = view.truth["objects"], view.runtime.dicts, view.runtime.objects
    late = {f"attribute_{number}": number for number in range(40)}
    for name, first, more in (("plain", 3, {}), ("read_dict", 7, {"extra": 8}), ("late", 1, late)):
        found = {reader.text(key): value for key, value in dicts.attributes(objects[name]["address"])}
        assert list(found) == ["first", "second", *more], name
        for attribute, value in {"first": first, **more}.items():
            assert dicts.attribute(objects[name]["address"], attribute) == found[attribute]
            assert reader.integer(found[attribute]) == value
    assert list(dicts.attributes(objects["slotted"]["address"])) == []
    assert dicts.attribute(objects["plain"]["address"], "shared") == 0
    assert dicts.attribute(NOWHERE, "first") == 0
