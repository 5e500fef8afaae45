"""The variables of Python frames as short texts: numbers, cut strings, lengths, keys, tensors, locks held or free.

All of it is read from memory; no repr() runs. A variable is shown as it is now: a function may have assigned to an
argument since it was called.

A Python kernel of an operator takes its arguments from a list that the boxed call gives up, so that they are on no
native stack any more. They are variables of the kernel's own frame, which is known by its code object's file, name and
first line. PythonKernelHolder (torch/csrc/utils/python_dispatch.cpp) gives them by position, and those that the schema
has for keywords alone by name; a leading one may be the key set (with_keyset=True), which its type tells. Where the
names of parameters are the schema's in another order, nothing tells which is which.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING

from gdbext.cpython.abi.assumed_names import EVENT_FLAG, Waitable
from gdbext.cpython.objects import base_classes
from gdbext.cpython.objects.py_ref import PyRef, integer, size_of_deque
from gdbext.cpython.sync.locks import read_lock
from gdbext.cpython.threads.object_text import describe
from gdbext.cpython.threads.py_stack import PyStack
from gdbext.diagnosis.report.thread_report import Frame, LocalVariable, ThreadReport
from gdbext.diagnosis.threads.thread_reporting import tensor_text
from gdbext.engine.targets.system.linux import HIDDEN, is_secret
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import NOT_RECORDED, GdbextError, MemoryFault
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.torch_symbol import TENSOR_CLASS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gdbext.cpython.objects.code import Code
    from gdbext.cpython.objects.py_ref import PyVariables
    from gdbext.cpython.objects.py_space import PySpace
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.torch.stack import Argument, DispatchFrame

_WIDTH = 60
"""Most characters of a value."""
_MOST, _MOST_OF_VERDICT = 64, 12
"""Variables of one frame that are read, where they are asked for and where nobody asked."""
_FRAMES = 16
"""Innermost frames of a thread whose variables are read."""
_MODULE = "<module>"
_NOT_VALUES = ("module", "function", "builtin_function_or_method", "type", "method", "_Feature")
"""Types of what a module's own code uses by name and did not compute."""
_BASES = 16
_WORDS = 2
"""Words behind a tensor object's header among which its at::Tensor is (THPVariable::cdata, a MaybeOwned in some
versions: torch/csrc/autograd/python_variable.h)."""
_KEYSET_CLASS = "DispatchKeySet"
_HELD = {True: "held", False: "free"}


class FrameLocals:
    """Reads the variables of one session's Python frames."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stack = PyStack(session.python)
        self._tensor_types: dict[PyRef, bool] = {}

    def shown(self, thread: ThreadReport, every: bool = False) -> ThreadReport:
        """The report with the variables of the innermost frame of the user's, or of ``every`` one of them; of a thread
        that is in libraries alone, those of its innermost frame. What a recording lacks is said where they were asked
        for."""
        wanted = [number for number, frame in enumerate(thread.python_frames) if frame.is_users] or [0]
        chosen = set(wanted[: _FRAMES if every else 1])
        found = self._sources(thread.tid, thread.python_frames[: max(chosen) + 1])
        most = _MOST if every else _MOST_OF_VERDICT
        read = {
            number: self._with_variables(thread.python_frames[number], found[number], most)
            for number in chosen & found.keys()
        }
        if not read:
            return thread
        if not every:
            read = {number: frame for number, frame in read.items() if frame.hidden_variables != NOT_RECORDED}
        instead = {id(thread.python_frames[number]): frame for number, frame in read.items()}
        python = tuple(instead.get(id(frame), frame) for frame in thread.python_frames)
        frames = tuple(instead.get(id(frame), frame) for frame in thread.frames)
        return thread._replace(python_frames=python, frames=frames)

    def _sources(self, tid: int, shown: Sequence[Frame]) -> Mapping[int, PythonFrame]:
        """Position in ``shown`` → the interpreter's frame of it."""
        table = self._session.python_threads
        states = table.states.get(tid)
        frames = [frame for group in table.runtime.frames.groups(states) for frame in group] if states else []
        found: dict[int, PythonFrame] = {}
        position = 0
        for number, frame in enumerate(shown):
            same = next((at for at in range(position, len(frames)) if _is_same(frame, frames[at])), None)
            if same is not None:
                found[number], position = frames[same], same + 1
        return found

    def placed(self, thread: ThreadSnapshot) -> list[tuple[Frame, PythonFrame]]:
        """The Python frames of a thread, each with the interpreter's."""
        found = self._sources(thread.tid, thread.python)
        return [(frame, found[number]) for number, frame in enumerate(thread.python) if number in found]

    def _with_variables(self, frame: Frame, source: PythonFrame, most: int) -> Frame:
        variables, hidden = self._readable(frame, source, most)
        return frame._replace(variables=variables, hidden_variables=hidden)

    def _readable(self, frame: Frame, source: PythonFrame, most: int) -> tuple[tuple[LocalVariable, ...], str]:
        """The variables, and what is to be said of those that are not among them."""
        try:
            named = self._named(frame, source)
            found = tuple(LocalVariable(name, value.type, self._shown(name, value)) for name, value in named[:most])
        except MemoryFault as fault:
            return frame.variables, fault.reason if fault.reason == NOT_RECORDED else fault.what
        except GdbextError as error:
            return frame.variables, error.what
        unrecorded = f"<{NOT_RECORDED}>"
        if found and all(each.text == unrecorded for each in found):
            return frame.variables, NOT_RECORDED
        return found, f"{len(named) - most} more (dispatch-bt --locals)" if len(named) > most else ""

    def _named(self, frame: Frame, source: PythonFrame) -> list[tuple[str, PyRef]]:
        """The variables by name. Raises GdbextError where the frame itself cannot be read."""
        if frame.function != _MODULE:
            found = self._stack.locals(source).checked()
            return [(name, value) for name, value in found.items() if name[:1] != "."]  # a comprehension's iterator
        used = sorted(self._stack.used_globals(source).items())
        return [(name, value) for name, value in used if name[:2] != "__" and value.type not in _NOT_VALUES]

    def _shown(self, name: str, value: PyRef) -> str:
        return HIDDEN if is_secret(name) else self.text(value)

    def text(self, value: PyRef) -> str:
        """The short text of an object. Raises nothing."""
        return describe(value, _WIDTH, self._special)

    # --- what object_text does not know -----------------------------------------------------------

    def _special(self, value: PyRef) -> str:
        if self._session.has_torch and self._is_tensor(value):
            return self._tensor(value)
        lock = read_lock(self._session.python, value.address)
        if lock and lock.kind is not Waitable.SIMPLE_QUEUE:
            owner = f" by thread {lock.owner_tid}" if lock.locked and lock.owner_tid else ""
            held = bool(lock.depth) if lock.kind is Waitable.RLOCK else lock.locked
            return f"<{lock.kind.value} {_HELD[held]}{owner}>"
        kind = value.type
        if kind in ("set", "frozenset"):
            return f"<{kind} of {len(value.elements().checked())}>"
        if kind == "collections.deque":
            return f"<deque of {value.read(size_of_deque)}>"
        flag = value.attributes()[EVENT_FLAG] if kind == "Event" else None
        return f"<Event {'set' if flag.read(integer) else 'not set'}>" if flag else ""

    def _is_tensor(self, value: PyRef) -> bool:
        """Its class is derived from torch's C++ class of tensors."""
        kind = value.of_class
        known = self._tensor_types.get(kind)
        if known is None:
            known = self._tensor_types[kind] = kind.read(_is_derived_from_tensor)
        return known

    def _tensor(self, value: PyRef) -> str:
        """``f32[8, 16] cpu``; "" where no tensor is behind the object."""
        if not self._session.layout_if_known:
            return ""
        tensors = self._session.tensors
        for word in value.read(lambda python, _: python.memory.words(value.body, _WORDS)):
            if word > _WORDS and not word & 7:
                try:
                    return tensor_text(tensors.read_alive(word))
                except GdbextError:
                    continue
        return ""

    # --- arguments of Python kernels ----------------------------------------------------------------

    def with_kernel_arguments(self, thread: ThreadReport) -> ThreadReport:
        """The report with those arguments of Python kernels that nothing else tells, from the kernel's own frame."""
        lacking = {at for at, step in enumerate(thread.dispatch) if any(map(_lacks_value, step.arguments))}
        if not lacking:
            return thread
        levels = [step.level for step in thread.dispatch]
        evaluated = set(levels)
        kernels = {
            at: number
            for number, frame in enumerate(thread.python_frames)
            if frame.level not in evaluated and (at := bisect_left(levels, frame.level)) in lacking
        }
        sources = self._sources(thread.tid, thread.python_frames[: max(kernels.values(), default=-1) + 1])
        steps: list[DispatchFrame] = []
        for at, step in enumerate(thread.dispatch):
            kernel = sources.get(kernels[at]) if at in kernels else None
            step = self._with_arguments(step, kernel) if kernel else step
            steps.append(_handed_on(step, steps[-1]) if steps else step)
        return thread._replace(dispatch=tuple(steps))

    def _with_arguments(self, step: DispatchFrame, source: PythonFrame) -> DispatchFrame:
        code, values = self._stack.code(source), self._stack.locals(source)
        if not code or not step.kernel or values.fault:
            return step
        if step.kernel.function != f"{code.name} at {code.file}:{code.first_line}":
            return step
        try:
            variables = argument_variables(code, [each.name for each in step.arguments], values)
        except GdbextError:
            return step
        found = (self._argument(each, name, values[name]) for each, name in zip(step.arguments, variables))
        return step._replace(arguments=tuple(found))

    def _argument(self, argument: Argument, name: str, value: PyRef) -> Argument:
        if not _lacks_value(argument) or not value:
            return argument
        return argument._replace(text=self._shown(name, value), confidence=Certainty.INFERRED, variable=name)


def argument_variables(code: Code, schema: Sequence[str], values: PyVariables) -> list[str]:
    """The variable that has each of the schema's arguments, "" for one that none has for sure; what ``*args`` holds
    joins ``values``. Raises GdbextError."""
    known, count, by_keyword = code.local_names(), code.argument_count, code.keyword_count
    behind = _behind(code, known[count + by_keyword :], values)
    has_keyset = count > 0 and values[known[0]].type.rpartition(".")[2] == _KEYSET_CLASS
    positions = (*known[has_keyset:count], *behind)
    if any(name in schema and schema.index(name) != at for at, name in enumerate(positions)):
        return []  # what the schema has for keywords alone is given by name, whatever the order
    keywords = known[count : count + by_keyword]
    return [
        name if name in keywords else positions[at] if at < len(positions) else "" for at, name in enumerate(schema)
    ]


def _behind(code: Code, names: Sequence[str], values: PyVariables) -> list[str]:
    """``args[0]``, ``args[1]``: what the parameter holds that takes all other positions; [] for a function without.
    Raises GdbextError."""
    if not code.takes_more or not names or names[0] not in values:
        return []
    items = {f"{names[0]}[{at}]": one for at, one in enumerate(values[names[0]].elements().checked())}
    values.update(items)
    return [*items]


def _is_derived_from_tensor(python: PySpace, kind: int) -> bool:
    names = (python.objects.type_info(each).name for each in base_classes(python.objects, kind))
    return TENSOR_CLASS in islice(names, _BASES)


def _lacks_value(argument: Argument) -> bool:
    return not argument.text


def _handed_on(step: DispatchFrame, inside: DispatchFrame) -> DispatchFrame:
    """The call of autograd's fallback with what the Python kernel has that it handed the boxed stack to."""
    if not step.arguments:
        return step
    function = step.kernel.function if step.kernel else ""
    is_fallback = any(one in function for one in AUTOGRAD_KERNELS[1:])
    if not is_fallback or inside.qualified != step.qualified or inside.event is not DispatchEvent.REDISPATCH_BOXED:
        return step
    return step._replace(
        arguments=tuple(
            known if _lacks_value(mine) and known.variable else mine
            for mine, known in zip(step.arguments, inside.arguments)
        )
    )


def _is_same(frame: Frame, source: PythonFrame) -> bool:
    return (frame.function, frame.file, frame.line) == (source.function, source.file, source.line)


def with_locals(session: Session, threads: Sequence[ThreadReport], every: bool = False) -> tuple[ThreadReport, ...]:
    """The reports with variables; as they are where there is no Python."""
    reader = FrameLocals(session)
    return tuple(reader.shown(thread, every) if thread.python_frames else thread for thread in threads)


def with_kernel_arguments(session: Session, thread: ThreadReport) -> ThreadReport:
    """The report with the arguments of Python kernels from their frames."""
    return FrameLocals(session).with_kernel_arguments(thread) if thread.python_frames else thread


def python_frames_of(session: Session, thread: ThreadSnapshot) -> list[tuple[Frame, PythonFrame]]:
    """The Python frames of a thread, innermost first, each with the interpreter's; [] without Python."""
    return FrameLocals(session).placed(thread)


_LINE = 100


def variable_lines(frame: Frame) -> Iterator[str]:
    """``step = 12, batch = [f32[8, 16] cpu, … 9 items]``, several on a line."""
    texts = [f"{each.name} = {each.text}" for each in frame.variables]
    if frame.hidden_variables:
        texts.append(f"{'…' if texts else 'variables:'} {frame.hidden_variables}")
    line = ""
    for text in texts:
        if line and len(line) + len(text) > _LINE:
            yield line
            line = ""
        line = f"{line}, {text}" if line else text
    if line:
        yield line
