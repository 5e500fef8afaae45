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

from gdbext.cpython.abi.assumed_names import EVENT_FLAG, Waitable
from gdbext.cpython.abi.python_structures import PyCodeObject, PyObject, PyTypeObject
from gdbext.cpython.objects.object_items import deque_items, set_items
from gdbext.cpython.sync.locks import read_lock
from gdbext.cpython.threads.frame_variables import attributes, global_variables, locals_of
from gdbext.diagnosis.report.thread_report import Frame, LocalVariable, ThreadReport
from gdbext.diagnosis.threads.thread_reporting import tensor_text
from gdbext.engine.targets.system.linux import HIDDEN, is_secret
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import NOT_RECORDED, GdbextError, MemoryFault
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.torch_symbol import TENSOR_CLASS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gdbext.cpython import objects as python_objects
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime
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
_TAKES_MORE = 0x04
"""The flag of a code object with ``*args``: CO_VARARGS (Include/cpython/code.h)."""
_HELD = {True: "held", False: "free"}


class FrameLocals:
    """Reads the variables of one session's Python frames; ``runtime`` is its interpreter."""

    def __init__(self, session: Session, runtime: PythonRuntime) -> None:
        self._session = session
        self._runtime = runtime
        self._tensor_types: dict[int, bool] = {}

    def shown(self, thread: ThreadReport, every: bool = False) -> ThreadReport:
        """The report with the variables of the innermost frame of the user's, or of ``every`` one of them; of a thread
        that is in libraries alone, those of its innermost frame. What a recording lacks is said where they were asked
        for."""
        wanted = [number for number, frame in enumerate(thread.python_frames) if frame.is_users] or [0]
        chosen = set(wanted[: _FRAMES if every else 1])
        found = self._sources(thread.tid, thread.python_frames)
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
        states = table.states.get(tid, ()) if table is not None else ()
        frames = [frame for group in self._runtime.frames.groups(states) for frame in group]
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
        try:
            named = self._named(frame, source)
            found = tuple(LocalVariable(name, kind, self._shown(name, address)) for name, kind, address in named[:most])
        except MemoryFault as fault:
            return frame._replace(hidden_variables=fault.reason if fault.reason == NOT_RECORDED else fault.what)
        except GdbextError as error:
            return frame._replace(hidden_variables=error.what)
        unrecorded = f"<{NOT_RECORDED}>"
        if found and all(each.text == unrecorded for each in found):
            return frame._replace(hidden_variables=NOT_RECORDED)
        more = f"{len(named) - most} more (dispatch-bt --locals)" if len(named) > most else ""
        return frame._replace(variables=found, hidden_variables=more)

    def _named(self, frame: Frame, source: PythonFrame) -> list[tuple[str, str, int]]:
        """(name, type, object) of each variable. Raises GdbextError where the frame itself cannot be read."""
        if frame.function != _MODULE:
            return [
                (name, self._type_name(address), address)
                for name, address in locals_of(self._runtime, source).items()
                if name[:1] != "."  # the iterator of a comprehension
            ]
        used = sorted(global_variables(self._runtime, source).items())
        kinds = [(name, self._type_name(address), address) for name, address in used]
        return [each for each in kinds if each[0][:2] != "__" and each[1] not in _NOT_VALUES]

    def _shown(self, name: str, address: int) -> str:
        return HIDDEN if is_secret(name) else self.text(address)

    def text(self, address: int) -> str:
        """The short text of an object. Raises nothing."""
        from gdbext.cpython.threads.object_text import describe

        return describe(self._runtime, address, _WIDTH, self._special)

    def _type_name(self, address: int) -> str:
        try:
            return self._runtime.objects.type_of(address).name
        except GdbextError:
            return ""

    # --- what object_text does not know -----------------------------------------------------------

    def _special(self, address: int, info: python_objects.TypeInfo) -> str:
        if self._session.has_torch and self._is_tensor_type(info):
            return self._tensor(address)
        lock = read_lock(self._runtime, address)
        if lock is not None and lock.kind is not Waitable.SIMPLE_QUEUE:
            owner = f" by thread {lock.owner_tid}" if lock.locked and lock.owner_tid else ""
            held = bool(lock.depth) if lock.kind is Waitable.RLOCK else lock.locked
            return f"<{lock.kind.value} {_HELD[held]}{owner}>"
        if info.name in ("set", "frozenset"):
            return f"<{info.name} of {len(set_items(self._runtime, address))}>"
        if info.name == "collections.deque":
            return f"<deque of {deque_items(self._runtime, address)[0]}>"
        return self._event(address, info)

    def _event(self, address: int, info: python_objects.TypeInfo) -> str:
        """Say of a threading.Event whether it is set."""
        if info.name != "Event":
            return ""
        flag = attributes(self._runtime, address).get(EVENT_FLAG)
        return "" if flag is None else f"<Event {'set' if self._runtime.objects.integer(flag) else 'not set'}>"

    def _is_tensor_type(self, info: python_objects.TypeInfo) -> bool:
        """The class is derived from torch's C++ class of tensors."""
        known = self._tensor_types.get(info.address)
        if known is None:
            known = self._tensor_types[info.address] = any(each.name == TENSOR_CLASS for each in self._bases(info))
        return known

    def _bases(self, info: python_objects.TypeInfo) -> Iterator[python_objects.TypeInfo]:
        objects = self._runtime.objects
        for _ in range(_BASES):
            yield info
            base = PyTypeObject(self._runtime.space, info.address).tp_base
            if not base:
                return
            info = objects.type_info(base)

    def _tensor(self, address: int) -> str:
        """``f32[8, 16] cpu``; "" where no tensor is behind the object."""
        if self._session.layout_if_known is None:
            return ""
        tensors = self._session.tensors
        for word in self._runtime.memory.words(address + self._runtime.layout.size(PyObject), _WORDS):
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
            step = step if kernel is None else self._with_arguments(step, kernel)
            steps.append(_handed_on(step, steps[-1]) if steps else step)
        return thread._replace(dispatch=tuple(steps))

    def _with_arguments(self, step: DispatchFrame, source: PythonFrame) -> DispatchFrame:
        try:
            code = self._runtime.codes.get(source.code)
            if step.kernel is None or step.kernel.function != f"{code.name} at {code.file}:{code.first_line}":
                return step
            schema = [each.name for each in step.arguments]
            values = locals_of(self._runtime, source)
            variables = self._variables(source.code, schema, values)
        except GdbextError:
            return step
        found = (self._argument(each, name, values.get(name, 0)) for each, name in zip(step.arguments, variables))
        return step._replace(arguments=tuple(found))

    def _variables(self, code: int, schema: Sequence[str], values: dict[str, int]) -> list[str]:
        """The variable that has each of the schema's arguments, "" for one that none has for sure; what ``*args`` holds
        joins ``values``. Raises GdbextError."""
        known = self._runtime.codes.get(code).local_names()
        count, by_keyword = self._parameters(code)
        behind = self._behind(code, known[count + by_keyword :], values)
        has_keyset = count > 0 and self._type_name(values.get(known[0], 0)).rpartition(".")[2] == _KEYSET_CLASS
        positions = (*known[has_keyset:count], *behind)
        if any(name in schema and schema.index(name) != at for at, name in enumerate(positions)):
            return []  # what the schema has for keywords alone is given by name, whatever the order
        keywords = known[count : count + by_keyword]
        return [
            name if name in keywords else positions[at] if at < len(positions) else "" for at, name in enumerate(schema)
        ]

    def _behind(self, code: int, names: Sequence[str], values: dict[str, int]) -> list[str]:
        """``args[0]``, ``args[1]``: what the parameter holds that takes all other positions; [] for a function without.
        Raises GdbextError."""
        if not PyCodeObject(self._runtime.space, code).co_flags & _TAKES_MORE or not names or names[0] not in values:
            return []
        items = {f"{names[0]}[{at}]": one for at, one in enumerate(self._runtime.objects.tuple_items(values[names[0]]))}
        values.update(items)
        return [*items]

    def _parameters(self, code: int) -> tuple[int, int]:
        """The number of parameters that a code object has, and of those for keywords alone. Raises GdbextError.

        ``co_kwonlyargcount`` is the second int behind ``co_argcount`` (Include/cpython/code.h, 3.8 to 3.14).
        """
        space = self._runtime.space
        place = code + PyCodeObject.co_argcount.offset(space) + 8
        return PyCodeObject(space, code).co_argcount, self._runtime.memory.u32(place)

    def _argument(self, argument: Argument, name: str, address: int) -> Argument:
        if not _lacks_value(argument) or not address:
            return argument
        return argument._replace(text=self._shown(name, address), confidence=Certainty.INFERRED, variable=name)


def _lacks_value(argument: Argument) -> bool:
    return not argument.text


def _handed_on(step: DispatchFrame, inside: DispatchFrame) -> DispatchFrame:
    """The call of autograd's fallback with what the Python kernel has that it handed the boxed stack to."""
    function = step.kernel.function if step.kernel is not None else ""
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
    runtime = session.python
    if runtime is None:
        return tuple(threads)
    reader = FrameLocals(session, runtime)
    return tuple(reader.shown(thread, every) if thread.python_frames else thread for thread in threads)


def with_kernel_arguments(session: Session, thread: ThreadReport) -> ThreadReport:
    """The report with the arguments of Python kernels from their frames."""
    runtime = session.python
    return (
        thread
        if runtime is None or not thread.python_frames
        else FrameLocals(session, runtime).with_kernel_arguments(thread)
    )


def python_frames_of(session: Session, thread: ThreadSnapshot) -> list[tuple[Frame, PythonFrame]]:
    """The Python frames of a thread, innermost first, each with the interpreter's; [] without Python."""
    return [] if session.python is None else FrameLocals(session, session.python).placed(thread)


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
