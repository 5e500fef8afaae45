"""What a Python frame has at hand that a loop may look at again and again: files, processes, threads, queues, flags.

``while not os.path.exists(path): time.sleep(1)`` shows nothing but a sleep. What it looks for is among the variables
of the frame that sleeps, and the names that its code uses tell which of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from gdbext.cpython.abi import stdlib
from gdbext.cpython.abi.waitable import Waitable
from gdbext.cpython.objects.objects import FLAG_UNICODE
from gdbext.cpython.threads.namespaces import attributes, items, used_names, variables
from gdbext.errors import GdbextError
from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime

_PATH_LIMIT = 4096
_LOCK_FILES = (".lock", "/lock")
"""How the names of lock files end: those of filelock, of the caches of Hugging Face, Triton and torch's extensions."""
_FILE_ENDINGS = (
    *_LOCK_FILES, ".lck", ".pid", ".done", ".flag", ".ready", ".pt", ".pth", ".ckpt", ".json", ".txt", ".bin",
)  # fmt: skip
"""How names without a folder end that are taken for a file's."""
_PATH_WORDS = 16
"""Words of a pathlib.Path that are read: it has slots, one of them the whole path."""


class Look(Enum):
    """What is looked at; the value is the names of functions and attributes by which code does so."""

    FILE = frozenset({
        "exists", "isfile", "isdir", "lexists", "is_file", "is_dir", "stat", "access", "listdir", "scandir", "glob",
        "iterdir", "getsize", "open", "unlink",
    })  # fmt: skip
    PROCESS = frozenset({"poll", "wait", "waitpid", "returncode", "is_alive", "exitcode", "join", "_try_wait"})
    THREAD = frozenset({"is_alive", "join"})
    OBJECT = frozenset({
        "is_set", "wait", "get", "get_nowait", "put_nowait", "empty", "qsize", "full", "done", "running", "locked",
    })  # fmt: skip
    FLAG = frozenset[str]()
    """A bool: code that looks at it calls nothing."""


class AtHand(Record):
    """One object. ``name`` is the variable's or attribute's; ``path`` is set for a FILE, ``pid`` for a PROCESS,
    ``ident`` (threading.get_ident) for a THREAD, ``kind`` for an OBJECT, ``value`` for a FLAG."""

    look: Look
    name: str
    address: int
    path: str = ""
    pid: int = 0
    ident: int = 0
    kind: Waitable | None = None
    value: bool = False


def looked_at(runtime: PythonRuntime, frame: PythonFrame) -> list[AtHand]:
    """What the frame's code looks at, by the names that it uses, and lock files, which it may look at by any function;
    flags only where there is nothing else."""
    names = used_names(runtime, frame)
    found: dict[tuple[Look, object], AtHand] = {}
    for each in _at_hand(runtime, frame, names):
        if each is not None:
            found.setdefault((each.look, each.path or each.pid or each.address), each)
    wanted = [each for each in found.values() if each.look.value & names or each.path.endswith(_LOCK_FILES)]
    flags = [each for each in found.values() if each.look is Look.FLAG]
    return wanted or (flags if "/lib/python" not in frame.file else [])


def sleeps(runtime: PythonRuntime, frame: PythonFrame) -> bool:
    """The frame's own code calls ``sleep``."""
    return "sleep" in used_names(runtime, frame)


def _at_hand(runtime: PythonRuntime, frame: PythonFrame, names: frozenset[str]) -> Iterator[AtHand | None]:
    for name, value in variables(runtime, frame).items():
        found = describe(runtime, name, value)
        if found is not None:
            yield found
            continue
        yield from (describe(runtime, name, item) for item in items(runtime, value))
        for attribute, inner in attributes(runtime, value).items():
            if attribute in names:
                yield describe(runtime, attribute, inner)
                yield from (describe(runtime, attribute, item) for item in items(runtime, inner))


def describe(runtime: PythonRuntime, name: str, address: int) -> AtHand | None:
    """What the object is, None for what nobody waits for. Raises nothing."""
    try:
        info = runtime.objects.type_of(address)
        if info.name == "bool":
            return AtHand(Look.FLAG, name, address, value=bool(runtime.objects.integer(address)))
        path = _path(runtime, address, info.name, info.flags, info.size)
        if path:
            return AtHand(Look.FILE, name, address, path=path)
        own = attributes(runtime, address)
        pid = process_id(runtime, own)
        if pid:
            return AtHand(Look.PROCESS, name, address, pid=pid)
        kind = next((kind for kind, wanted in stdlib.OBJECT_KINDS if all(each in own for each in wanted)), None)
        if kind is Waitable.THREAD:
            return AtHand(Look.THREAD, name, address, ident=runtime.objects.integer(own[stdlib.THREAD_IDENT]))
        return AtHand(Look.OBJECT, name, address, kind=kind) if kind is not None else None
    except GdbextError:
        return None


def _path(runtime: PythonRuntime, address: int, type_name: str, flags: int, size: int) -> str:
    """A str or pathlib.Path that may be a file's name, "" for anything else."""
    if flags & FLAG_UNICODE:
        text = runtime.objects.text(address, _PATH_LIMIT)
        named = "/" in text[1:] or text.endswith(_FILE_ENDINGS)
        return text if named and "\n" not in text and "://" not in text and " " not in text else ""
    if type_name not in stdlib.PATH_TYPES:
        return ""
    texts = []
    for word in runtime.memory.words(address, min(size // 8, _PATH_WORDS)):
        try:
            texts.append(runtime.objects.text(word, _PATH_LIMIT) if word else "")
        except GdbextError:
            continue
    return max(texts, key=len, default="")


def process_id(runtime: PythonRuntime, own: Mapping[str, int]) -> int:
    """The pid of a subprocess.Popen or a multiprocessing process with these attributes, 0 for anything else."""
    popen = own.get(stdlib.PROCESS_POPEN)
    if popen is not None and stdlib.PROCESS_PARENT in own:
        own = attributes(runtime, popen)
    elif stdlib.POPEN_ARGUMENTS not in own:
        return 0
    pid = own.get(stdlib.POPEN_PID)
    try:
        return runtime.objects.integer(pid) if pid else 0
    except GdbextError:
        return 0
