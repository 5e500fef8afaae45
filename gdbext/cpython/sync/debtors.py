"""Functions of the program that could end a wait for an object of Python, and threads that have ended.

A queue, an event or a future does not record who will act. The functions of the program tell: one whose code calls
``get()`` of a queue makes room in it, whatever thread runs it. A function that no thread is in will not do so; a thread
that has ended will not run it again.

Sources: Lib/threading.py and queue.py, 3.8 to 3.15.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import Waitable, is_of_program
from gdbext.cpython.abi.python_structures import PyCodeObject, PyFunctionObject
from gdbext.cpython.objects.objects import FLAG_TYPE
from gdbext.cpython.sync.helper_threads import ThreadObject, thread_objects
from gdbext.cpython.threads.frame_variables import attributes, closure_names, locals_of, names_used, namespace_of
from gdbext.cpython.threads.loop_names import names_of_code
from gdbext.engine.record import Record
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.loop_names import LoopNames
    from gdbext.cpython.threads.runtime import PythonRuntime

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


class Acting(Record):
    """A function that could end the wait, by the method that it calls."""

    function: PythonFunction
    method: str
    by_name: bool
    """It calls the method of the very object, by a name that stands for it; else of a variable of its own."""
    hands_on: bool = False
    """It takes the method as a value, for others to call, or is a coroutine or generator: no thread need be in it."""


class Debtors(Record):
    """The functions that could end a wait, who is in them, and the threads that have ended."""

    functions: tuple[Acting, ...] = ()
    idents: tuple[int, ...] = ()
    """Idents of the other threads that are in one of these functions."""
    ended: tuple[ThreadObject, ...] = ()
    """Threads that have ended and whose function is one of these, or is not known any more."""


def methods_that_end(kind: Waitable, call: str) -> frozenset[str]:
    """The methods that end a wait for an object of that kind, in its method ``call``."""
    if kind is Waitable.QUEUE:
        return _QUEUE_ENDED_BY.get(call, _ENDED_BY[Waitable.SIMPLE_QUEUE])
    return _ENDED_BY.get(kind, frozenset())


def debtors(runtime: PythonRuntime, state: ThreadState, address: int, methods: Collection[str]) -> Debtors:
    """Those who could end the wait of a thread for the object at ``address``. Raises nothing."""
    frames = [each for each in runtime.frames.stack(state).frames if is_of_program(each.file)][:_FRAMES]
    ended = [each for each in thread_objects(runtime) if each.has_ended]
    keepers = {each.address: _names_in(runtime, each.address, address) for each in ended}
    calls = _Calls(runtime, address, _attribute_names(runtime, frames, address).union(*keepers.values()), methods)
    functions = [*_functions(runtime, frames), *_of_threads(runtime, ended)]
    own = {frame.code for frame in frames}
    alike = [each for each in frames if calls.by_frame(each)] if _BY_ALIKE.intersection(methods) else []
    found = [Acting(_function_of(runtime, each), "wait", True) for each in alike]
    theirs = (calls.acting(each, space) for each, space in functions if each.code not in own)
    found += [each for each in theirs if each is not None]
    acting = tuple(each for each in found if each.by_name) or tuple(found)
    codes = {each.function.code for each in acting}
    idents = tuple(
        other.ident for other in runtime.thread_states()
        if other.ident != state.ident and _is_in(runtime, other, codes, calls)
    )  # fmt: skip
    named = (*(each for each, _ in functions), *(each.function for each in found))
    known = {each.qualname.rpartition(".")[2]: each.code for each in named}
    leads = _Leads(runtime, codes, known)
    near = (each for each in ended if not each.function or keepers[each.address] or leads.there(each))
    return Debtors(acting, idents, tuple(near))


def flag_debtors(runtime: PythonRuntime, state: ThreadState, name: str) -> Debtors:
    """Those who could change a variable or attribute ``name`` that the thread looks at: the functions that have the
    name and load no value of it, and so set it. Raises nothing."""
    frames = [each for each in runtime.frames.stack(state).frames if is_of_program(each.file)][:_FRAMES]
    own = {frame.code for frame in frames}
    functions = [each for each, _ in _functions(runtime, frames) if not each.qualname.endswith("__init__")]
    acting = tuple(Acting(each, "", True) for each in functions if each.code not in own and _sets(runtime, each, name))
    codes = {each.function.code for each in acting}
    others = [other for other in runtime.thread_states() if other.ident != state.ident]
    idents = tuple(other.ident for other in others if _is_in(runtime, other, codes, None))
    leads = _Leads(runtime, codes, {each.qualname.rpartition(".")[2]: each.code for each in functions})
    ended = (each for each in thread_objects(runtime) if each.has_ended)
    return Debtors(acting, idents, tuple(each for each in ended if not each.function or leads.there(each)))


def _sets(runtime: PythonRuntime, function: PythonFunction, name: str) -> bool:
    loaded = names_of_code(runtime, function.code)
    return loaded is not None and name not in loaded.names and name in names_used(runtime, function.code)


def _is_in(runtime: PythonRuntime, state: ThreadState, codes: Collection[int], calls: _Calls | None) -> bool:
    """A thread is in one of the functions, or in other code that calls the object's method."""
    frames = runtime.frames.stack(state).frames
    if any(frame.code in codes for frame in frames):
        return True
    return calls is not None and any(calls.by_frame(each) for each in frames[:_FRAMES] if is_of_program(each.file))


def _of_threads(runtime: PythonRuntime, threads: Iterable[ThreadObject]) -> Iterator[tuple[PythonFunction, int]]:
    """The functions that threads have kept."""
    for thread in threads:
        function = runtime.functions.source(thread.target) if thread.target else None
        if function is not None and function.code:
            yield function, 0


def _function_of(runtime: PythonRuntime, frame: PythonFrame) -> PythonFunction:
    from gdbext.cpython.objects.code import PythonFunction

    line = runtime.codes.get(frame.code).first_line
    return PythonFunction(frame.function, frame.file, line, "function", 0, code=frame.code)


def _names_in(runtime: PythonRuntime, holder: int, address: int) -> frozenset[str]:
    """The attributes under which an object keeps another one."""
    return frozenset(name for name, each in attributes(runtime, holder).items() if each == address)


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
        source = self._runtime.functions.source(thread.target) if thread.target else None
        code = source.code if source is not None else self._known.get(thread.function.rpartition(".")[2], 0)
        todo, seen = {code} - {0}, set[int]()
        for _ in range(_STEPS):
            if todo & set(self._acting):
                return True
            seen |= todo
            named = (names_of_code(self._runtime, each) for each in todo)
            called = {name for names in named if names is not None for name in names.names}
            todo = {self._known[name] for name in called if name in self._known} - seen
        return bool(todo & set(self._acting))


def _functions(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> Iterator[tuple[PythonFunction, int]]:
    """The functions of the modules that frames are of, those of their classes and in their local variables, each with
    the dict of its global variables."""
    seen: set[int] = set()
    for frame in frames:
        try:
            namespace = namespace_of(runtime, frame)
            values = [*locals_of(runtime, frame).values()]
            if namespace not in seen:
                seen.add(namespace)
                values += [value for _, value in runtime.dicts.items(namespace, _VALUES)]
            for value in _with_methods(runtime, values):
                is_other = value in seen or _is_of_another(runtime, value, namespace)
                function = None if is_other else runtime.functions.source(value)
                seen.add(value)
                if function is not None and function.code and function.file == frame.file:
                    yield function, namespace
        except GdbextError:
            continue
        if len(seen) > _FUNCTIONS:
            return


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
            kind = value if info.flags & FLAG_TYPE else info.address
            for _, method in runtime.dicts.class_items(kind):
                if runtime.objects.type_of(method).name == "function":
                    yield method
        except GdbextError:
            continue


def _attribute_names(runtime: PythonRuntime, frames: Iterable[PythonFrame], address: int) -> frozenset[str]:
    """The attributes under which objects that the frames have at hand keep the object."""
    names: set[str] = set()
    for frame in frames:
        try:
            values = locals_of(runtime, frame).values()
        except GdbextError:
            continue
        for value in values:
            names |= _names_in(runtime, value, address)
    return frozenset(names)


class _Calls:
    """Tells which code calls one of the methods of an object."""

    def __init__(
        self, runtime: PythonRuntime, address: int, holders: Collection[str], methods: Collection[str]
    ) -> None:  # fmt: skip
        """``holders``: attributes that have the object."""
        self._runtime = runtime
        self._address = address
        self._holders = holders
        self._methods = methods

    def acting(self, function: PythonFunction, namespace: int) -> Acting | None:
        """The function with the method that it calls, None where it calls none; ``namespace``: its globals."""
        names = names_of_code(self._runtime, function.code)
        wanted = [pair for pair in names.pairs if pair[1] in self._methods] if names is not None else []
        if names is None or not wanted:
            return None
        closure = closure_names(self._runtime, function.address)
        for owner, method in wanted:
            if owner in self._holders or closure.get(owner) == self._address or self._is_global(namespace, owner):
                return Acting(function, method, True, self._hands_on(function, names, owner, method))
        own = {*names.variables} - {*closure}
        for owner, method in wanted:
            if owner in own and not self._global(namespace, owner):
                return Acting(function, method, False, self._hands_on(function, names, owner, method))
        return None

    def _hands_on(self, function: PythonFunction, names: LoopNames, owner: str, method: str) -> bool:
        flags = PyCodeObject(self._runtime.space, function.code).co_flags
        return (owner, method) in names.values or bool(flags & _SUSPENDABLE)

    def by_frame(self, frame: PythonFrame) -> bool:
        """The code of a frame calls a method of the object by a name that the frame has for it."""
        names = names_of_code(self._runtime, frame.code)
        wanted = [owner for owner, method in names.pairs if method in self._methods] if names is not None else []
        if not wanted:
            return False
        try:
            local = locals_of(self._runtime, frame)
            namespace = namespace_of(self._runtime, frame)
        except GdbextError:
            return False
        same = (local.get(owner) == self._address or self._is_global(namespace, owner) for owner in wanted)
        return any(same) or any(owner in self._holders for owner in wanted)

    def _is_global(self, namespace: int, name: str) -> bool:
        return self._global(namespace, name) == self._address

    def _global(self, namespace: int, name: str) -> int | None:
        try:
            return self._runtime.dicts.get(namespace, name) if namespace else None
        except GdbextError:
            return None
