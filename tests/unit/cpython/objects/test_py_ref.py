"""Objects as values: those of the Python that runs the tests, those of a recording that lacks some, and garbage."""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import pytest

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, MemoryFault
from support.fakes.own_python import own_python
from support.recorded.recordings import Replay

GLOBAL = ["a", "variable of this module"]


class Slotted:
    __slots__ = ("__weakref__", "inner", "unset")

    def __init__(self, inner: object) -> None:
        self.inner = inner


class Derived(Slotted):
    shared = "of the class"

    def __init__(self) -> None:
        super().__init__("in a slot")
        self.own = 7


@pytest.fixture(scope="module")
def python() -> Iterator[PythonRuntime]:
    with own_python() as runtime:
        yield runtime


def ref(python: PythonRuntime, value: object) -> PyRef:
    python.memory.forget()  # the process runs
    return PyRef(python, id(value))


@pytest.mark.parametrize("value", [0, -1, 1 << 70, True, "", "plain", "ü", "\N{SNOWMAN}", 1.5, b"raw", None])
def test_plain_values(python: PythonRuntime, value: Any) -> None:
    found = ref(python, value)
    assert (found.type, found.is_none, found.why) == (type(value).__name__, value is None, "")
    assert found.str() == (value if isinstance(value, str) else "")
    assert found.int() == (value if isinstance(value, int) else None)
    assert found.float() == (value if isinstance(value, (int, float)) else None)
    assert found.bytes(8) == (value if isinstance(value, bytes) else None)
    assert ref(python, "a longer text").str(8) == "a longer"
    assert ref(python, b"too long").bytes(7) is None


def test_what_is_in_a_container(python: PythonRuntime) -> None:
    items = ["one", "two"]
    for container in (items, tuple(items), deque(items)):
        assert [each.str() for each in ref(python, container)] == items
        assert [each.str() for each in ref(python, container).elements(1)] == ["one"]
    for unordered in (set(items), frozenset(items)):
        assert {each.str() for each in ref(python, unordered)} == {*items}
    table = {"one": 1, 2: "two"}
    assert [(key.str() or key.int(), value.str() or value.int()) for key, value in ref(python, table).items()] == [
        ("one", 1),
        (2, "two"),
    ]
    assert ref(python, table).keys() == [key for key, _ in ref(python, table).items()]
    assert {name: value.int() for name, value in ref(python, table).variables().items()} == {"one": 1}
    ordered = OrderedDict(one=1)
    assert ref(python, ordered)["one"].int() == 1


def test_attributes_of_instances_classes_and_modules(python: PythonRuntime) -> None:
    derived = Derived()
    found = ref(python, derived)
    assert (found["own"].int(), found["inner"].str(), found["unset"].why) == (7, "in a slot", "it has no unset")
    assert not found["shared"], "it is the class's"
    assert ref(python, Derived)["shared"].str() == "of the class"
    assert [*found.variables()] == ["own", "inner"]
    module = ref(python, sys.modules[__name__])
    assert [each.str() for each in module["GLOBAL"]] == GLOBAL == [each.str() for each in module.variables()["GLOBAL"]]
    assert python.globals_of(__name__)["GLOBAL"] == module["GLOBAL"] == ref(python, GLOBAL)
    assert len({module["GLOBAL"], ref(python, GLOBAL), found}) == 2


def test_references_functions_and_code(python: PythonRuntime) -> None:
    derived = Derived()
    weak = weakref.ref(derived)
    assert ref(python, weak).referent == ref(python, derived)
    assert not ref(python, derived).referent
    function = ref(python, Slotted.__init__).function
    assert function is not None
    assert function.qualname == "Slotted.__init__"
    code = ref(python, Slotted.__init__.__code__).code
    assert code is not None
    assert (code.file, ref(python, derived).code) == (__file__, None)


def test_a_missing_value_says_why(python: PythonRuntime) -> None:
    absent = python.globals_of(__name__)["ABSENT"]
    unread = PyRef(python, 8)["any"]
    assert (absent.is_absent, unread.is_absent, absent.why) == (True, False, "it has no ABSENT")
    assert isinstance(unread.fault, MemoryFault)
    assert unread.why == unread.fault.what
    for missing in (absent, unread, PyRef(None, 0)):
        assert not missing
        assert (missing.str(), missing.int(), missing.type, missing.code, missing.function) == (
            "",
            None,
            "",
            None,
            None,
        )
        assert [*missing, *missing.items(), *missing.keys(), *missing.variables()] == []
        assert missing["deeper"]["still"].why == missing.why, "the first one that is missing is remembered"
        assert missing.elements().fault is not None
        assert missing.variables()["x"].fault is not None
    with pytest.raises(BadData, match="it has no ABSENT"):
        absent.checked()
    with pytest.raises(MemoryFault):
        unread.read(lambda python, at: python.objects.integer(at))


def test_a_container_that_is_none_says_why(python: PythonRuntime) -> None:
    number = ref(python, 7)
    for found in (number.items(), number.keys(), number.elements()):
        assert isinstance(found.fault, BadData)
        with pytest.raises(BadData):
            found.checked()
    empty: dict[str, int] = {}
    assert number.variables().checked() == {}
    assert ref(python, empty).items().checked() == []


def test_the_variables_of_a_stack(python: PythonRuntime) -> None:
    del python
    replay = Replay("python-lock-abba-3.8")
    table = replay.session.python_threads
    stacks = [table.frames(tid) for tid in table.states]
    numbers = sorted(stack.locals_of("work", ".py")["number"].int() or 0 for stack in stacks)
    assert numbers == [0, 0, 1]
    main = next(stack for stack in stacks if stack.locals_of("join", "threading.py"))
    joined = main.locals_of("join", "/threading.py")
    assert (joined["self"].type, joined["timeout"].is_none, joined["other"].why) == ("Thread", True, "it has no other")
    assert not main.innermost(1).locals_of("join", "threading.py")


def test_what_a_recording_lacks_is_not_called_absent() -> None:
    python = Replay("waits").session.python
    assert python is not None
    active = python.globals_of("threading")["_active"]
    names = [thread["_name"].str() for _, thread in active.items().checked()]
    assert names[:3] == ["MainThread", "mutex", "recursive"]
    assert python.globals_of("no_such_module").why == "it is not there"
    ((_, thread),) = active.items(1)
    assert thread["_no_such_attribute"].why.endswith("not in the recording")
