"""Functions of the program that could end a wait for a Python object, by the methods that their code calls; the threads
in these functions, and the threads that have ended. A queue, event or future does not record which thread will act.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import Waitable, is_of_program, package_of
from gdbext.cpython.abi.bytecode import LoadKind
from gdbext.cpython.abi.python_structures import PyCodeObject, PyFunctionObject
from gdbext.cpython.objects import FLAG_DICT, FLAG_LIST, FLAG_TUPLE, FLAG_TYPE, base_classes
from gdbext.cpython.objects.code import PythonFunction
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.objects.py_space import once
from gdbext.cpython.sync.helper_threads import ThreadObject, ended_threads, runs_in, takes_jobs
from gdbext.cpython.threads.frame_variables import attributes, locals_of, namespace_of, used_names, variables
from gdbext.cpython.threads.loop_names import names_of_code
from gdbext.cpython.threads.object_text import codes_of_traceback
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.loop_names import NamedMember
    from gdbext.cpython.threads.runtime import PythonRuntime

_WAKING_METHODS: Mapping[Waitable, frozenset[str]] = {
    Waitable.EVENT: frozenset({"set"}),
    Waitable.CONDITION: frozenset({"notify", "notify_all", "notifyAll"}),
    Waitable.SEMAPHORE: frozenset({"release"}),
    Waitable.LOCK: frozenset({"release"}),
    Waitable.FUTURE: frozenset({"set_result", "set_exception", "cancel"}),
    Waitable.SIMPLE_QUEUE: frozenset({"put", "put_nowait"}),
    Waitable.BARRIER: frozenset({"wait", "abort"}),
}
_QUEUE_WAKING_METHODS = {
    assumed_names.QUEUE_PUT: frozenset({"get", "get_nowait"}),
    assumed_names.QUEUE_JOIN: frozenset({"task_done"}),
}
"""Waiting method of a queue → the methods that end the wait; a wait in ``get`` is ended by those of SIMPLE_QUEUE."""
_SUSPENDABLE = 0x20 | 0x80 | 0x200
"""The flags CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR (Include/cpython/code.h)."""
_FRAMES = 12
_VALUES = 3_000
_FUNCTIONS = 2_000


class WakingFunction(NamedTuple):
    """A function that could end the wait, by the ``method`` that it calls. ``is_proven``: a variable or attribute
    proves that it calls the method of this very object, and not of a local variable or an attribute of the same name.
    ``hands_on``: it passes the method on as a value, or is a coroutine or generator, so no thread need be in it."""

    function: PythonFunction
    method: str
    is_proven: bool
    hands_on: bool = False


class PossibleWakers(NamedTuple):
    """The functions that could end a wait; ``idents`` of the other threads that are in one of them; ``ended`` threads
    whose function is one of them or unknown. ``takes_jobs``: another thread waits for jobs or input in the installed
    package of such a function, and may then call it."""

    functions: tuple[WakingFunction, ...] = ()
    idents: tuple[int, ...] = ()
    ended: tuple[ThreadObject, ...] = ()
    takes_jobs: bool = False


def methods_that_end(kind: Waitable, call: str) -> frozenset[str]:
    """The methods that end a thread's wait in the method ``call`` of an object of that kind."""
    if kind is Waitable.QUEUE:
        return _QUEUE_WAKING_METHODS.get(call, _WAKING_METHODS[Waitable.SIMPLE_QUEUE])
    return _WAKING_METHODS.get(kind, frozenset())


def possible_wakers(
    runtime: PythonRuntime, state: ThreadState, address: int, methods: Collection[str], otherwise: Collection[str] = ()
) -> PossibleWakers:
    """The functions and threads that could end a thread's wait for the object at ``address`` by one of the ``methods``;
    if no function calls any of these, those that call one of ``otherwise``. Raises nothing."""
    frames = _program_frames(runtime, state)
    ended = ended_threads(runtime)
    names_by_thread = {thread.value.address: _names_in(runtime, thread.value.address, address) for thread in ended}
    holders = _Holders(runtime, frames, names_by_thread, address)
    targets = (thread.target.function for thread in ended)
    functions = [*_functions(runtime, frames), *((target, 0) for target in targets if target and target.code)]
    calls = _Calls(runtime, address, holders, methods)
    callers, wakers = _waking_functions(runtime, calls, frames, functions)
    if otherwise and not wakers:
        calls = _Calls(runtime, address, holders, otherwise)
        callers, wakers = _waking_functions(runtime, calls, frames, functions)
    codes = {waker.function.code for waker in wakers}
    others = [other for other in runtime.thread_states() if other.ident != state.ident]
    all_functions = [*(function for function, _ in functions), *(caller.function for caller in callers)]
    graph = _CallGraph(runtime, codes, all_functions)

    def may_have_woken(thread: ThreadObject) -> bool:
        return not thread.function or bool(names_by_thread[thread.value.address]) or graph.reaches(thread)

    files = {waker.function.file or "" for waker in wakers}
    folders = {file.rpartition("/")[0] for file in files if package_of(file)}
    packages = {package_of(file) for file in files} - {""}
    may_act = bool(packages) and any(
        takes_jobs(runtime, other, folders, address) or runs_in(runtime, other, packages) for other in others
    )
    relevant_threads = tuple(filter(may_have_woken, ended))
    return PossibleWakers(wakers, _idents_in(runtime, others, codes, calls), relevant_threads, may_act)


def _program_frames(runtime: PythonRuntime, state: ThreadState) -> list[PythonFrame]:
    """The innermost frames of a thread that run code of a program or an installed package."""
    return [frame for frame in runtime.frames.stack(state).frames if is_of_program(frame.file)][:_FRAMES]


def _waking_functions(
    runtime: PythonRuntime,
    calls: _Calls,
    frames: Sequence[PythonFrame],
    functions: Iterable[tuple[PythonFunction, int]],
) -> tuple[Sequence[WakingFunction], tuple[WakingFunction, ...]]:
    """(the functions that call one of the methods; of these the ones that likely call it on the object, proven ones
    first, or all if there are none). ``frames``: of the waiter; ``functions``: (function, address of its globals)."""
    own = {frame.code for frame in frames}
    wakers = []
    # Waiters at a barrier release each other, so that functions on the waiter's own stack count, too.
    is_barrier = not _WAKING_METHODS[Waitable.BARRIER].isdisjoint(calls.methods)
    for frame in frames:
        if is_barrier and calls.are_in_frame(frame, calls.wanted(frame.code)):
            line = runtime.codes.get(frame.code).first_line
            function = PythonFunction(frame.function, frame.file, line, "function", 0, code=frame.code)
            wakers.append(WakingFunction(function, "wait", is_proven=True))
    for function, namespace in functions:
        waker = calls.waking_function(function, namespace) if function.code not in own else None
        wakers += [waker] if waker else []
    likely = [waker for waker in wakers if waker.is_proven or calls.has_holders_attribute(waker.function)]
    return wakers, tuple(sorted(likely or wakers, key=lambda waker: not waker.is_proven))


def possible_setters(runtime: PythonRuntime, state: ThreadState, name: str) -> PossibleWakers:
    """The functions and threads that could change a variable or attribute ``name`` that the thread polls: code that has
    the name and never loads it must set it. Raises nothing."""
    frames = _program_frames(runtime, state)
    own = {frame.code for frame in frames}
    functions = [function for function, _ in _functions(runtime, frames) if not function.qualname.endswith("__init__")]
    setters = []
    for function in functions:
        loaded = names_of_code(runtime, function.code) if function.code not in own else None
        if loaded and name not in loaded.names and name in used_names(runtime, function.code):
            setters.append(WakingFunction(function, "", is_proven=True))
    codes = {setter.function.code for setter in setters}
    others = [other for other in runtime.thread_states() if other.ident != state.ident]
    graph = _CallGraph(runtime, codes, functions)
    ended = tuple(thread for thread in ended_threads(runtime) if not thread.function or graph.reaches(thread))
    return PossibleWakers(tuple(setters), _idents_in(runtime, others, codes), ended)


def error_in_future(runtime: PythonRuntime, state: ThreadState, codes: Collection[int]) -> int:
    """Address of an exception whose traceback has a code object at one of the addresses ``codes``, in a
    concurrent.futures.Future that the thread's functions or their modules refer to; 0 for none. Raises nothing."""
    for value in dict.fromkeys(_objects_at_hand(runtime, _program_frames(runtime, state))):
        try:
            is_future = runtime.objects.type_of(value).name == assumed_names.FUTURE_CLASS
        except GdbextError:
            continue
        error = attributes(runtime, value).get(assumed_names.FUTURE_ERROR, 0) if is_future else 0
        if error and not set(codes).isdisjoint(codes_of_traceback(runtime, error)):
            return error
    return 0


def _objects_at_hand(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> Iterator[int]:
    """Addresses of the variables of frames and of their modules, and of the items of lists, tuples and dicts."""
    for frame in frames:
        try:
            module = [value for _, value in runtime.dicts.items(namespace_of(runtime, frame), _VALUES)]
            values = [*locals_of(runtime, frame).values(), *module]
        except GdbextError:
            continue
        for value in values:
            yield value
            with suppress(GdbextError):
                if runtime.objects.type_of(value).flags & (FLAG_LIST | FLAG_TUPLE | FLAG_DICT):
                    yield from (item.address for item in PyRef(runtime, value).parts())


def _idents_in(
    runtime: PythonRuntime, others: Sequence[ThreadState], codes: Collection[int], calls: _Calls | None = None
) -> tuple[int, ...]:
    """Idents of those of the threads ``others`` that run a code object at one of the addresses ``codes``, or code that
    calls a method of the awaited object, if ``calls`` is given."""
    states_by_code, program_frames = _threads_by_code(runtime)
    inside = {state for code in codes for state in states_by_code.get(code, ())}
    if calls:
        candidates = {other.address for other in others}
        for code, frames in program_frames.items():
            left = (frames.keys() & candidates) - inside
            for member in calls.wanted(code) if left else ():
                if member.kind is LoadKind.ATTRIBUTE:
                    inside |= {key for key in left if any(calls.are_in_frame(frame, [member]) for frame in frames[key])}
                else:
                    inside |= _states_by_value(runtime, code, member.owner).get(calls.address, set())
    return tuple(other.ident for other in others if other.address in inside)


@once
def _threads_by_code(runtime: PythonRuntime) -> tuple[dict[int, set[int]], dict[int, dict[int, list[PythonFrame]]]]:
    """(address of a code object → addresses of the PyThreadStates that run it; address of a code object of the program
    → address of a PyThreadState → its frames of that code among the innermost ones)."""
    states_by_code: dict[int, set[int]] = {}
    program_frames: dict[int, dict[int, list[PythonFrame]]] = {}
    for state in runtime.thread_states():
        for level, frame in enumerate(runtime.frames.stack(state).frames):
            states_by_code.setdefault(frame.code, set()).add(state.address)
            if level < _FRAMES and is_of_program(frame.file):
                program_frames.setdefault(frame.code, {}).setdefault(state.address, []).append(frame)
    return states_by_code, program_frames


@once
def _states_by_value(runtime: PythonRuntime, code: int, name: str) -> Mapping[int, set[int]]:
    """Value of the variable ``name`` in frames of the code → addresses of the PyThreadStates of these frames."""
    states: dict[int, set[int]] = {}
    for state, frames in _threads_by_code(runtime)[1].get(code, {}).items():
        for frame in frames:
            value = variables(runtime, frame).get(name)
            if value is not None:
                states.setdefault(value, set()).add(state)
    return states


def _names_in(runtime: PythonRuntime, holder: int, address: int) -> frozenset[str]:
    """The attributes of the object ``holder`` that refer to the object at ``address``."""
    return frozenset(name for name, value in runtime.once(attributes, holder).items() if value == address)


class _CallGraph:
    """Decides whether the function of a thread may call a waking one, by the names that code loads."""

    STEPS = 3  # most calls from a thread's own function to the waking one

    def __init__(self, runtime: PythonRuntime, waking: Collection[int], functions: Iterable[PythonFunction]) -> None:
        """``waking``: addresses of the code objects of waking functions; ``functions``: those that may be called."""
        self._runtime = runtime
        self._waking = set(waking)
        self._code_by_name = {function.qualname.rpartition(".")[2]: function.code for function in functions}

    def reaches(self, thread: ThreadObject) -> bool:
        """True if the thread's function is a waking one, or calls one in at most STEPS calls."""
        source = thread.target.function
        code = source.code if source else self._code_by_name.get(thread.function.rpartition(".")[2], 0)
        codes = {code} - {0}
        for _ in range(self.STEPS):
            loaded = filter(None, (names_of_code(self._runtime, code) for code in codes))
            called = {name for names in loaded for name in names.names}
            codes |= {self._code_by_name[name] for name in called & self._code_by_name.keys()}
        return not codes.isdisjoint(self._waking)


def _functions(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> Iterator[tuple[PythonFunction, int]]:
    """(function, address of its globals) for the functions of the modules of frames, of the classes there, and among
    the frames' local variables."""
    seen: set[int] = set()
    for frame in frames:
        try:
            namespace = namespace_of(runtime, frame)
            functions = [*_local_functions(runtime, frame, namespace)]
            if namespace not in seen:
                seen.add(namespace)
                functions += _module_functions(runtime, namespace, frame.file)
        except GdbextError:
            continue
        for function in functions:
            if function.address not in seen:
                seen.add(function.address)
                yield function, namespace
        if len(seen) > _FUNCTIONS:
            return


@once
def _local_functions(runtime: PythonRuntime, frame: PythonFrame, namespace: int) -> Sequence[PythonFunction]:
    return [*_functions_defined_in(runtime, locals_of(runtime, frame).values(), namespace, frame.file)]


@once
def _module_functions(runtime: PythonRuntime, namespace: int, file: str) -> Sequence[PythonFunction]:
    values = [value for _, value in runtime.dicts.items(namespace, _VALUES)]
    return [*_functions_defined_in(runtime, values, namespace, file)]


def _functions_defined_in(
    runtime: PythonRuntime, values: Iterable[int], namespace: int, file: str
) -> Iterator[PythonFunction]:
    """Functions and methods among the objects at ``values``, and methods of classes and instances among them, whose
    globals dict is ``namespace`` and whose code is in ``file``."""
    candidates: dict[int, None] = {}
    for value in dict.fromkeys(values):
        with suppress(GdbextError):
            info = runtime.objects.type_of(value)
            if info.name in ("function", "method"):
                candidates[value] = None
            methods = _methods_of(runtime, value if info.flags & FLAG_TYPE else info.address)
            candidates.update(dict.fromkeys(methods))
    for value in candidates:
        function = _source_in(runtime, value, namespace)
        if function and function.code and function.file == file:
            yield function


@once
def _source_in(runtime: PythonRuntime, value: int, namespace: int) -> PythonFunction | None:
    """The function that the callable at ``value`` runs; None, without reading its code, for a plain function whose
    globals are not the dict at ``namespace``."""
    function = PyFunctionObject(runtime.space, value)
    is_plain = runtime.objects.type_of(value).name == "function" and not function.func_dict
    return None if is_plain and function.func_globals != namespace else runtime.functions.source(value)


@once
def _methods_of(runtime: PythonRuntime, kind: int) -> Sequence[int]:
    """Addresses of the functions in the dict of the class at ``kind``, up to the first that cannot be read."""
    methods = []
    with suppress(GdbextError):
        for _, method in runtime.dicts.class_items(kind):
            if runtime.objects.type_of(method).name == "function":
                methods.append(method)
    return methods


class _Holders:
    """The objects that have the awaited object as an attribute, among the variables of frames and the ended Threads."""

    def __init__(
        self, runtime: PythonRuntime, frames: Iterable[PythonFrame], names: Mapping[int, frozenset[str]], address: int
    ) -> None:
        """``names``: address of a Thread → its attributes that refer to the awaited object, which is at ``address``."""
        self._runtime = runtime
        values = dict.fromkeys(value for frame in frames for value in variables(runtime, frame).values())
        self._names = {**names, **{value: _names_in(runtime, value, address) for value in values}}
        self._methods: dict[int, set[int]] = {}

    def have(self, name: str) -> bool:
        """True if a holder's attribute ``name`` is the awaited object."""
        return any(name in names for names in self._names.values())

    def include(self, value: int, name: str) -> bool:
        """True if the object at ``value`` is a holder whose attribute ``name`` is the awaited object."""
        return name in self._names.get(value, ())

    def have_method(self, code: int, name: str) -> bool:
        """True if the code object at ``code`` is of a method of a holder whose attribute ``name`` is the awaited
        object."""
        return any(name in names and code in self._method_codes(holder) for holder, names in self._names.items())

    def _method_codes(self, holder: int) -> Collection[int]:
        """Addresses of the code objects of an object's methods, up to the first one that cannot be read."""
        if holder not in self._methods:
            codes = self._methods[holder] = set()
            with suppress(GdbextError):
                objects = self._runtime.objects
                for kind in base_classes(objects, objects.type_of(holder).address):
                    for _, value in self._runtime.dicts.class_items(kind):
                        source = self._runtime.functions.source(value)
                        if source and source.code:
                            codes.add(source.code)
        return self._methods[holder]


class _Calls:
    """Decides which code calls one of the ``methods`` of the awaited object, which is at ``address``."""

    def __init__(self, runtime: PythonRuntime, address: int, holders: _Holders, methods: Collection[str]) -> None:
        self._runtime = runtime
        self.address = address
        self._holders = holders
        self.methods = methods

    def wanted(self, code: int) -> list[NamedMember]:
        """The loads of methods with one of the names ``methods``, of any object, in the code object at ``code``."""
        names = names_of_code(self._runtime, code)
        return [member for member in names.members if member.name in self.methods] if names else []

    def waking_function(self, function: PythonFunction, namespace: int) -> WakingFunction | None:
        """The function with the method that it calls; None if it calls none that may be the awaited object's.
        ``namespace``: address of its globals."""
        names, wanted = names_of_code(self._runtime, function.code), self.wanted(function.code)
        if not names or not wanted:
            return None
        variables_of_closure = PyRef(self._runtime, function.address).closure_variables()
        closure = {name: value.address for name, value in variables_of_closure.items()}

        def may_be_object(member: NamedMember) -> bool:
            """True if the owner of the method may be the awaited object: an unknown local variable, or an attribute
            named as one that is the awaited object."""
            if member.kind is LoadKind.ATTRIBUTE:
                return self._holders.have(member.owner)
            return self._value(member.kind, member.owner, closure, namespace) is None

        proven = next((member for member in wanted if self._is_object(member, function, closure, namespace)), None)
        member = proven or next(filter(may_be_object, wanted), None)
        if not member:
            return None
        flags = PyCodeObject(self._runtime.space, function.code).co_flags
        hands_on = (member.owner, member.name) in names.values or bool(flags & _SUSPENDABLE)
        return WakingFunction(function, member.name, bool(proven), hands_on)

    def _is_object(
        self, member: NamedMember, function: PythonFunction, closure: Mapping[str, int], namespace: int
    ) -> bool:
        """True if the owner of the method that ``function`` calls is proven to be the awaited object. ``closure``: name
        → address of the values in its closure; ``namespace``: address of its globals."""
        if member.kind is not LoadKind.ATTRIBUTE:
            return self._value(member.kind, member.owner, closure, namespace) == self.address
        if member.outer_kind is LoadKind.FAST:
            with suppress(GdbextError):
                if self._runtime.codes.get(function.code).local_names()[:1] == [member.outer]:  # ``self`` of a method
                    return self._holders.have_method(function.code, member.owner)
        if member.outer_kind in (None, LoadKind.ATTRIBUTE):
            return False
        value = self._value(member.outer_kind, member.outer, closure, namespace)
        return value is not None and self._holders.include(value, member.owner)

    def has_holders_attribute(self, function: PythonFunction) -> bool:
        """True if the function calls a method of an attribute whose name some holder has for the awaited object."""
        wanted = self.wanted(function.code)
        return any(member.kind is LoadKind.ATTRIBUTE and self._holders.have(member.owner) for member in wanted)

    def _value(self, kind: LoadKind, name: str, closure: Mapping[str, int], namespace: int) -> int | None:
        """Address of the value of an enclosing or global variable; None for a local one, or if it is unknown."""
        if kind is LoadKind.CELL:
            return closure.get(name)
        if kind not in (LoadKind.GLOBAL, LoadKind.NAME) or not namespace:
            return None
        try:
            return self._runtime.dicts.get(namespace, name) or None
        except GdbextError:
            return None

    def are_in_frame(self, frame: PythonFrame, wanted: Sequence[NamedMember]) -> bool:
        """True if one of the ``wanted`` methods is the awaited object's, by the present values of the frame's
        variables."""
        own = variables(self._runtime, frame) if wanted else {}

        def is_object(member: NamedMember) -> bool:
            """True if the owner of the method is the awaited object."""
            if member.kind is not LoadKind.ATTRIBUTE:
                return own.get(member.owner) == self.address
            outer = own.get(member.outer, 0) if member.outer_kind is not LoadKind.ATTRIBUTE else 0
            if outer:
                return attributes(self._runtime, outer).get(member.owner) == self.address
            return self._holders.have(member.owner)

        return any(map(is_object, wanted))
