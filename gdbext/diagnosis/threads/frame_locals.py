"""Variables of Python frames as short texts, read from memory (no repr() runs): their values now.

A Python kernel's arguments are variables of its frame, known by file, name and first line of the code object.
PythonKernelHolder (torch/csrc/utils/python_dispatch.cpp) passes them by position, keyword-only ones by name; a
leading one may be the key set (with_keyset=True), which its type shows.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from gdbext.cpython.abi.assumed_names import EVENT_FLAG, Waitable
from gdbext.cpython.objects import base_classes
from gdbext.cpython.objects.py_ref import PyRef, integer, size_of_deque
from gdbext.cpython.sync.locks import read_lock
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.cpython.threads.object_text import describe
from gdbext.diagnosis.report.thread_report import Frame, LocalVariable, ThreadReport
from gdbext.engine.targets.system.linux import HIDDEN, is_secret
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import NOT_RECORDED, GdbextError, MemoryFault
from gdbext.torch.assumed_symbols import AUTOGRAD_FALLBACKS
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
    from gdbext.torch.stack import DispatchFrame


class FrameLocals:
    """Adds the variables of Python frames to reports."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stack = PyStack(session.python)
        self._tensor_types: dict[PyRef, bool] = {}  # type → whether it derives from Tensor

    def with_variables(self, thread: ThreadReport, every_frame: bool = False) -> ThreadReport:
        """The report with the variables of the user's innermost frame (of the innermost frame if all are libraries')
        or, with ``every_frame``, of 16 of them; only then what a recording lacks is reported."""
        if not thread.python_frames:
            return thread
        users = [number for number, frame in enumerate(thread.python_frames) if frame.is_users] or [0]
        chosen = set(users[: 16 if every_frame else 1])
        sources = self.interpreter_frames(thread.tid, thread.python_frames[: max(chosen) + 1])
        replacements: dict[int, Frame] = {}  # by id() of the old frame
        for number in chosen & sources.keys():
            frame = thread.python_frames[number]
            variables, hidden = self._variables(frame, sources[number], most=64 if every_frame else 12)
            if every_frame or hidden != NOT_RECORDED:
                replacements[id(frame)] = frame._replace(variables=variables, hidden_variables=hidden)
        if not replacements:
            return thread
        python = tuple(replacements.get(id(frame), frame) for frame in thread.python_frames)
        frames = tuple(replacements.get(id(frame), frame) for frame in thread.frames)
        return thread._replace(python_frames=python, frames=frames)

    def interpreter_frames(self, tid: int, reported: Sequence[Frame]) -> Mapping[int, PythonFrame]:
        """Position in ``reported``, the innermost frames of thread ``tid`` → the interpreter's frame for it."""
        table = self._session.python_threads
        states = table.states.get(tid)
        frames = [frame for group in table.runtime.frames.groups(states) for frame in group] if states else []
        sources: dict[int, PythonFrame] = {}
        position = 0
        for number, frame in enumerate(reported):
            wanted = (frame.function, frame.file, frame.line)
            for at in range(position, len(frames)):
                if (frames[at].function, frames[at].file, frames[at].line) == wanted:
                    sources[number], position = frames[at], at + 1
                    break
        return sources

    def _variables(self, frame: Frame, source: PythonFrame, most: int) -> tuple[tuple[LocalVariable, ...], str]:
        """(at most ``most`` variables of a frame, a text about those that are not among them or "")."""
        try:
            if frame.function == "<module>":
                # What a module's own code uses by name and did not compute is no variable.
                skipped = ("module", "function", "builtin_function_or_method", "type", "method", "_Feature")
                used = sorted(self._stack.used_globals(source).items())
                named = [(name, value) for name, value in used if name[:2] != "__" and value.type not in skipped]
            else:
                own = self._stack.locals(source).checked().items()
                named = [(name, value) for name, value in own if name[:1] != "."]  # .0: a comprehension's iterator
            variables = tuple(
                LocalVariable(name, value.type, self._text_of(name, value)) for name, value in named[:most]
            )
        except MemoryFault as fault:
            return frame.variables, fault.reason if fault.reason == NOT_RECORDED else fault.what
        except GdbextError as error:
            return frame.variables, error.what
        unrecorded = f"<{NOT_RECORDED}>"
        if variables and all(variable.text == unrecorded for variable in variables):
            return frame.variables, NOT_RECORDED
        return variables, f"{len(named) - most} more (dispatch-bt --locals)" if len(named) > most else ""

    def _text_of(self, name: str, value: PyRef) -> str:
        return HIDDEN if is_secret(name) else self.text(value)

    def text(self, value: PyRef) -> str:
        """The short text of an object. Raises nothing."""
        return describe(value, 60, self._special_text)

    def _special_text(self, value: PyRef) -> str:
        """The text of a tensor, lock, set, deque or Event, which describe() does not know; "" for all others."""
        session, kind = self._session, value.type
        if session.has_torch and self._is_tensor(value):
            return self._tensor(value)
        lock = read_lock(session.python, value.address)
        if lock and lock.kind is not Waitable.SIMPLE_QUEUE:
            owner = f" by thread {lock.owner_tid}" if lock.locked and lock.owner_tid else ""
            is_held = bool(lock.depth) if lock.kind is Waitable.RLOCK else lock.locked
            return f"<{lock.kind.value} {'held' if is_held else 'free'}{owner}>"
        if kind in ("set", "frozenset"):
            return f"<{kind} of {len(value.elements().checked())}>"
        if kind == "collections.deque":
            return f"<deque of {value.read(size_of_deque)}>"
        flag = value.attributes(64)[EVENT_FLAG] if kind == "Event" else None
        return f"<Event {'set' if flag.read(integer) else 'not set'}>" if flag else ""

    def _tensor(self, value: PyRef) -> str:
        """``f32[8, 16] cpu``; "" if the object has no tensor."""
        address = self.tensor_address(value)
        return self._session.tensors.read_alive(address).short if address else ""

    def tensor_address(self, value: PyRef) -> int:
        """Address of the TensorImpl of a torch.Tensor; 0 for any other object. Raises GdbextError.

        The at::Tensor is in one of the two words after the object's header (THPVariable::cdata, a MaybeOwned in some
        versions: torch/csrc/autograd/python_variable.h)."""
        if not self._session.layout_if_known or not self._is_tensor(value):
            return 0
        for word in value.read(lambda python, _: python.memory.words(value.body, 2)):
            if word > 2 and not word & 7:  # up to 2: the flag of a MaybeOwned
                with suppress(GdbextError):
                    return self._session.tensors.read_alive(word).address
        return 0

    def _is_tensor(self, value: PyRef) -> bool:
        """True if the object's class is derived from torch's C++ class of tensors."""
        of_class = value.of_class
        if of_class not in self._tensor_types:
            self._tensor_types[of_class] = of_class.read(_is_derived_from_tensor)
        return self._tensor_types[of_class]

    # --- arguments of Python kernels ----------------------------------------------------------------

    def with_kernel_arguments(self, thread: ThreadReport) -> ThreadReport:
        """The report with those arguments of Python kernels that nothing else shows, from the kernel's own frame."""
        steps_by_position = enumerate(thread.dispatch)
        lacking = {at for at, step in steps_by_position if not all(argument.text for argument in step.arguments)}
        if not lacking:
            return thread
        levels = [step.level for step in thread.dispatch]
        evaluated = set(levels)
        kernels = {  # position of a step → position of the Python frame that may be its kernel
            at: number
            for number, frame in enumerate(thread.python_frames)
            if frame.level not in evaluated and (at := bisect_left(levels, frame.level)) in lacking
        }
        sources = self.interpreter_frames(thread.tid, thread.python_frames[: max(kernels.values(), default=-1) + 1])
        steps: list[DispatchFrame] = []
        for at, step in enumerate(thread.dispatch):
            kernel = sources.get(kernels[at]) if at in kernels else None
            step = self._with_arguments(step, kernel) if kernel else step
            steps.append(_with_kernel_values(step, steps[-1]) if steps else step)
        return thread._replace(dispatch=tuple(steps))

    def _with_arguments(self, step: DispatchFrame, source: PythonFrame) -> DispatchFrame:
        """The step with the missing values of its arguments, if ``source`` is the frame of its kernel."""
        code, values = self._stack.code(source), self._stack.locals(source)
        if not code or not step.kernel or values.fault:
            return step
        if step.kernel.function != f"{code.name} at {code.file}:{code.first_line}":
            return step
        try:
            variables = argument_variables(code, [argument.name for argument in step.arguments], values)
        except GdbextError:
            return step
        arguments = []
        for argument, name in zip(step.arguments, variables):
            if not argument.text and (value := values[name]):
                text = self._text_of(name, value)
                argument = argument._replace(text=text, confidence=Certainty.INFERRED, variable=name)
            arguments.append(argument)
        return step._replace(arguments=tuple(arguments))


def argument_variables(code: Code, schema: Sequence[str], values: PyVariables) -> list[str]:
    """For each schema argument the kernel's variable that holds it, "" if unknown; [] if the positional names
    contradict the schema. Adds ``args[i]``, the items of a ``*args`` parameter, to ``values``. Raises GdbextError."""
    names, count, by_keyword = code.local_names(), code.argument_count, code.keyword_count
    rest = names[count + by_keyword :]
    items: dict[str, PyRef] = {}
    if code.takes_more and rest and rest[0] in values:
        items = {f"{rest[0]}[{at}]": item for at, item in enumerate(values[rest[0]].elements().checked())}
        values.update(items)
    has_keyset = count > 0 and values[names[0]].type.rpartition(".")[2] == "DispatchKeySet"
    positions = (*names[has_keyset:count], *items)
    if any(name in schema and schema.index(name) != at for at, name in enumerate(positions)):
        return []  # what the schema has for keywords alone is given by name, whatever the order
    keywords = names[count : count + by_keyword]
    return [
        name if name in keywords else positions[at] if at < len(positions) else "" for at, name in enumerate(schema)
    ]


def _is_derived_from_tensor(python: PySpace, kind: int) -> bool:
    """The class is derived from torch's C++ class of tensors (one of its first 16 base classes)."""
    names = (python.objects.type_info(base).name for base in base_classes(python.objects, kind))
    return TENSOR_CLASS in islice(names, 16)


def _with_kernel_values(step: DispatchFrame, inside: DispatchFrame) -> DispatchFrame:
    """``step``, if an autograd fallback, with missing values from ``inside``, the Python kernel it redispatched to."""
    function = step.kernel.function if step.kernel else ""
    is_fallback = any(kernel in function for kernel in AUTOGRAD_FALLBACKS)
    if not step.arguments or not is_fallback or inside.qualified != step.qualified:
        return step
    if inside.event is not DispatchEvent.REDISPATCH_BOXED:
        return step
    pairs = zip(step.arguments, inside.arguments)
    return step._replace(arguments=tuple(inner if not own.text and inner.variable else own for own, inner in pairs))


def python_frames_of(session: Session, thread: ThreadSnapshot) -> list[tuple[Frame, PythonFrame]]:
    """The Python frames of a thread, innermost first, each with the interpreter's own frame; [] without Python."""
    sources = FrameLocals(session).interpreter_frames(thread.tid, thread.python)
    return [(frame, sources[number]) for number, frame in enumerate(thread.python) if number in sources]


def variable_lines(frame: Frame) -> Iterator[str]:
    """``step = 12, batch = [f32[8, 16] cpu, … 9 items]``: variables in lines of about 100 characters."""
    texts = [f"{variable.name} = {variable.text}" for variable in frame.variables]
    if frame.hidden_variables:
        texts.append(f"{'…' if texts else 'variables:'} {frame.hidden_variables}")
    line = ""
    for text in texts:
        if line and len(line) + len(text) > 100:
            yield line
            line = ""
        line = f"{line}, {text}" if line else text
    if line:
        yield line
