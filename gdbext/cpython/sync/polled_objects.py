"""Objects that a polling loop checks between sleeps, and how long it sleeps.

``while not os.path.exists(path): time.sleep(1)`` shows nothing but a sleep. What it looks for is among the variables
of the frame that sleeps, and the names that its code uses tell which of them.

How long it sleeps is the argument of ``time.sleep``, which is still on the frame's value stack. Since 3.11 it sleeps
until an absolute time (pysleep, Modules/timemodule.c), so that the system call alone does not say how long without the
system's clock, which a core does not have.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import Waitable, is_below_library, is_of_program
from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.cpython.threads.loop_names import loop_names, names_with_inner
from gdbext.cpython.threads.py_stack import PyStack
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.objects.py_space import PySpace
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.loop_names import LoopNames
    from gdbext.cpython.threads.runtime import PythonRuntime

_SLEEP = "sleep"


def asked_to_sleep(stack: PyStack, frame: PythonFrame) -> float | None:
    """Seconds in all; None where the frame does not call ``time.sleep``, or where more than one such call has left its
    argument on the stack."""
    slots = stack.slots(frame)
    places = [number for number, slot in enumerate(slots[:-1]) if _is_builtin(slot, _SLEEP)]
    return slots[places[0] + 1].float() if len(places) == 1 else None


def _is_builtin(value: PyRef, name: str) -> bool:
    found = value.function
    return bool(found and (found.kind, found.qualname) == ("builtin", name))


_NEAR = 24
"""Innermost Python frames in which a debugger's are looked for."""
_DEBUGGERS = {"pdb.py": "pdb", "debugger.py": "IPython's pdb"}
_OF_DEBUGGERS = frozenset({*_DEBUGGERS, "bdb.py", "cmd.py"})
_ASKS = "input"
_LONGEST_QUESTION = 300


class Question(NamedTuple):
    """Something that a program asks of somebody who should type."""

    by: str
    """The function or debugger that asks: ``input()``, ``getpass()``, ``pdb``."""
    frame: PythonFrame
    """The function that has called it, or where the debugger has stopped the program."""
    words: str = ""
    is_debugger: bool = False


def asked_question(stack: PyStack) -> Question | None:
    """The question that the innermost frames ask, None where they do not.

    A debugger is known by the frames of its own files (Lib/pdb.py, Lib/bdb.py, Lib/cmd.py), ``getpass`` by its file and
    its variable ``prompt``, the built-in ``input`` by the call that is still on the value stack of its caller.
    """
    files = [frame.file.rpartition("/")[2] for frame in stack[:_NEAR]]
    debugger = next((level for level, file in enumerate(files) if file in _DEBUGGERS), None)
    if debugger is not None and all(
        file in _OF_DEBUGGERS or _is_inside(stack[at]) for at, file in enumerate(files[:debugger])
    ):
        outer = next((at for at in range(debugger, len(files)) if files[at] not in _OF_DEBUGGERS), None)
        return Question(_DEBUGGERS[files[debugger]], stack[outer], is_debugger=True) if outer is not None else None
    if files[:1] == ["getpass.py"]:
        outer = next((at for at, file in enumerate(files) if file != "getpass.py"), len(files) - 1)
        return Question("getpass()", stack[outer], stack.locals(stack[0])["prompt"].str(_LONGEST_QUESTION))
    slots = stack.slots(stack[0]) if stack else []
    places = [number for number, slot in enumerate(slots) if _is_builtin(slot, _ASKS)]
    if len(places) != 1:
        return None
    prompt = slots[places[0] + 1 : places[0] + 2]
    return Question("input()", stack[0], prompt[0].str(_LONGEST_QUESTION) if prompt else "")


def _is_inside(frame: PythonFrame) -> bool:
    """True for a function of Python's own library, by which a debugger reads a line."""
    return is_below_library(frame.file)


_ATTRIBUTES = 64
_PATH_LIMIT = 4096
_LOCK_FILES = (".lock", "/lock")
"""Endings of the names of lock files: those of filelock, of the caches of Hugging Face, Triton and torch's
extensions."""
_FILE_ENDINGS = (
    *_LOCK_FILES,
    ".lck",
    ".pid",
    ".done",
    ".flag",
    ".ready",
    ".pt",
    ".pth",
    ".ckpt",
    ".json",
    ".txt",
    ".bin",
)
"""Endings of names without a folder that are taken for a file's."""
_PATH_WORDS = 16
"""Words of a pathlib.Path that are read: it has slots, one of them the whole path."""


class PolledKind(Enum):
    """The kind of object that is looked at; the value is the names of functions and attributes by which code does
    so."""

    FILE = frozenset(
        {
            "exists",
            "isfile",
            "isdir",
            "lexists",
            "is_file",
            "is_dir",
            "stat",
            "access",
            "listdir",
            "scandir",
            "glob",
            "iterdir",
            "getsize",
            "open",
            "unlink",
        }
    )
    PROCESS = frozenset({"poll", "wait", "waitpid", "returncode", "is_alive", "exitcode", "join", "_try_wait"})
    THREAD = frozenset({"is_alive", "join"})
    OBJECT = frozenset(
        {
            "is_set",
            "wait",
            "get",
            "get_nowait",
            "put_nowait",
            "empty",
            "qsize",
            "full",
            "done",
            "running",
            "locked",
            "ready",
            "successful",
        }
    )
    FLAG = frozenset[str]()
    """A bool: code that looks at it calls nothing."""


class PolledObject(NamedTuple):
    """One object. ``name`` is the variable's or attribute's; ``path`` is set for a FILE, ``pid`` for a PROCESS,
    ``ident`` (threading.get_ident) for a THREAD, ``kind`` for an OBJECT, ``value`` for a FLAG."""

    polled_as: PolledKind
    name: str
    address: int
    path: str = ""
    pid: int = 0
    ident: int = 0
    kind: Waitable | None = None
    value: bool = False
    is_item: bool = False
    """It is in a container of that name."""


def polled_objects(runtime: PythonRuntime, frame: PythonFrame) -> list[PolledObject]:
    """The objects that the loop of the frame looks at, by what it loads, and what the functions load that it calls;
    lock files, which it may look at by any function; flags only where there is nothing else. Empty where the frame is
    in no loop, or nobody can tell."""
    loop, stack = loop_names(runtime, frame), PyStack(runtime)
    if not loop:
        return []
    values = stack.variables(frame)  # what the frame's own code names
    values.update(_values_in(stack.globals(frame), loop.variables - values.keys()))
    found: dict[tuple[PolledKind, object], PolledObject] = {}
    flags: dict[int, PolledObject] = {}
    accepts, may_poll = is_of_program if is_below_library(frame.file) else _is_own, not _GIVE_UP.isdisjoint(loop.names)
    for number, (names, known) in enumerate(_looking(runtime, loop, values, accepts)):
        for each in _objects_in_reach(runtime, known, names._replace(texts=frozenset()) if number else names):
            if each and each.polled_as is PolledKind.FLAG:
                flags.setdefault(each.address, each)
            elif each and _is_looked_at(each, names, frozenset() if may_poll and not number else _BLOCKING):
                found.setdefault((each.polled_as, each.path or each.pid or each.address), each)
    return [*found.values()] or ([*flags.values()] if not is_below_library(frame.file) else [])


_BLOCKING = frozenset({"join", "wait", "waitpid", "get"})
"""Methods that rather wait for the end of something than look at it, but in a loop that expects them to give up."""
_GIVE_UP = frozenset({"Empty", "TimeoutExpired", "TimeoutError"})
_CALLS = 2
"""Functions that call one another, from the loop on, that are followed."""


def _is_own(file: str) -> bool:
    """The file is one of the program itself: a package that its loop calls looks at much that is not waited for."""
    return bool(file) and not is_below_library(file)


def _looking(
    runtime: PythonRuntime,
    names: LoopNames,
    values: Mapping[str, PyRef],
    accepts: Callable[[str], bool],
    depth: int = _CALLS,
) -> Iterator[tuple[LoopNames, Mapping[str, PyRef]]]:
    """The names that code loads, and the values of its variables: those of a loop, then those of the functions in files
    that are accepted which it calls."""
    yield names, values
    for name, value in values.items() if depth else ():
        if name not in names.variables or _is_waited_for(describe(name, value)):
            continue
        methods = [method for owner, method in names.pairs if owner == name]
        for function, own in _functions(value, methods):
            inner = names_with_inner(runtime, function.code) if accepts(function.file or "") else None
            if inner:
                theirs = _variables_of(runtime, function, inner.variables, value if own else None)
                yield from _looking(runtime, inner, theirs, accepts, depth - 1)


def _variables_of(
    runtime: PythonRuntime, function: PythonFunction, names: Collection[str], first: PyRef | None
) -> dict[str, PyRef]:
    """The globals and the closure of a function, and the ``first`` argument of a method."""
    value = PyRef(runtime, function.address)
    found = {**_values_in(value["__globals__"], names), **value.closure_variables()}
    try:
        return {**found, runtime.codes.get(function.code).local_names()[0]: first} if first is not None else found
    except (GdbextError, IndexError):
        return {}


def _is_waited_for(found: PolledObject | None) -> bool:
    return bool(found and found.polled_as is not PolledKind.FLAG)


def _functions(value: PyRef, methods: Sequence[str]) -> Iterator[tuple[PythonFunction, bool]]:
    """The Python function that a value is, or its methods of these names; True for one that gets the value itself."""
    is_function = value.type == "function"
    inherited = (value.inherited(method) for method in methods) if value.has_own_class else ()
    for each in (value,) if is_function else inherited:
        found = each.function if each.type == "function" else None
        if found and found.code:
            yield found, not is_function


def _values_in(namespace: PyRef, names: Collection[str]) -> dict[str, PyRef]:
    found = {name: namespace[name] for name in names}
    return {name: value for name, value in found.items() if value}


def up_to_callback(frames: Sequence[PythonFrame]) -> Iterator[PythonFrame]:
    """The frames from the innermost one, up to code of a library that has called the program's own: the loop of a
    server or a worker gives work, and looks for nothing that the work would wait for."""
    is_inside = False
    for frame in frames:
        own = _is_own(frame.file)
        if is_inside and not own:
            return
        is_inside = is_inside or own
        yield frame


_PAUSES = frozenset({"sleep"})
_AROUND = 3
"""Frames in which the loop around a wait is looked for."""


def waiting_loop(runtime: PythonRuntime, frames: Sequence[PythonFrame]) -> PythonFrame | None:
    """The innermost frame whose loop repeats the wait that the innermost frames are in; None where none is known, or
    the loop does nothing but sleep. Raises nothing."""
    waiting = next((level for level, frame in enumerate(frames[:_NEAR]) if not _only_waits(frame)), len(frames))
    for frame in up_to_callback(frames[waiting : waiting + _AROUND]):
        loop = loop_names(runtime, frame)
        if loop:
            modules = {owner for owner, name in loop.pairs if name in _PAUSES}
            return frame if loop.attributes - _PAUSES or len(loop.variables - modules - _PAUSES) > 1 else None
    return None


def _only_waits(frame: PythonFrame) -> bool:
    call = frame.file.rpartition("/")[2], frame.function.rpartition(".")[2]
    return call in assumed_names.WAITING_FUNCTIONS


def _is_looked_at(each: PolledObject, loop: LoopNames, without: frozenset[str]) -> bool:
    """The loop calls a function for it, but none of ``without``: a method of the very object, where it has a name of
    its own."""
    wanted = each.polled_as.value - without
    if each.polled_as is PolledKind.FILE:
        return bool(wanted & loop.names) or each.path.endswith(_LOCK_FILES)
    methods = {attribute for before, attribute in loop.pairs if before == each.name}
    return bool(wanted & (loop.attributes if each.is_item else methods))


def _objects_in_reach(
    runtime: PythonRuntime, values: Mapping[str, PyRef], loop: LoopNames
) -> Iterator[PolledObject | None]:
    for name, value in values.items():
        if name not in loop.variables:
            continue
        found = describe(name, value)
        if found:
            yield found
            continue
        yield from _items(name, value)
        for attribute, inner in value.attributes(_ATTRIBUTES).items():
            if (name, attribute) in loop.pairs:
                yield describe(attribute, inner)
                yield from _items(attribute, inner)
    for text in loop.texts:
        yield describe("", PyRef(runtime, text))


def _items(name: str, container: PyRef) -> Iterator[PolledObject | None]:
    for item in container.parts():
        found = describe(name, item)
        yield found._replace(is_item=True) if found and found.polled_as is not PolledKind.FLAG else None


def describe(name: str, value: PyRef) -> PolledObject | None:
    """A description of the object, None for what nobody waits for."""
    kind_name = value.type
    if kind_name == "bool":
        return PolledObject(PolledKind.FLAG, name, value.address, value=bool(value.int()))
    path = _path(value, kind_name)
    if path:
        return PolledObject(PolledKind.FILE, name, value.address, path=path)
    own = value.attributes(_ATTRIBUTES)
    pid = process_id(own)
    if pid:
        return PolledObject(PolledKind.PROCESS, name, value.address, pid=pid)
    kind = next((kind for kind, wanted in assumed_names.OBJECT_KINDS if all(each in own for each in wanted)), None)
    if kind is Waitable.THREAD:
        ident = own[assumed_names.THREAD_IDENT].int()
        return PolledObject(PolledKind.THREAD, name, value.address, ident=ident) if ident is not None else None
    return PolledObject(PolledKind.OBJECT, name, value.address, kind=kind) if kind else None


def _path(value: PyRef, kind: str) -> str:
    """A str or pathlib.Path that may be a file's name, "" for anything else."""
    text = value.str(_PATH_LIMIT)
    if text:
        named = "/" in text[1:] or text.endswith(_FILE_ENDINGS)
        return text if named and "\n" not in text and "://" not in text and " " not in text else ""
    words: tuple[int, ...] = ()
    if kind in assumed_names.PATH_TYPES:
        words = value.read_or(_words_of, words)
    return max((PyRef(value.python, word).str(_PATH_LIMIT) for word in words), key=len, default="")


def _words_of(python: PySpace, address: int) -> tuple[int, ...]:
    return python.memory.words(address, min(python.objects.type_of(address).size // 8, _PATH_WORDS))


def process_id(own: PyVariables) -> int:
    """The pid of a subprocess.Popen or a multiprocessing process with these attributes, 0 for anything else."""
    popen = own[assumed_names.PROCESS_POPEN]
    if popen and assumed_names.PROCESS_PARENT in own:
        own = popen.attributes(_ATTRIBUTES)
    elif assumed_names.POPEN_ARGUMENTS not in own:
        return 0
    return own[assumed_names.POPEN_PID].int() or 0
