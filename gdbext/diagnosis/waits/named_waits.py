"""Names waits by the rows of named_table.py: the function that a thread is in, and the values of its variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gdbext.cpython.abi.assumed_names import is_of_program, package_of
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_detail import NamedDetail, Sleep
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits.named_table import NamedWait
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.diagnosis.report.thread_report import Frame
    from gdbext.diagnosis.waits.named_table import NativeText
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot

_INNER = 16
"""Innermost Python frames that are searched for a row's function, and native frames for a native one's."""


def with_name(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait as a function on the stack names it; unchanged without such a function, or if its owner is known."""
    if wait.owners or wait.being_released or wait.kind is WaitKind.GIL:
        return wait
    tags = ((level, tag) for tag, level in thread.inner_tags.items() if isinstance(tag, NamedWait))
    level, row = min(tags, key=lambda found: found[0], default=(_INNER, None))
    stack: Sequence[PythonFrame] = ()
    if not row or level >= _INNER:
        position, row = _row_among(thread.process, thread.python)
        stack = thread.process.python.stack(thread.tid)[position:] if row else ()
    if not row:
        return wait
    known = wait.detail
    children = known.children
    if row.by_children and not children:
        children = tuple(child for _, child in sorted(thread.process.procfs.children().items()))
    what = _awaited(thread, row, stack)
    named = NamedDetail(what, row.until, row.advice, known.collective, known.peer, children, known.seconds)
    return wait.with_detail(named)


def polling_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that runs, in a function that polls until what it waits for is there; None for others."""
    _, row = _row_among(thread.process, thread.python)
    if not row or not row.polls or thread.dispatch:
        return None
    return with_name(thread, Wait(Resource(WaitKind.SLEEP, 0, "polls"), timed=True, detail=Sleep(seconds=0.0)))


def task_phrase(thread: ThreadSnapshot, frames: Sequence[PythonFrame], is_alone: bool) -> str:
    """``waits for a connection of its pool, until one is given back``, of a task with these frames, innermost first, of
    an event loop that the thread runs; "" if none of its functions has a row. ``is_alone``: the loop has no other."""
    position, row = _row_among(thread.process, frames)
    return f"waits for {_awaited(thread, row, frames[position:], is_alone)}, until {row.until}" if row else ""


def _awaited(thread: ThreadSnapshot, row: NamedWait, frames: Sequence[PythonFrame], is_alone: bool = True) -> str:
    """What is waited for in the first of these frames, with the facts of the row and the text of a native object.
    ``is_alone``: only other threads may use it, too."""
    process, what = thread.process, row.what
    if row.native_text:
        text = _native_text(thread, row.native_text)
        return what.replace("{}", f" of {text}" if text else "")
    callers = (frame for frame in frames[:4] if not row.facts_of or frame.name in row.facts_of)
    source = next(callers, None)
    facts = _filled(row.facts, PyStack(process.python.runtime).locals(source)) if source and row.facts else ""
    others = (other for other in process.threads if other is not thread)
    if facts and row.unused and is_alone and not any(_uses(other, row.users) for other in others):
        facts += row.unused
    return what + facts


def _row_among(process: ProcessSnapshot, frames: Sequence[Frame | PythonFrame]) -> tuple[int, NamedWait | None]:
    """(position, row) of the innermost Python frame with a row. The frames inside it must be of the same package or of
    Python's own library: else a callback of the program is what waits."""
    named = process.named_waits
    packages: set[str] = set()
    for position, frame in enumerate(frames[:_INNER]):
        row = named.row_of(frame.file, frame.function)
        if row:
            own = package_of(frame.file).rpartition("/")[2]
            is_its_own_wait = packages <= {own, *row.through} and not (row.innermost and position)
            return (position, row) if is_its_own_wait else (0, None)
        if is_of_program(frame.file):
            packages.add(package_of(frame.file).rpartition("/")[2])
    return 0, None


def _uses(thread: ThreadSnapshot, folders: Sequence[str]) -> bool:
    return any(folder in frame.file for frame in thread.python for folder in folders)


_FIELD = re.compile(r"\{([\w.]+)(#?)\}")


def _filled(template: str, variables: Mapping[str, PyRef]) -> str:
    """The template with the values of its fields; "" if one cannot be read."""
    parts: list[str] = []
    end = 0
    for field in _FIELD.finditer(template):
        first, *names = field[1].split(".")
        value = variables[first]
        for name in names:
            value = value[name]
        text = _text_of(value, is_count=bool(field[2]))
        if not text:
            return ""
        parts += [template[end : field.start()], text]
        end = field.end()
    return "".join([*parts, template[end:]])


def _text_of(value: PyRef, is_count: bool) -> str:
    """A text, a number, or the number of elements; "" for anything else."""
    if is_count:
        elements = value.keys() if value.is_dict else value.elements()
        # A set's table keeps a dummy object in place of each removed element (Objects/setobject.c, _PySetDummy_Type).
        count = sum(not element.type.startswith("<dummy key>") for element in elements)
        return "" if not value or elements.fault else str(count)
    number = value.float()
    return value.str(200) or ("" if number is None else f"{number:g}")


_CALLERS = 3
"""Innermost Python frames whose variables are searched for the object of a native call."""
_OBJECT_WORDS = 16
_LARGEST = 1 << 14


def _native_text(thread: ThreadSnapshot, wanted: NativeText) -> str:
    """The texts of the objects that the innermost frames name, ``a`` or ``a, b``; "" if none is found. Of several, only
    those that the native frames mention count, unless the row is about several."""
    stack = thread.process.python.stack(thread.tid)
    for frame in stack[:_CALLERS]:
        objects: dict[int, str] = {}
        for value in _candidates(stack, frame):
            names = [name.rpartition(".")[2] for name, _ in value.of_class.bases]
            if wanted.class_name in names:
                objects.update(_texts_behind(thread.process, value, wanted))
        if objects and not wanted.has_several and len(objects) > 1:
            objects = {address: text for address, text in objects.items() if thread.has_pointer_to(address)}
            return next(iter(objects.values())) if len(objects) == 1 else ""
        if objects:
            return ", ".join([*dict.fromkeys(objects.values())][:4])
    return ""


def _candidates(stack: PyStack, frame: PythonFrame) -> Iterator[PyRef]:
    """The values of a frame's variables, and the attributes and items of ``self``."""
    variables = stack.variables(frame)
    yield from variables.values()
    for value in variables["self"].attributes().values():
        yield value
        for item in value.parts():
            yield from (item, *item.parts(2))


def _texts_behind(process: ProcessSnapshot, value: PyRef, wanted: NativeText) -> Iterator[tuple[int, str]]:
    """(native object, text): the texts in the native objects that the first words of a Python object point to. The
    first word of such an object points into the library; its size is that of glibc's chunk (malloc/malloc.c,
    mchunk_size)."""
    memory = process.memory
    pattern = re.compile(wanted.pattern.encode())
    try:
        for pointer in memory.words(value.body, _OBJECT_WORDS):
            if not pointer or pointer % 8 or not memory.try_read(pointer - 8, 16):
                continue
            size, table = (word & ~7 for word in memory.words(pointer - 8, 2))
            module = process.modules.find(table)
            if not 64 <= size <= _LARGEST or not module or not module.name.startswith(wanted.library):
                continue
            words = memory.words(pointer, size // 8 - 1)
            for text, length in zip(words, words[1:]):
                found = memory.try_read(text, length) if 4 < length <= 256 else b""
                if found and pattern.fullmatch(found):
                    yield pointer, found.decode("latin-1")
    except GdbextError:
        return
