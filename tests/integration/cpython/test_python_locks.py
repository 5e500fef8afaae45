"""GIL, locks, waits and objects of every supported Python against what the programs say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.cpython.sync import locks
from gdbext.cpython.sync.locks import GilPart, read_gils
from gdbext.cpython.sync.python_wait import python_wait
from gdbext.cpython.threads.object_text import describe
from support.programs.harness import wait_until
from support.programs.python_targets import PYTHONS, PythonInferior, View

pytestmark = [pytest.mark.gdb, pytest.mark.pythons]


PROGRAM = "python_locks"
"""Of tests/inferiors, for the fixtures of conftest.py."""


@pytest.fixture(scope="module", params=[version for version in PYTHONS if not version.endswith("t")])
def holder(request: pytest.FixtureRequest) -> Iterator[PythonInferior]:
    """One whose main thread sleeps in C with the GIL."""
    process = PythonInferior(request.param, "python_locks", "gil")
    yield process
    process.close()


def futex_of(view: View, tid: int) -> int:
    """The address of the futex that a thread sleeps on: the first argument of futex(2), 202, is in rdi; it stays
    there when a timed wait that was interrupted goes on through restart_syscall(2), 219."""
    registers = next(each for each in view.target.threads() if each.tid == tid).registers()
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
    assert found.interval == 5000


@pytest.mark.parametrize("kind", ["live", "core"])
def test_gil_holder_and_waiter(holder: PythonInferior, kind: str) -> None:
    call = Path(f"/proc/{holder.process.pid}/task/{holder.truth['wants_gil']}/syscall")
    wait_until(lambda: call.read_text().split()[0] in ("202", "219"), "it waits for the GIL (futex, restarted or not)")
    with holder.look(kind) as view:
        (found,) = read_gils(view.runtime)
        assert found.locked
        assert found.holder_tid == view.target.pid
        assert view.state(view.target.pid).address == found.holder
        waited = futex_of(view, view.truth["wants_gil"])
        assert found.part_at(waited) in (GilPart.COND, GilPart.MUTEX)
        assert view.state(view.truth["wants_gil"]).interpreter.id in found.interpreters


def test_gil_ranges(view: View) -> None:
    if not view.has_gil:
        pytest.skip("a free-threaded build")
    (found,) = read_gils(view.runtime)
    sizes = [
        end - start
        for start, end in (found.cond_range, found.mutex_range, found.switch_cond_range, found.switch_mutex_range)
    ]
    assert sizes == [48, 40, 48, 40]  # sizeof(pthread_cond_t), sizeof(pthread_mutex_t) of glibc on x86-64
    assert found.part_at(found.cond_range[0]) is GilPart.COND
    assert found.part_at(found.switch_mutex_range[1]) is None
    assert found.part_at(found.address - 8) is None
    assert found.part_at(view.truth["lock"]) is None


def test_waits(view: View) -> None:
    for name, expected in view.truth["waits"].items():
        state = view.state(expected["tid"])
        found = python_wait(view.runtime, state, futex_of(view, expected["tid"]))
        assert found is not None, name
        assert (found.kind.value, found.address) == (expected["kind"], expected["address"]), name
        assert found.lock is not None, name
        assert found.lock.word in locks.waited_words(view.runtime, futex_of(view, expected["tid"])), name
        assert found.lock.locked, name
        assert found.lock.waiters >= 1, name


def test_waits_by_frames_alone(view: View) -> None:
    for name in ("condition", "event", "semaphore", "queue", "barrier", "future"):
        expected = view.truth["waits"][f"wait_for_{name}"]
        found = python_wait(view.runtime, view.state(expected["tid"]))
        assert found is not None
        assert (found.kind.value, found.address) == (name, expected["address"])


def lock_at(view: View, name: str) -> locks.LockState:
    found = locks.read_lock(view.runtime, view.truth[name])
    assert found is not None, name
    return found


def test_rlock_owner(view: View) -> None:
    ident, tid = view.truth["holder"]["ident"], view.truth["holder"]["tid"]
    assert lock_at(view, "rlock").owner_ident == ident
    assert lock_at(view, "rlock").depth == 3
    assert view.runtime.tid_of_ident(ident) == tid
    waiter = view.truth["waits"]["wait_for_rlock"]["tid"]
    found = python_wait(view.runtime, view.state(waiter), futex_of(view, waiter))
    assert found is not None
    assert (found.owner_ident, found.owner_tid) == (ident, tid)
    assert lock_at(view, "free_rlock").owner_ident is None
    assert lock_at(view, "lock").owner_ident is None


def test_taking_back_the_lock_of_a_condition(view: View) -> None:
    tid = view.truth["waits"]["wait_to_reacquire"]["tid"]
    found = python_wait(view.runtime, view.state(tid), futex_of(view, tid))
    assert found is not None
    assert found.reacquiring
    assert found.lock is not None
    assert found.lock.address == view.truth["handed"]
    assert (found.owner_ident, found.owner_tid) == (view.truth["main"], view.target.pid)
    plain = view.truth["waits"]["wait_for_condition"]["tid"]
    other = python_wait(view.runtime, view.state(plain), futex_of(view, plain))
    assert other is not None
    assert not other.reacquiring
    assert other.owner_ident is None


def test_join(view: View) -> None:
    found = python_wait(view.runtime, view.state(view.truth["join"]["tid"]))
    assert found is not None
    assert (found.kind.value, found.address) == ("thread", view.truth["join"]["address"])
    assert (found.owner_ident, found.owner_tid) == (view.truth["sleeper"]["ident"], view.truth["sleeper"]["tid"])


def test_locked(view: View) -> None:
    locked = {name: lock_at(view, name).locked for name in ("lock", "free_lock", "rlock", "free_rlock")}
    assert locked == {"lock": True, "free_lock": False, "rlock": True, "free_rlock": False}
    assert locks.read_lock(view.runtime, view.truth["objects"]["plain"]["address"]) is None
    assert locks.read_lock(view.runtime, 0xDEADBEEF0) is None


def test_unlocked_thread_waits_for_nothing(view: View) -> None:
    assert python_wait(view.runtime, view.state(view.target.pid)) is None


SIMPLE = (
    "ascii",
    "latin",
    "ucs2",
    "ucs4",
    "empty",
    "bytes",
    "zero",
    "one",
    "negative",
    "big",
    "true",
    "none",
    "float",
    "tuple",
    "single",
    "dict",
    "general",
    "ellipsis",
)


def test_descriptions(view: View) -> None:
    objects = view.truth["objects"]
    for name in SIMPLE:
        assert describe(view.runtime, objects[name]["address"]) == objects[name]["repr"], name
    assert describe(view.runtime, objects["list"]["address"]) == "[1, 2, 3, 4, … 6 items]"
    assert describe(view.runtime, objects["class"]["address"]) == "<class Plain>"
    assert describe(view.runtime, objects["type"]["address"]) == "<class int>"
    assert describe(view.runtime, objects["plain"]["address"]) == f"<Plain at {objects['plain']['address']:#x}>"
    assert describe(view.runtime, objects["nested"]["address"]).startswith("[[<list at 0x")
    assert describe(view.runtime, objects["builtin"]["address"]) == "<builtin_function_or_method len>"
    long = describe(view.runtime, objects["long"]["address"])
    assert re.fullmatch(r"'x+…' \(300 characters\)", long)
    assert len(long) <= 80
    assert describe(view.runtime, 0) == "<NULL>"
    assert describe(view.runtime, 0xDEADBEEF0) == "<unreadable 0xdeadbeef0>"


def test_functions(view: View) -> None:
    objects = view.truth["objects"]

    def source(name: str) -> tuple[str, str, int | None, tuple[str, ...]]:
        found = view.runtime.functions.source(objects[name]["address"])
        assert found is not None
        return found.kind, found.qualname, found.line, found.wrappers

    assert source("function") == ("function", "make_objects", objects["function"]["line"], ())
    assert source("method")[:2] == ("function", "Plain.method")
    assert source("method")[3] == ("method",)
    assert source("partial")[:2] == ("function", "Plain.method")
    assert source("partial")[3] == ("functools.partial",)
    assert source("wrapped")[:2] == ("function", "wrapped")
    assert source("lambda")[1] == "make_objects.<locals>.<lambda>"
    assert source("builtin") == ("builtin", "len", None, ())
    assert source("late")[:2] == ("instance", "Late.__call__")
    assert source("plain") == ("object", "Plain", None, ())
    assert source("class") == ("class", "Plain", None, ())
    found = view.runtime.functions.source(objects["function"]["address"])
    assert found is not None
    assert found.file is not None
    assert found.file.endswith("python_locks.py")
    assert view.runtime.functions.source(0xDEADBEEF0) is None


def test_attributes(view: View) -> None:
    objects, dicts, integer = view.truth["objects"], view.runtime.dicts, view.runtime.objects.integer

    def names(name: str) -> list[str]:
        return [view.runtime.objects.text(key) for key, _ in dicts.attributes(objects[name]["address"])]

    assert names("plain") == ["first", "second"]
    assert names("read_dict") == ["first", "second", "extra"]
    assert names("late") == ["first", "second", *(f"attribute_{number}" for number in range(40))]
    assert names("slotted") == []
    for name, attribute, value in (("plain", "first", 3), ("read_dict", "extra", 8), ("late", "attribute_39", 39)):
        found = dicts.attribute(objects[name]["address"], attribute)
        assert found is not None
        assert integer(found) == value
    assert dicts.attribute(objects["plain"]["address"], "shared") is None
    assert dicts.attribute(0xDEADBEEF0, "first") is None
