"""Objects that a polling loop checks between sleeps, and how long it sleeps.

``while not os.path.exists(path): time.sleep(1)`` shows nothing but a sleep. What it polls is among the variables
of the frame that sleeps, and the names that its code uses tell which of them.

How long it sleeps is the argument of ``time.sleep``, which is still on the frame's value stack. Since 3.11 it sleeps
until an absolute time (pysleep, Modules/timemodule.c), so that the system call alone does not say how long without the
system's clock, which a core does not have.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import OBJECT_KINDS, WAITING_FUNCTIONS, Waitable, is_below_library, is_of_program
from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.cpython.threads.loop_names import loop_names, names_with_inner
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.loop_names import LoopNames
    from gdbext.cpython.threads.runtime import PythonRuntime


def asked_to_sleep(stack: PyStack, frame: PythonFrame) -> float | None:
    """Seconds in all; None unless the argument of just one call of ``time.sleep`` is on the stack."""
    slots = stack.slots(frame)
    calls = [index for index, slot in enumerate(slots[:-1]) if _is_builtin(slot, "sleep")]
    return slots[calls[0] + 1].float() if len(calls) == 1 else None


def _is_builtin(value: PyRef, name: str) -> bool:
    function = value.function
    return bool(function and (function.kind, function.qualname) == ("builtin", name))


_NEAR = 24  # innermost Python frames in which a debugger's are looked for
_DEBUGGERS = {"pdb.py": "pdb", "debugger.py": "IPython's pdb"}
_DEBUGGER_FILES = frozenset({*_DEBUGGERS, "bdb.py", "cmd.py"})
_LONGEST_QUESTION = 300


class Question(NamedTuple):
    """Something that a program asks a person who should type."""

    by: str  # the function or debugger that asks: ``input()``, ``getpass()``, ``pdb``
    frame: PythonFrame  # the function that has called it, or where the debugger has stopped the program
    words: str = ""
    is_debugger: bool = False


def asked_question(stack: PyStack) -> Question | None:
    """The question that the innermost frames ask, None if they ask none.

    A debugger is known by the frames of its own files (Lib/pdb.py, Lib/bdb.py, Lib/cmd.py), below which there may be
    functions of Python's own library that read a line; ``getpass`` by its file and its variable ``prompt``; the
    built-in ``input`` by the call that is still on the value stack of its caller.
    """
    files = [frame.file.rpartition("/")[2] for frame in stack[:_NEAR]]
    debugger = next((level for level, file in enumerate(files) if file in _DEBUGGERS), None)
    if debugger is not None and all(
        file in _DEBUGGER_FILES or is_below_library(stack[level].file) for level, file in enumerate(files[:debugger])
    ):
        outer = next((level for level in range(debugger, len(files)) if files[level] not in _DEBUGGER_FILES), None)
        return Question(_DEBUGGERS[files[debugger]], stack[outer], is_debugger=True) if outer is not None else None
    if files[:1] == ["getpass.py"]:
        outer = next((level for level, file in enumerate(files) if file != "getpass.py"), len(files) - 1)
        return Question("getpass()", stack[outer], stack.locals(stack[0])["prompt"].str(_LONGEST_QUESTION))
    slots = stack.slots(stack[0]) if stack else []
    calls = [index for index, slot in enumerate(slots) if _is_builtin(slot, "input")]
    if len(calls) != 1:
        return None
    prompt = slots[calls[0] + 1 : calls[0] + 2]
    return Question("input()", stack[0], prompt[0].str(_LONGEST_QUESTION) if prompt else "")


_PATH_LIMIT = 4096


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOCK_FILES = (".lock", "/lock")
"""Endings of the names of lock files: those of filelock, of the caches of Hugging Face, Triton and torch's
extensions."""
_FILE_ENDINGS = (*_LOCK_FILES, *_words(".lck .pid .done .flag .ready .pt .pth .ckpt .json .txt .bin"))
"""Endings of names without a folder that are taken for a file's."""
_PATH_WORDS = 16  # words of a pathlib.Path that are read: it has slots, one of them the whole path


class PolledKind(Enum):
    """The kind of object that is polled; the value is the names of functions and attributes by which code does so."""

    FILE = _words(
        "exists isfile isdir lexists is_file is_dir stat access listdir scandir glob iterdir getsize open unlink"
    )
    PROCESS = _words("poll wait waitpid returncode is_alive exitcode join _try_wait")
    THREAD = _words("is_alive join")
    OBJECT = _words("is_set wait get get_nowait put_nowait empty qsize full done running locked ready successful")
    FLAG = frozenset[str]()  # a bool: code that polls it calls nothing


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
    is_item: bool = False  # it is in a container of that name


def polled_objects(runtime: PythonRuntime, frame: PythonFrame) -> list[PolledObject]:
    """The objects that the loop of the frame polls, by what it loads, and what the functions load that it calls; lock
    files, which it may poll by any function; flags only if there is nothing else. Empty if the frame is in no loop, or
    its code cannot be followed."""
    loop, stack = loop_names(runtime, frame), PyStack(runtime)
    if not loop:
        return []
    values = stack.variables(frame)  # what the frame's own code names
    values.update(_values_in(stack.globals(frame), loop.variables - values.keys()))
    polled: dict[tuple[PolledKind, object], PolledObject] = {}
    flags: dict[int, PolledObject] = {}
    accepts, may_poll = is_of_program if is_below_library(frame.file) else _is_own, not _GIVE_UP.isdisjoint(loop.names)
    for index, (names, variables) in enumerate(_polling_code(runtime, loop, values, accepts)):
        without = frozenset[str]() if may_poll and not index else _BLOCKING
        texts = () if index else names.texts
        for each in filter(None, _objects_in_reach(runtime, variables, names, texts)):
            if each.polled_as is PolledKind.FLAG:
                flags.setdefault(each.address, each)
            elif _is_polled(each, names, without):
                polled.setdefault((each.polled_as, each.path or each.pid or each.address), each)
    return [*polled.values()] or ([*flags.values()] if not is_below_library(frame.file) else [])


_BLOCKING = frozenset({"join", "wait", "waitpid", "get"})
"""Methods that rather wait for something than poll it, but in a loop that expects them to give up."""
_GIVE_UP = frozenset({"Empty", "TimeoutExpired", "TimeoutError"})
_CALLS = 2  # functions that call one another, from the loop on, that are followed


def _is_own(file: str) -> bool:
    """The file belongs to the program itself: a package that its loop calls polls much that is not waited for."""
    return bool(file) and not is_below_library(file)


def _polling_code(
    runtime: PythonRuntime,
    names: LoopNames,
    values: Mapping[str, PyRef],
    accepts: Callable[[str], bool],
    depth: int = _CALLS,
) -> Iterator[tuple[LoopNames, Mapping[str, PyRef]]]:
    """(names that code loads, values of its variables): the loop, then functions in accepted files that it calls."""
    yield names, values
    for name, value in values.items() if depth else ():
        target = describe(name, value) if name in names.variables else None
        if name not in names.variables or (target and target.polled_as is not PolledKind.FLAG):
            continue
        methods = [method for owner, method in names.pairs if owner == name]
        for function, is_method in _functions(value, methods):
            inner = names_with_inner(runtime, function.code) if accepts(function.file or "") else None
            if not inner:
                continue
            source = PyRef(runtime, function.address)
            variables = {**_values_in(source["__globals__"], inner.variables), **source.closure_variables()}
            try:
                if is_method:
                    variables[runtime.codes.get(function.code).local_names()[0]] = value
            except (GdbextError, IndexError):
                variables = {}
            yield from _polling_code(runtime, inner, variables, accepts, depth - 1)


def _functions(value: PyRef, methods: Sequence[str]) -> Iterator[tuple[PythonFunction, bool]]:
    """(the Python function that a value is, False), or (each of its methods of these names, True)."""
    is_function = value.type == "function"
    inherited = (value.inherited(method) for method in methods) if value.has_own_class else ()
    for each in (value,) if is_function else inherited:
        function = each.function if each.type == "function" else None
        if function and function.code:
            yield function, not is_function


def _values_in(namespace: PyRef, names: Collection[str]) -> dict[str, PyRef]:
    return {name: value for name in names if (value := namespace[name])}


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
_AROUND = 3  # frames in which the loop around a wait is looked for


def waiting_loop(runtime: PythonRuntime, frames: Sequence[PythonFrame]) -> PythonFrame | None:
    """The innermost frame whose loop repeats the wait that the innermost frames are in; None if none is known, or the
    loop does nothing but sleep. Raises nothing."""
    levels = enumerate(frames[:_NEAR])
    waiting = next((level for level, frame in levels if frame.call not in WAITING_FUNCTIONS), len(frames))
    for frame in up_to_callback(frames[waiting : waiting + _AROUND]):
        loop = loop_names(runtime, frame)
        if loop:
            modules = {owner for owner, name in loop.pairs if name in _PAUSES}
            return frame if loop.attributes - _PAUSES or len(loop.variables - modules - _PAUSES) > 1 else None
    return None


def _is_polled(each: PolledObject, loop: LoopNames, without: frozenset[str]) -> bool:
    """The loop calls a function for it, but none of ``without``: a method of the very object, if that has a name."""
    wanted = each.polled_as.value - without
    if each.polled_as is PolledKind.FILE:
        return bool(wanted & loop.names) or each.path.endswith(_LOCK_FILES)
    methods = {attribute for owner, attribute in loop.pairs if owner == each.name}
    return bool(wanted & (loop.attributes if each.is_item else methods))


def _objects_in_reach(
    runtime: PythonRuntime, values: Mapping[str, PyRef], loop: LoopNames, texts: Collection[int]
) -> Iterator[PolledObject | None]:
    """The variables that the loop loads, their items and attributes, and the ``texts`` (addresses) in its code."""
    for name, value in values.items():
        if name not in loop.variables:
            continue
        description = describe(name, value)
        if description:
            yield description
            continue
        yield from _items(name, value)
        for attribute, inner in value.attributes().items():
            if (name, attribute) in loop.pairs:
                yield describe(attribute, inner)
                yield from _items(attribute, inner)
    for address in texts:
        yield describe("", PyRef(runtime, address))


def _items(name: str, container: PyRef) -> Iterator[PolledObject]:
    for item in container.parts():
        description = describe(name, item)
        if description and description.polled_as is not PolledKind.FLAG:
            yield description._replace(is_item=True)


def describe(name: str, value: PyRef) -> PolledObject | None:
    """A description of the object, None for one that no loop waits for."""
    kind_name = value.type
    if kind_name == "bool":
        return PolledObject(PolledKind.FLAG, name, value.address, value=bool(value.int()))
    path = _path(value, kind_name)
    if path:
        return PolledObject(PolledKind.FILE, name, value.address, path=path)
    own = value.attributes()
    pid = process_id(own)
    if pid:
        return PolledObject(PolledKind.PROCESS, name, value.address, pid=pid)
    kind = next((kind for kind, wanted in OBJECT_KINDS if all(each in own for each in wanted)), None)
    if kind is Waitable.THREAD:
        ident = own[assumed_names.THREAD_IDENT].int()
        return PolledObject(PolledKind.THREAD, name, value.address, ident=ident) if ident is not None else None
    return PolledObject(PolledKind.OBJECT, name, value.address, kind=kind) if kind else None


def _path(value: PyRef, kind: str) -> str:
    """A str or pathlib.Path that may be a file's name, "" for anything else; ``kind`` is the name of its class."""
    text = value.str(_PATH_LIMIT)
    if text:
        has_form = "/" in text[1:] or text.endswith(_FILE_ENDINGS)
        return text if has_form and "\n" not in text and "://" not in text and " " not in text else ""
    if kind not in assumed_names.PATH_TYPES:
        return ""
    nothing: tuple[int, ...] = ()
    words = value.read_or(
        lambda python, at: python.memory.words(at, min(python.objects.type_of(at).size // 8, _PATH_WORDS)), nothing
    )
    return max((PyRef(value.python, word).str(_PATH_LIMIT) for word in words), key=len, default="")


def process_id(own: PyVariables) -> int:
    """The pid of a subprocess.Popen or a multiprocessing process with these attributes, 0 for anything else."""
    popen = own[assumed_names.PROCESS_POPEN]
    if popen and assumed_names.PROCESS_PARENT in own:
        own = popen.attributes()
    elif assumed_names.POPEN_ARGUMENTS not in own:
        return 0
    return own[assumed_names.POPEN_PID].int() or 0
