"""Functions of the program that could end a wait for an object of Python, and threads that have ended.

A queue, an event or a future does not record who will act. The functions of the program tell: one whose code calls
``get()`` of a queue makes room in it, whatever thread runs it. A function that no thread is in will not do so; a thread
that has ended will not run it again.

Sources: Lib/threading.py and queue.py, 3.8 to 3.15.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import Waitable, is_of_program, package_of
from gdbext.cpython.abi.bytecode import LoadKind
from gdbext.cpython.abi.python_structures import PyCodeObject, PyFunctionObject
from gdbext.cpython.objects import FLAG_TYPE, classes_of
from gdbext.cpython.objects.code import PythonFunction
from gdbext.cpython.sync.helper_threads import ThreadObject, ended_threads
from gdbext.cpython.sync.pools import goes_on_in, takes_jobs
from gdbext.cpython.threads.frame_variables import (
    attributes,
    closure_names,
    items,
    locals_of,
    names_used,
    namespace_of,
    variables,
)
from gdbext.cpython.threads.loop_names import names_of_code
from gdbext.cpython.threads.object_text import codes_of_traceback
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.loop_names import LoopNames, NamedMember
    from gdbext.cpython.threads.runtime import PythonRuntime

    _StatesByCode = dict[int, set[int]]
    _FramesByCode = dict[int, dict[int, list[PythonFrame]]]

_ENDED_BY: Mapping[Waitable, frozenset[str]] = {
    Waitable.EVENT: frozenset({"set"}),
    Waitable.CONDITION: frozenset({"notify", "notify_all", "notifyAll"}),
    Waitable.SEMAPHORE: frozenset({"release"}),
    Waitable.LOCK: frozenset({"release"}),
    Waitable.FUTURE: frozenset({"set_result", "set_exception", "cancel"}),
    Waitable.SIMPLE_QUEUE: frozenset({"put", "put_nowait"}),
    Waitable.BARRIER: frozenset({"wait", "abort"}),
}
_QUEUE_ENDED_BY = {
    assumed_names.QUEUE_PUT: frozenset({"get", "get_nowait"}),
    assumed_names.QUEUE_JOIN: frozenset({"task_done"}),
}
"""Methods of a queue that end a call of ``put`` and ``join``; that of ``get`` is ended by ``put``."""
_BY_ALIKE = _ENDED_BY[Waitable.BARRIER]
"""Methods by which those that wait end the wait of each other: they are in the same function."""
_SUSPENDABLE = 0x20 | 0x80 | 0x200
"""The flags CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR (Include/cpython/code.h)."""
_FRAMES = 12
_VALUES = 3_000
_FUNCTIONS = 2_000


class Acting(NamedTuple):
    """A function that could end the wait, by the method that it calls."""

    function: PythonFunction
    method: str
    by_name: bool
    """It is proven to call the method of the very object: a variable that has it, or an attribute of an object that
    keeps it. Else it does so of a variable of its own, or of an attribute of that name, which may be others."""
    hands_on: bool = False
    """It takes the method as a value, for others to call, or is a coroutine or generator: no thread need be in it."""


_PACKAGES = ("/site-packages/", "/dist-packages/")
"""Folders in which installed packages are, as pip and Debian call them."""


class Debtors(NamedTuple):
    """The functions that could end a wait, who is in them, and the threads that have ended."""

    functions: tuple[Acting, ...] = ()
    idents: tuple[int, ...] = ()
    """Idents of the other threads that are in one of these functions."""
    ended: tuple[ThreadObject, ...] = ()
    """Threads that have ended and whose function is one of these, or is not known any more."""
    takes_jobs: bool = False
    """Another thread waits at a queue for jobs, or for what comes from outside, by code of the installed package that
    has such a function: it may be given one that calls it, or call it itself then."""


def methods_that_end(kind: Waitable, call: str) -> frozenset[str]:
    """The methods that end a wait for an object of that kind, in its method ``call``."""
    if kind is Waitable.QUEUE:
        return _QUEUE_ENDED_BY.get(call, _ENDED_BY[Waitable.SIMPLE_QUEUE])
    return _ENDED_BY.get(kind, frozenset())


def debtors(
    runtime: PythonRuntime,
    state: ThreadState,
    address: int,
    methods: Collection[str],
    otherwise: Collection[str] = (),
) -> Debtors:
    """Those who could end the wait of a thread for the object at ``address``, by one of the ``methods``; where no
    function calls any of these, those who call one of ``otherwise``. Raises nothing."""
    frames = [each for each in runtime.frames.stack(state).frames if is_of_program(each.file)][:_FRAMES]
    ended = ended_threads(runtime)
    keepers = {each.value.address: _names_in(runtime, each.value.address, address) for each in ended}
    holders = _Holders(runtime, frames, keepers, address)
    functions = [*_functions(runtime, frames), *_of_threads(ended)]
    calls = _Calls(runtime, address, holders, methods)
    found, acting = _acting(runtime, calls, frames, functions)
    if otherwise and not acting:
        calls = _Calls(runtime, address, holders, otherwise)
        found, acting = _acting(runtime, calls, frames, functions)
    codes = {each.function.code for each in acting}
    others = [other for other in runtime.thread_states() if other.ident != state.ident]
    idents = _idents_in(runtime, others, codes, calls)
    named = (*(each for each, _ in functions), *(each.function for each in found))
    known = {each.qualname.rpartition(".")[2]: each.code for each in named}
    leads = _Leads(runtime, codes, known)
    near = (each for each in ended if not each.function or keepers[each.value.address] or leads.there(each))
    files = [each.function.file or "" for each in acting]
    folders = {file.rpartition("/")[0] for file in files if any(place in file for place in _PACKAGES)}
    packages = {package_of(file) for file in files} - {""}
    may_act = bool(packages) and any(
        takes_jobs(runtime, each, folders, address) or goes_on_in(runtime, each, packages) for each in others
    )
    return Debtors(acting, idents, tuple(near), may_act)


def _acting(
    runtime: PythonRuntime,
    calls: _Calls,
    frames: Sequence[PythonFrame],
    functions: Iterable[tuple[PythonFunction, int]],
) -> tuple[Sequence[Acting], tuple[Acting, ...]]:
    """The functions that call one of the methods, and those of them that are more likely to call it of the object."""
    own = {frame.code for frame in frames}
    inner = frames if _BY_ALIKE.intersection(calls.methods) else []
    alike = [each for each in inner if calls.by_frame(each, calls.wanted(each.code))]
    found = [Acting(_function_of(runtime, each), "wait", True) for each in alike]
    found += filter(None, (calls.acting(each, space) for each, space in functions if each.code not in own))
    likely = [each for each in found if each.by_name or calls.may_be_it(each.function)]
    return found, tuple(sorted(likely or found, key=lambda each: not each.by_name))


def flag_debtors(runtime: PythonRuntime, state: ThreadState, name: str) -> Debtors:
    """Those who could change a variable or attribute ``name`` that the thread looks at: the functions that have the
    name and load no value of it, and so set it. Raises nothing."""
    frames = [each for each in runtime.frames.stack(state).frames if is_of_program(each.file)][:_FRAMES]
    own = {frame.code for frame in frames}
    functions = [each for each, _ in _functions(runtime, frames) if not each.qualname.endswith("__init__")]
    acting = tuple(Acting(each, "", True) for each in functions if each.code not in own and _sets(runtime, each, name))
    codes = {each.function.code for each in acting}
    others = [other for other in runtime.thread_states() if other.ident != state.ident]
    idents = _idents_in(runtime, others, codes)
    leads = _Leads(runtime, codes, {each.qualname.rpartition(".")[2]: each.code for each in functions})
    ended = ended_threads(runtime)
    return Debtors(acting, idents, tuple(each for each in ended if not each.function or leads.there(each)))


def error_in_future(runtime: PythonRuntime, state: ThreadState, codes: Collection[int]) -> int:
    """Address of an exception that came through one of those functions, and that a concurrent.futures.Future keeps
    which the thread's functions or their modules have at hand; 0 without. Raises nothing."""
    frames = [each for each in runtime.frames.stack(state).frames if is_of_program(each.file)][:_FRAMES]
    for value in dict.fromkeys(_at_hand(runtime, frames)):
        try:
            is_future = runtime.objects.type_of(value).name == assumed_names.FUTURE_CLASS
        except GdbextError:
            continue
        error = attributes(runtime, value).get(assumed_names.FUTURE_ERROR, 0) if is_future else 0
        if error and not set(codes).isdisjoint(codes_of_traceback(runtime, error)):
            return error
    return 0


def _at_hand(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> Iterator[int]:
    """The variables of functions and of their modules, and what is in lists, tuples and dicts of these."""
    for frame in frames:
        try:
            space = [value for _, value in runtime.dicts.items(namespace_of(runtime, frame), _VALUES)]
            values = [*locals_of(runtime, frame).values(), *space]
        except GdbextError:
            continue
        for value in values:
            yield value
            yield from items(runtime, value)


def _sets(runtime: PythonRuntime, function: PythonFunction, name: str) -> bool:
    loaded = names_of_code(runtime, function.code)
    return bool(loaded and name not in loaded.names and name in names_used(runtime, function.code))


def _idents_in(
    runtime: PythonRuntime, others: Sequence[ThreadState], codes: Collection[int], calls: _Calls | None = None
) -> tuple[int, ...]:
    """Idents of those threads that are in one of the functions, or in other code that calls the object's method."""
    anywhere, near = runtime.once(_states_by_code)
    inside = {state for code in codes for state in anywhere.get(code, ())}
    if calls:
        asked = {other.address for other in others}
        for code, frames in near.items():
            left = (frames.keys() & asked) - inside
            for member in calls.wanted(code) if left else ():
                if member.kind is LoadKind.ATTRIBUTE:
                    inside |= {state for state in left if any(calls.by_frame(each, [member]) for each in frames[state])}
                else:
                    inside |= runtime.once(_states_by_value, code, member.owner).get(calls.address, set())
    return tuple(other.ident for other in others if other.address in inside)


def _states_by_code(runtime: PythonRuntime) -> tuple[_StatesByCode, _FramesByCode]:
    """(code → addresses of the states of threads that are in it; code → address → its frames among the innermost ones,
    of a program)."""
    anywhere: _StatesByCode = {}
    near: _FramesByCode = {}
    for state in runtime.thread_states():
        for number, frame in enumerate(runtime.frames.stack(state).frames):
            anywhere.setdefault(frame.code, set()).add(state.address)
            if number < _FRAMES and is_of_program(frame.file):
                near.setdefault(frame.code, {}).setdefault(state.address, []).append(frame)
    return anywhere, near


def _states_by_value(runtime: PythonRuntime, code: int, name: str) -> Mapping[int, set[int]]:
    """Value of the variable → addresses of the states of threads in whose frames of that code it has the value."""
    found: dict[int, set[int]] = {}
    for state, frames in runtime.once(_states_by_code)[1].get(code, {}).items():
        for value in [variables(runtime, frame).get(name) for frame in frames]:
            if value is not None:
                found.setdefault(value, set()).add(state)
    return found


def _of_threads(threads: Iterable[ThreadObject]) -> Iterator[tuple[PythonFunction, int]]:
    """The functions that threads have kept."""
    for thread in threads:
        function = thread.target.function
        if function and function.code:
            yield function, 0


def _function_of(runtime: PythonRuntime, frame: PythonFrame) -> PythonFunction:
    line = runtime.codes.get(frame.code).first_line
    return PythonFunction(frame.function, frame.file, line, "function", 0, code=frame.code)


def _names_in(runtime: PythonRuntime, holder: int, address: int) -> frozenset[str]:
    """The attributes under which an object keeps another one."""
    return frozenset(name for name, each in runtime.once(attributes, holder).items() if each == address)


_STEPS = 3
"""Functions that call one another from a thread's own to the one that acts, at most."""


class _Leads:
    """Tells whether the function of a thread leads to one that acts, by the names that code has."""

    def __init__(self, runtime: PythonRuntime, acting: Collection[int], known: Mapping[str, int]) -> None:
        """``acting``: the code of functions that act; ``known``: that of functions, by their last name."""
        self._runtime = runtime
        self._acting = acting
        self._known = known

    def there(self, thread: ThreadObject) -> bool:
        """The function of the thread acts, or calls what does."""
        source = thread.target.function
        code = source.code if source else self._known.get(thread.function.rpartition(".")[2], 0)
        todo, seen = {code} - {0}, set[int]()
        for _ in range(_STEPS):
            if todo & set(self._acting):
                return True
            seen |= todo
            named = (names_of_code(self._runtime, each) for each in todo)
            called = {name for names in named if names for name in names.names}
            todo = {self._known[name] for name in called if name in self._known} - seen
        return bool(todo & set(self._acting))


def _functions(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> Iterator[tuple[PythonFunction, int]]:
    """The functions of the modules that frames are of, those of their classes and in their local variables, each with
    the dict of its global variables."""
    seen: set[int] = set()
    for frame in frames:
        try:
            namespace = namespace_of(runtime, frame)
            found = [*runtime.once(_in_frame, frame, namespace)]
            if namespace not in seen:
                seen.add(namespace)
                found += runtime.once(_in_module, namespace, frame.file)
        except GdbextError:
            continue
        for function in found:
            if function.address not in seen:
                seen.add(function.address)
                yield function, namespace
        if len(seen) > _FUNCTIONS:
            return


def _in_frame(runtime: PythonRuntime, frame: PythonFrame, namespace: int) -> Sequence[PythonFunction]:
    """The functions that the local variables of a frame have."""
    return [*_of_module(runtime, locals_of(runtime, frame).values(), namespace, frame.file)]


def _in_module(runtime: PythonRuntime, namespace: int, file: str) -> Sequence[PythonFunction]:
    """The functions of a module: those that its global variables have, and those of the classes there."""
    return [*_of_module(runtime, [value for _, value in runtime.dicts.items(namespace, _VALUES)], namespace, file)]


def _of_module(runtime: PythonRuntime, values: Iterable[int], namespace: int, file: str) -> Iterator[PythonFunction]:
    """The functions among the values, and of their classes, that are the module's."""
    for value in dict.fromkeys(_with_methods(runtime, values)):
        function = runtime.once(_source_in, value, namespace)
        if function and function.code and function.file == file:
            yield function


def _source_in(runtime: PythonRuntime, value: int, namespace: int) -> PythonFunction | None:
    return None if _is_of_another(runtime, value, namespace) else runtime.functions.source(value)


def _is_of_another(runtime: PythonRuntime, value: int, namespace: int) -> bool:
    """A function that wraps none, of another module: a class from elsewhere has dozens, and none is asked for."""
    function = PyFunctionObject(runtime.space, value)
    is_plain = runtime.objects.type_of(value).name == "function" and not function.func_dict
    return is_plain and function.func_globals != namespace


def _with_methods(runtime: PythonRuntime, values: Iterable[int]) -> Iterator[int]:
    """The functions among the objects, with those of classes, and of the classes of instances."""
    for value in dict.fromkeys(values):
        try:
            info = runtime.objects.type_of(value)
            if info.name in ("function", "method"):
                yield value
            yield from runtime.once(_methods_of, value if info.flags & FLAG_TYPE else info.address)
        except GdbextError:
            continue


def _methods_of(runtime: PythonRuntime, kind: int) -> Sequence[int]:
    """The functions in the dict of a class, up to the first member that cannot be read."""
    found = []
    with suppress(GdbextError):
        for _, method in runtime.dicts.class_items(kind):
            if runtime.objects.type_of(method).name == "function":
                found.append(method)
    return found


class _Holders:
    """The objects that have the object among their attributes: those that frames have at hand, and threads."""

    def __init__(
        self, runtime: PythonRuntime, frames: Iterable[PythonFrame], keepers: Mapping[int, frozenset[str]], address: int
    ) -> None:
        self._runtime = runtime
        self._names = {holder: names for holder, names in keepers.items() if names}
        for value in dict.fromkeys(value for frame in frames for value in variables(runtime, frame).values()):
            names = _names_in(runtime, value, address)
            if names:
                self._names[value] = names
        self._methods: dict[int, frozenset[int]] = {}

    def have(self, name: str) -> bool:
        """An object has it as its attribute ``name``."""
        return any(name in names for names in self._names.values())

    def is_one(self, value: int, name: str) -> bool:
        """``value`` is an object that has it as its attribute ``name``."""
        return name in self._names.get(value, ())

    def is_method(self, code: int, name: str) -> bool:
        """The code is that of a method of an object which has it as its attribute ``name``."""
        return any(name in names and code in self._methods_of(holder) for holder, names in self._names.items())

    def _methods_of(self, holder: int) -> frozenset[int]:
        if holder not in self._methods:
            self._methods[holder] = frozenset(self._codes(holder))
        return self._methods[holder]

    def _codes(self, holder: int) -> Iterator[int]:
        try:
            for kind in classes_of(self._runtime.objects, holder):
                for _, value in self._runtime.dicts.class_items(kind):
                    source = self._runtime.functions.source(value)
                    if source and source.code:
                        yield source.code
        except GdbextError:
            return


class _Calls:
    """Tells which code calls one of the methods of an object."""

    def __init__(self, runtime: PythonRuntime, address: int, holders: _Holders, methods: Collection[str]) -> None:
        self._runtime = runtime
        self.address = address
        self._holders = holders
        self.methods = methods

    def acting(self, function: PythonFunction, namespace: int) -> Acting | None:
        """The function with the method that it calls, None where it calls none; ``namespace``: its globals."""
        names = names_of_code(self._runtime, function.code)
        wanted = [each for each in names.members if each.name in self.methods] if names else []
        if not names or not wanted:
            return None
        closure = closure_names(self._runtime, function.address)
        proven = next((each for each in wanted if self._is_it(each, function, closure, namespace)), None)
        possible = (each for each in wanted if self._may_be_it(each, closure, namespace))
        found = proven or next(possible, None)
        if not found:
            return None
        hands_on = self._hands_on(function, names, found.owner, found.name)
        return Acting(function, found.name, bool(proven), hands_on)

    def _is_it(self, member: NamedMember, function: PythonFunction, closure: Mapping[str, int], namespace: int) -> bool:
        """The owner of the method is proven to be the object."""
        if member.kind is not LoadKind.ATTRIBUTE:
            return self._value(member.kind, member.owner, closure, namespace) == self.address
        if member.outer_kind is LoadKind.FAST and self._is_first(function.code, member.outer):
            return self._holders.is_method(function.code, member.owner)
        if member.outer_kind in (None, LoadKind.ATTRIBUTE):
            return False
        value = self._value(member.outer_kind, member.outer, closure, namespace)
        return value is not None and self._holders.is_one(value, member.owner)

    def _may_be_it(self, member: NamedMember, closure: Mapping[str, int], namespace: int) -> bool:
        """The owner may be the object: an attribute of that name of something, or a variable of the function's own."""
        if member.kind is LoadKind.ATTRIBUTE:
            return self._holders.have(member.owner)
        return self._value(member.kind, member.owner, closure, namespace) is None

    def may_be_it(self, function: PythonFunction) -> bool:
        """The function calls the method of an attribute that has the name under which an object keeps this one."""
        names = names_of_code(self._runtime, function.code)
        members = names.members if names else ()
        return any(
            each.name in self.methods and each.kind is LoadKind.ATTRIBUTE and self._holders.have(each.owner)
            for each in members
        )

    def _value(self, kind: LoadKind, name: str, closure: Mapping[str, int], namespace: int) -> int | None:
        """The value of a function's variable, None where it is its own, or not known."""
        if kind is LoadKind.CELL:
            return closure.get(name)
        return self._global(namespace, name) if kind in (LoadKind.GLOBAL, LoadKind.NAME) else None

    def _is_first(self, code: int, name: str) -> bool:
        """It is the first of the function's variables: ``self`` of a method."""
        try:
            return self._runtime.codes.get(code).local_names()[:1] == [name]
        except GdbextError:
            return False

    def _hands_on(self, function: PythonFunction, names: LoopNames, owner: str, method: str) -> bool:
        flags = PyCodeObject(self._runtime.space, function.code).co_flags
        return (owner, method) in names.values or bool(flags & _SUSPENDABLE)

    def wanted(self, code: int) -> list[NamedMember]:
        """The methods that the code calls of something, and that are called as one of the object's."""
        names = names_of_code(self._runtime, code)
        return [each for each in names.members if each.name in self.methods] if names else []

    def by_frame(self, frame: PythonFrame, wanted: Sequence[NamedMember]) -> bool:
        """One of the methods that are ``wanted`` of the frame's code is the object's, by a name that the frame has."""
        known = variables(self._runtime, frame) if wanted else {}
        return any(self._is_of_frame(each, known) for each in wanted)

    def _is_of_frame(self, member: NamedMember, known: Mapping[str, int]) -> bool:
        if member.kind is not LoadKind.ATTRIBUTE:
            return known.get(member.owner) == self.address
        outer = known.get(member.outer, 0) if member.outer_kind is not LoadKind.ATTRIBUTE else 0
        if not outer:
            return self._holders.have(member.owner)
        return attributes(self._runtime, outer).get(member.owner) == self.address

    def _global(self, namespace: int, name: str) -> int | None:
        try:
            return (namespace and self._runtime.dicts.get(namespace, name)) or None
        except GdbextError:
            return None
