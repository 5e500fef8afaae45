"""Objects that a polling loop (``while not os.path.exists(path): time.sleep(1)``) checks between sleeps, how long it
sleeps, and what a program asks a person: by the variables of the frame, and the names that its code uses.
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

    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.loop_names import LoopNames
    from gdbext.cpython.threads.runtime import PythonRuntime


def asked_to_sleep(stack: PyStack, frame: PythonFrame) -> float | None:
    """The seconds that the frame passed to ``time.sleep``; None unless its value stack has just one such call. (Since
    3.11 the system call has an absolute time, and a core has no clock: pysleep, Modules/timemodule.c.)"""
    slots = stack.slots(frame)
    calls = [index for index, slot in enumerate(slots[:-1]) if _is_builtin(slot, "sleep")]
    return slots[calls[0] + 1].float() if len(calls) == 1 else None


def _is_builtin(value: PyRef, name: str) -> bool:
    """True for the built-in function of that name."""
    function = value.function
    return bool(function and (function.kind, function.qualname) == ("builtin", name))


_NEAR = 24  # innermost Python frames that are searched for a debugger or a loop
_DEBUGGERS = {"pdb.py": "pdb", "debugger.py": "IPython's pdb"}
_DEBUGGER_FILES = frozenset({*_DEBUGGERS, "bdb.py", "cmd.py"})
_LONGEST_QUESTION = 300


class Question(NamedTuple):
    """A prompt at which a program waits for typed input, with the text ``words``. ``by``: the function or debugger that
    asks, ``input()``, ``getpass()`` or ``pdb``; ``frame``: its caller, or the one that the debugger has stopped."""

    by: str
    frame: PythonFrame
    words: str = ""
    is_debugger: bool = False


def asked_question(stack: PyStack) -> Question | None:
    """The prompt at which the innermost frames wait, None if there is none: ``input`` is recognized by the call that is
    still on the value stack of its caller, ``getpass`` and debuggers by the files of their frames."""
    files = [frame.file.rpartition("/")[2] for frame in stack[:_NEAR]]
    debugger = next((level for level, file in enumerate(files) if file in _DEBUGGERS), None)
    # frames inside the debugger's may be functions of Python's own library that read a line
    inner = [frame for frame, file in zip(stack[:debugger], files) if file not in _DEBUGGER_FILES]
    if debugger is not None and all(is_below_library(frame.file) for frame in inner):
        stopped = next((level for level in range(debugger, len(files)) if files[level] not in _DEBUGGER_FILES), None)
        return Question(_DEBUGGERS[files[debugger]], stack[stopped], is_debugger=True) if stopped is not None else None
    if files[:1] == ["getpass.py"]:
        caller = next((level for level, file in enumerate(files) if file != "getpass.py"), len(files) - 1)
        return Question("getpass()", stack[caller], stack.locals(stack[0])["prompt"].str(_LONGEST_QUESTION))
    slots = stack.slots(stack[0]) if stack else []
    calls = [index for index, slot in enumerate(slots) if _is_builtin(slot, "input")]
    if len(calls) != 1:
        return None
    prompt = slots[calls[0] + 1 : calls[0] + 2]
    return Question("input()", stack[0], prompt[0].str(_LONGEST_QUESTION) if prompt else "")


_PATH_LIMIT = 4096


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOCK_FILES = (".lock", "/lock")  # endings of filelock, of the caches of Hugging Face, Triton and torch's extensions
_FILE_ENDINGS = (*_LOCK_FILES, *_words(".lck .pid .done .flag .ready .pt .pth .ckpt .json .txt .bin"))
"""Endings by which a name without a folder counts as a file's."""


class PolledKind(Enum):
    """The kind of object that is polled; the value: the functions and attributes by which code polls it."""

    FILE = _words("exists isfile isdir lexists is_file is_dir stat access listdir scandir glob iterdir getsize open")
    PROCESS = _words("poll wait waitpid returncode is_alive exitcode join _try_wait")
    THREAD = _words("is_alive join")
    OBJECT = _words("is_set wait get get_nowait put_nowait empty qsize full done running locked ready successful")
    FLAG = frozenset[str]()  # a bool: code that polls it calls nothing


class PolledObject(NamedTuple):
    """An object that a loop polls. ``name``: of the variable or attribute; ``path`` is set for a FILE, ``pid`` for a
    PROCESS, ``ident`` (threading.get_ident) for a THREAD, ``kind`` for an OBJECT, ``value`` for a FLAG."""

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
    """The objects that the loop around the frame's instruction polls, by the names that the loop and the functions that
    it calls load; lock files by any function; flags only if there is nothing else. Empty outside a loop, and if the
    code cannot be followed."""
    loop, stack = loop_names(runtime, frame), PyStack(runtime)
    if not loop:
        return []
    values = stack.variables(frame)  # those that the frame's own code names
    values.update(_values_in(stack.globals(frame), loop.variables - values.keys()))
    polled: dict[tuple[PolledKind, object], PolledObject] = {}
    flags: dict[int, PolledObject] = {}
    is_library = is_below_library(frame.file)
    accepts = is_of_program if is_library else _is_programs_own
    expects_timeout = not _TIMEOUT_ERRORS.isdisjoint(loop.names)
    for names, variables in _polling_code(runtime, loop, values, accepts):
        is_loop = names is loop  # else a function that it calls
        ignored = frozenset[str]() if expects_timeout and is_loop else _BLOCKING
        for item in _reachable_objects(runtime, variables, names, names.texts if is_loop else ()):
            if item.polled_as is PolledKind.FLAG:
                flags.setdefault(item.address, item)
            elif _is_polled(item, names, ignored):
                polled.setdefault((item.polled_as, item.path or item.pid or item.address), item)
    return [*polled.values()] or ([] if is_library else [*flags.values()])


_BLOCKING = frozenset({"join", "wait", "waitpid", "get"})
"""Methods that wait rather than poll, except in a loop that catches their timeout errors."""
_TIMEOUT_ERRORS = frozenset({"Empty", "TimeoutExpired", "TimeoutError"})


def _is_programs_own(file: str) -> bool:
    """True for a file of the program itself: an installed package polls much that the program does not wait for."""
    return bool(file) and not is_below_library(file)


def _polling_code(
    runtime: PythonRuntime,
    names: LoopNames,
    values: Mapping[str, PyRef],
    accepts: Callable[[str], bool],
    depth: int = 2,
) -> Iterator[tuple[LoopNames, Mapping[str, PyRef]]]:
    """(names that code loads, values of its variables): of the loop (``names`` itself), then of the functions that it
    calls, up to ``depth`` calls deep, in files for which ``accepts`` is true."""
    yield names, values
    for name, value in values.items() if depth else ():
        target = describe(name, value) if name in names.variables else None
        if name not in names.variables or (target and target.polled_as is not PolledKind.FLAG):
            continue
        is_method = value.type != "function"
        methods = [method for owner, method in names.pairs if owner == name] if value.has_own_class else []
        for callee in map(value.inherited, methods) if is_method else (value,):
            function = callee.function if callee.type == "function" else None
            if not function or not function.code or not accepts(function.file or ""):
                continue
            inner = names_with_inner(runtime, function.code)
            if not inner:
                continue
            source = PyRef(runtime, function.address)
            variables = {**_values_in(source["__globals__"], inner.variables), **source.closure_variables()}
            try:
                if is_method:  # its first parameter is the object
                    variables[runtime.codes.get(function.code).local_names()[0]] = value
            except (GdbextError, IndexError):
                variables = {}
            yield from _polling_code(runtime, inner, variables, accepts, depth - 1)


def _values_in(namespace: PyRef, names: Collection[str]) -> dict[str, PyRef]:
    return {name: value for name in names if (value := namespace[name])}


def up_to_callback(frames: Sequence[PythonFrame]) -> Iterator[PythonFrame]:
    """The innermost frames up to a callback of the program: the library code that called it, such as the loop of a
    server, polls nothing that the callback waits for."""
    is_in_program = False
    for frame in frames:
        is_own = _is_programs_own(frame.file)
        if is_in_program and not is_own:
            return
        is_in_program = is_in_program or is_own
        yield frame


def waiting_loop(runtime: PythonRuntime, frames: Sequence[PythonFrame]) -> PythonFrame | None:
    """The frame whose loop repeats the wait of the innermost frames; None if there is none, or the loop only sleeps.
    Raises nothing."""
    levels = enumerate(frames[:_NEAR])
    caller = next((level for level, frame in levels if frame.call not in WAITING_FUNCTIONS), len(frames))
    for frame in up_to_callback(frames[caller : caller + 3]):
        loop = loop_names(runtime, frame)
        if loop:
            modules = {owner for owner, name in loop.pairs if name == "sleep"}
            return frame if loop.attributes - {"sleep"} or len(loop.variables - modules - {"sleep"}) > 1 else None
    return None


def is_yielding_loop(runtime: PythonRuntime, stack: PyStack) -> bool:
    """True if the loop around the innermost frame's instruction calls sched_yield, or that frame does and its caller is
    in a loop. Raises nothing."""
    frames = stack[:2]
    if not frames:
        return False
    own = loop_names(runtime, frames[0])
    if own:
        return _YIELD in own.names
    return len(frames) == 2 and _YIELD in stack.used_names(frames[0]) and bool(loop_names(runtime, frames[1]))


_YIELD = "sched_yield"


def _is_polled(item: PolledObject, loop: LoopNames, ignored: frozenset[str]) -> bool:
    """True if the loop calls a function that polls such an object and is not ``ignored``: for a file a function that it
    is the first argument of (a lock file may be passed to any), for an item of a container any function or method,
    otherwise a method of the variable."""
    wanted = item.polled_as.value - ignored
    methods = {attribute for owner, attribute in loop.pairs if owner == item.name}
    if item.polled_as is PolledKind.FILE:
        if item.is_item:
            return bool(wanted & loop.names)
        methods |= {function for function, name in loop.arguments if name == item.name}
        methods |= {function for function, address in loop.texts if address == item.address}
        return bool(wanted & methods) or item.path.endswith(_LOCK_FILES)
    return bool(wanted & (loop.attributes if item.is_item else methods))


def _reachable_objects(
    runtime: PythonRuntime, values: Mapping[str, PyRef], loop: LoopNames, texts: Collection[tuple[str, int]]
) -> Iterator[PolledObject]:
    """The variables that the loop loads, their items and attributes, and the ``texts`` (function, address) in its code,
    without objects of which no loop waits for."""
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
                yield from filter(None, (describe(attribute, inner),))
                yield from _items(attribute, inner)
    yield from filter(None, (describe("", PyRef(runtime, address)) for _, address in texts))


def _items(name: str, container: PyRef) -> Iterator[PolledObject]:
    """The items of a container, called ``name``, that a loop may poll."""
    for item in container.parts():
        description = describe(name, item)
        if description and description.polled_as is not PolledKind.FLAG:
            yield description._replace(is_item=True)


def describe(name: str, value: PyRef) -> PolledObject | None:
    """The description of an object called ``name``; None for a kind that no loop waits for."""
    if value.type == "bool":
        return PolledObject(PolledKind.FLAG, name, value.address, value=bool(value.int()))
    path = _path(value)
    if path:
        return PolledObject(PolledKind.FILE, name, value.address, path=path)
    own = value.attributes()
    pid = process_id(own)
    if pid:
        return PolledObject(PolledKind.PROCESS, name, value.address, pid=pid)
    kind = next((kind for kind, wanted in OBJECT_KINDS if own.keys() >= set(wanted)), None)
    if kind is Waitable.THREAD:
        ident = own[assumed_names.THREAD_IDENT].int()
        return PolledObject(PolledKind.THREAD, name, value.address, ident=ident) if ident is not None else None
    return PolledObject(PolledKind.OBJECT, name, value.address, kind=kind) if kind else None


def _path(value: PyRef) -> str:
    """The text of a str or pathlib.Path that may be a file's name; "" for anything else."""
    text = value.str(_PATH_LIMIT)
    if text:
        has_form = "/" in text[1:] or text.endswith(_FILE_ENDINGS)
        return text if has_form and "\n" not in text and "://" not in text and " " not in text else ""
    if value.type not in assumed_names.PATH_TYPES:
        return ""
    texts = [part.str(_PATH_LIMIT) for part in value.attributes().values()]
    return max(texts, key=len, default="")  # the longest one in its slots is the whole path


def process_id(own: PyVariables) -> int:
    """The pid of the subprocess.Popen or multiprocessing process that has these attributes; 0 for anything else."""
    popen = own[assumed_names.PROCESS_POPEN]
    if popen and assumed_names.PROCESS_PARENT in own:
        own = popen.attributes()
    elif assumed_names.POPEN_ARGUMENTS not in own:
        return 0
    return own[assumed_names.POPEN_PID].int() or 0
