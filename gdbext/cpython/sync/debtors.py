"""Threads and functions that could end a wait for an object of Python: who owes, and has ended.

A queue, an event or a future does not record who will act. Three things tell: an object that has its helpers as
attributes (a pool, an executor), threading's own set of Thread objects, and the functions of the program: one whose
code calls ``get()`` of a queue makes room in it, whatever thread runs it. A function that no thread is in will not do
so; a thread that has ended will not run it again.

threading keeps every Thread in a weak set, ``_dangling``, those that run in ``_active``. fork leaves all threads but
one behind, and takes the others out of ``_active``. The function of a thread that has ended is no longer kept
(Thread.run deletes it). The name of a thread without one of its own has it, ``Thread-3 (consume)`` (3.10 and later);
that of a subclass is its method ``run``.

Sources: Lib/threading.py, queue.py, concurrent/futures/thread.py and process.py, 3.8 to 3.15.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.objects.objects import FLAG_TYPE
from gdbext.cpython.sync.pools import futures_in_queue
from gdbext.cpython.threads.frame_variables import attributes, closure_names, locals_of, namespace_of, referent
from gdbext.cpython.threads.loop_names import names_of_code
from gdbext.cpython.threads.runtime import active_threads, module_globals
from gdbext.engine.record import Record
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_NAME = re.compile(r"Thread-\d+ \((.+)\)\Z", re.ASCII)
"""The name that Thread.__init__ makes of a number and the function's ``__name__``."""
_THREADS = 4096


class ThreadObject(Record):
    """One Thread. ``ident`` and ``native_id`` are 0 where it never had any."""

    address: int
    name: str
    runs: bool
    """It is among the threads that run."""
    began: bool
    """Its own code has run: it has told so."""
    ident: int
    native_id: int
    target: int
    """Address of the function that it runs, or of its method ``run`` in a class of its own; 0 where that is not known
    any more."""
    function: str
    """The name of that function, "" where it is not known."""

    @property
    def has_ended(self) -> bool:
        """It began, and runs no more in this process."""
        return self.began and not self.runs


def running_threads(runtime: PythonRuntime) -> frozenset[int]:
    """Addresses of the Thread objects that threading counts as running."""
    return frozenset(thread for _, thread in active_threads(runtime))


def thread_objects(runtime: PythonRuntime) -> Iterator[ThreadObject]:
    """All Thread objects that are still in memory. Raises nothing."""
    running = running_threads(runtime)
    for address in list(dict.fromkeys(_dangling(runtime)))[:_THREADS]:
        found = thread_object(runtime, address, running)
        if found is not None:
            yield found


def _dangling(runtime: PythonRuntime) -> Iterator[int]:
    from gdbext.cpython.objects.object_items import set_items

    for weak in module_globals(runtime, assumed_names.THREADING, assumed_names.DANGLING_THREADS):
        try:
            data = attributes(runtime, weak).get("data", 0)
            references = set_items(runtime, data) if data else []
        except GdbextError:
            continue
        yield from (thread for each in references if (thread := referent(runtime, each)))


def thread_object(runtime: PythonRuntime, address: int, running: Collection[int]) -> ThreadObject | None:
    """The Thread at an address, None for what is none; ``running`` are those that run."""
    own = attributes(runtime, address) if address else {}
    if assumed_names.THREAD_IDENT not in own or assumed_names.THREAD_STARTED not in own:
        return None
    name = _text(runtime, own.get(assumed_names.THREAD_NAME, 0))
    flag = attributes(runtime, own[assumed_names.THREAD_STARTED]).get(assumed_names.EVENT_FLAG, 0)
    target = own.get(assumed_names.THREAD_TARGET, 0)
    source = runtime.functions.source(target) if target else None
    if source is None or source.kind != "function":
        target, source = _own_run(runtime, address)
    made = _NAME.match(name)
    function = source.qualname if source is not None else made.group(1) if made else ""
    return ThreadObject(
        address, name, address in running, bool(_number(runtime, flag)),
        _number(runtime, own[assumed_names.THREAD_IDENT]), _number(runtime, own.get(assumed_names.THREAD_NATIVE_ID, 0)),
        target, function,
    )  # fmt: skip


def _own_run(runtime: PythonRuntime, thread: int) -> tuple[int, PythonFunction | None]:
    """The method ``run`` of a subclass; that of threading.Thread itself tells nothing."""
    try:
        method = runtime.dicts.inherited_attribute(runtime.objects.type_of(thread).address, "run")
    except GdbextError:
        return 0, None
    source = runtime.functions.source(method) if method else None
    if source is None or source.file is None or source.file.endswith(f"/{assumed_names.THREADING_FILE}"):
        return 0, None
    return source.address, source


def _text(runtime: PythonRuntime, address: int) -> str:
    try:
        return runtime.objects.text(address, 256) if address else ""
    except GdbextError:
        return ""


def _number(runtime: PythonRuntime, address: int) -> int:
    try:
        return runtime.objects.integer(address) if address else 0
    except GdbextError:
        return 0


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
_FRAMES = 12
_VALUES = 3_000
_FUNCTIONS = 2_000
_LIBRARY = "/lib/python"


class Acting(Record):
    """A function that could end the wait, by the method that it calls."""

    function: PythonFunction
    method: str
    by_name: bool
    """It calls the method of the very object, by a name that stands for it; else of a variable of its own."""


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
    frames = [each for each in runtime.frames.stack(state).frames if _LIBRARY not in each.file][:_FRAMES]
    own = {frame.code for frame in frames}
    holders = _attribute_names(runtime, frames, address)
    found: list[Acting] = []
    known: dict[str, int] = {}
    for function, namespace in _functions(runtime, frames):
        known[function.qualname.rpartition(".")[2]] = function.code
        if function.code not in own:
            method, by_name = _calls(runtime, function, namespace, address, holders, methods)
            if method:
                found.append(Acting(function, method, by_name))
    acting = [each for each in found if each.by_name] or found
    codes = {each.function.code for each in acting}
    idents = tuple(
        other.ident for other in runtime.thread_states()
        if other.ident != state.ident and any(frame.code in codes for frame in runtime.frames.stack(other).frames)
    )  # fmt: skip
    leads = _Leads(runtime, codes, known)
    ended = (each for each in thread_objects(runtime) if each.has_ended)
    return Debtors(tuple(acting), idents, tuple(each for each in ended if not each.function or leads.there(each)))


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
                function = runtime.functions.source(value) if value not in seen else None
                seen.add(value)
                if function is not None and function.code and function.file == frame.file:
                    yield function, namespace
        except GdbextError:
            continue
        if len(seen) > _FUNCTIONS:
            return


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
            names.update(name for name, each in attributes(runtime, value).items() if each == address)
    return frozenset(names)


def _calls(
    runtime: PythonRuntime, function: PythonFunction, namespace: int, address: int, holders: Collection[str],
    methods: Collection[str],
) -> tuple[str, bool]:  # fmt: skip
    """The method of the object that the function calls, "" for none, and whether it has the object by its name."""
    names = names_of_code(runtime, function.code)
    if names is None:
        return "", False
    wanted = [(owner, method) for owner, method in names.pairs if method in methods]
    closure = {name for name, value in closure_names(runtime, function.address).items() if value == address}
    for owner, method in wanted:
        if owner in holders or owner in closure or runtime.dicts.get(namespace, owner) == address:
            return method, True
    own = {*names.variables} - {*closure_names(runtime, function.address)}
    local = [method for owner, method in wanted if owner in own and runtime.dicts.get(namespace, owner) is None]
    return (local[0], False) if local else ("", False)


class PoolHelper(Record):
    """A thread of this process without which a multiprocessing.Pool delivers no result."""

    does: str
    """The work that it does for a result: ``hands out the jobs``."""
    tid: int | None
    thread: ThreadObject
    """The Thread object of the helper, which may have ended."""


def pool_helpers(runtime: PythonRuntime, result: int) -> tuple[PoolHelper, ...]:
    """The helpers of the pool that owes a result; those that cannot be read are left out."""
    pool = attributes(runtime, attributes(runtime, result).get(assumed_names.POOL_PROCESSES, 0))
    running = running_threads(runtime)
    found = []
    for name, does in assumed_names.POOL_HELPERS:
        thread = thread_object(runtime, pool.get(name, 0), running)
        if thread is not None:
            tid = runtime.tid_of_ident(thread.ident) if thread.runs and thread.ident else None
            found.append(PoolHelper(does, tid, thread))
    return tuple(found)


class LostHelpers(Record):
    """Threads that an executor needs for a job, none of which runs."""

    threads: tuple[ThreadObject, ...]
    does: str


def lost_executor(runtime: PythonRuntime, future: int) -> LostHelpers | None:
    """The workers of the executor in whose queue a future's job is, where none of them runs, or the thread that hands
    its jobs to processes; None where one runs, or the future is of no executor. Raises nothing."""
    for thread in thread_objects(runtime):
        if thread.runs:
            continue
        pending = attributes(runtime, thread.address).get(assumed_names.EXECUTOR_ITEMS, 0)
        try:
            if pending and future in futures_in_queue(runtime, pending):
                return LostHelpers((thread,), "hands the jobs of its ProcessPoolExecutor to the workers")
        except GdbextError:
            continue
    return _lost_workers(runtime, future)


def _lost_workers(runtime: PythonRuntime, future: int) -> LostHelpers | None:
    from gdbext.cpython.sync.pools import jobs_in_queue

    running = running_threads(runtime)
    workers: dict[int, list[ThreadObject]] = {}
    for thread, queue in _threads_queues(runtime):
        found = thread_object(runtime, thread, running)
        if found is not None:
            workers.setdefault(queue, []).append(found)
    for queue, threads in workers.items():
        if not any(each.runs for each in threads) and future in jobs_in_queue(runtime, queue):
            return LostHelpers(tuple(threads), "should run its job")
    return None


def _threads_queues(runtime: PythonRuntime) -> Iterator[tuple[int, int]]:
    """concurrent.futures.thread._threads_queues: each worker of every ThreadPoolExecutor with its queue of jobs."""
    for weak in module_globals(runtime, "concurrent.futures.thread", "_threads_queues"):
        try:
            data = attributes(runtime, weak).get("data", 0)
            for reference, queue in list(runtime.dicts.items(data)) if data else ():
                thread = referent(runtime, reference)
                if thread:
                    yield thread, queue
        except GdbextError:
            continue


def never_began(runtime: PythonRuntime, event: int) -> ThreadObject | None:
    """The thread that Thread.start() waits for at an event, where no thread of the process can be it: each one that has
    a state of the interpreter runs a Thread of its own. None for any other event. Raises nothing."""
    thread = next((each for each in thread_objects(runtime) if _starts(runtime, each, event)), None)
    if thread is None or thread.began:
        return None
    try:
        known = {runtime.objects.integer(ident) for ident, _ in active_threads(runtime)}
        states: Sequence[ThreadState] = runtime.thread_states()
    except GdbextError:
        return None
    idents = [state.ident for state in states]
    return thread if all(ident in known for ident in idents) and len(set(idents)) == len(idents) else None


def _starts(runtime: PythonRuntime, thread: ThreadObject, event: int) -> bool:
    return attributes(runtime, thread.address).get(assumed_names.THREAD_STARTED, 0) == event
