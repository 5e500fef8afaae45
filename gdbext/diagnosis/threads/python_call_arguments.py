"""Arguments of operators from the Python frames next to them.

PyTorch gives the function ``__torch_dispatch__`` of a mode or a tensor subclass ``func, types, args, kwargs``, made of
the boxed stack, which is empty from then on (parseIValuesToPyArgsKwargs in torch/csrc/autograd/python_variable.cpp and
torch/csrc/PyInterpreter.cpp, 1.12 to 2.13): trailing arguments that are equal to their defaults are left out. The
other way round, ``torch.ops.NAME(*args, **kwargs)`` gives its arguments to the dispatcher (torch/_ops.py).

A tuple cannot change. That a variable still has the tuple that was passed is proven by the C++ frames around the call,
which own it; the function may have assigned another one to its variable (``args = tree_map(unwrap, args)``). A dict may
have changed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.diagnosis.threads.frame_locals import FrameLocals
from gdbext.engine.numbers import number
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import PASSING_KERNELS
from gdbext.torch.registry.schema import aliased_arguments, keyword_arguments, schema_defaults
from gdbext.torch.stack import Argument, ArgumentTensor, DispatchEvent
from gdbext.torch.torch_symbol import CALLS_OF_OPERATORS, OPERATOR_NAMES
from gdbext.torch.values.cpp_values import LIST_LIMIT, CppValues, Value, list_value
from gdbext.torch.values.value_text import quoted

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.session import Session
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.stack import DispatchFrame

_MOST_STACK = 1 << 16
"""Bytes of C++ frames around a call that are searched, at most, for the objects that it was given."""


class _Given(NamedTuple):
    """The objects with which a Python function was called, or that it passed to the dispatcher."""

    args: PyRef
    kwargs: PyRef | None
    """None for no dict."""
    certainty: Certainty
    """That of the items of ``args``, and of arguments by position that it does not have."""
    keyword_certainty: Certainty
    """That of the items of ``kwargs``, and of keyword-only arguments that it does not have. UNKNOWN: it is another dict
    than was passed."""


class PythonCallArguments:
    """Completes the arguments of the operators of one process from Python frames."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._python = PyStack(session.python)
        self._locals = FrameLocals(session)
        self._callee_saved = session.memory.architecture.callee_saved
        self._values = CppValues(session.memory, session.layout, lambda at: session.tensors.read_alive(at).short)

    def completed(self, thread: ThreadReport, stack: NativeStack) -> ThreadReport:
        """The report with arguments from Python frames in place of unknown and less certain ones; ``stack`` is the
        thread's."""
        steps = list(thread.dispatch)
        wanting = {
            at for at, step in enumerate(steps) if not all(argument.confidence.is_proven for argument in step.arguments)
        }
        if not wanting:
            return thread
        around = _frames_around(thread)
        sources = self._locals.interpreter_frames(thread.tid, thread.python_frames)
        for at in wanting:
            inner, outer = around[at]
            with suppress(GdbextError):
                step = steps[at]
                given = self._passed_by(step, sources[outer]) if outer in sources else None
                if not given and inner in sources:
                    level = thread.python_frames[inner].level
                    given = self._received(step, sources[inner], self._words(stack, level, step.level))
                if given:
                    steps[at] = step._replace(arguments=self._merged(step, given))
        for at in (*range(1, len(steps)), *reversed(range(1, len(steps)))):
            steps[at - 1], steps[at] = _shared(steps[at - 1], steps[at])
        return thread._replace(dispatch=tuple(steps))

    def _words(self, stack: NativeStack, inner: int, outer: int) -> frozenset[int]:
        """The words of the C++ frames outside of frame ``inner`` up to frame ``outer``, and those in their callee-saved
        registers; none if they cannot be read."""
        frames = stack.frames[inner : outer + 1]
        low, high = frames[0].cfa, frames[-1].cfa
        if not 0 < high - low <= _MOST_STACK:
            return frozenset()
        saved = frozenset(frame.registers.get(name, 0) for frame in frames[1:] for name in self._callee_saved)
        try:
            return saved.union(self._session.memory.words(low, (high - low) // 8))
        except GdbextError:
            return frozenset()

    def _parameters(self, source: PythonFrame) -> tuple[list[PyRef], PyRef | None, PyRef | None]:
        """(positional parameters, the tuple of ``*args``, the dict of ``**kwargs``; None for each that a frame's
        function does not have). Raises GdbextError."""
        code, values = self._python.code(source), self._python.locals(source)
        if not code or values.fault:
            return [], None, None
        names, count = code.local_names(), code.argument_count
        rest = names[count + code.keyword_count :]
        more, keywords = code.takes_more, code.takes_keywords
        return (
            [values[name] for name in names[:count]],
            values[rest[0]] if more and rest else None,
            values[rest[more]] if keywords and len(rest) > more else None,
        )

    def _passed_by(self, step: DispatchFrame, source: PythonFrame) -> _Given | None:
        """What ``torch.ops.NAME.__call__`` passed to the dispatcher, if ``source`` is such a frame and NAME is the
        operator of ``step``."""
        method = source.function.rpartition(".")[2]
        if method not in CALLS_OF_OPERATORS or not source.file.endswith("/torch/_ops.py"):
            return None
        positional, args, kwargs = self._parameters(source)
        if not positional or args is None or not _is_operator(positional[0], step):
            return None
        return _Given(args, kwargs, Certainty.VERIFIED, Certainty.VERIFIED)

    def _received(self, step: DispatchFrame, source: PythonFrame, words: frozenset[int]) -> _Given | None:
        """What ``__torch_dispatch__``, or the function around it, was given, if ``source`` is its frame. ``words`` are
        those of the C++ frames between it and ``step``."""
        positional, more, _ = self._parameters(source)
        objects = [*positional, *(more.elements().checked() if more else ())]
        at = next((at for at, value in enumerate(objects) if _is_operator(value, step)), None)
        if at is None or len(objects) < at + 3:
            return None
        args, kwargs = objects[at + 2], objects[at + 3] if len(objects) > at + 3 else None
        certainty = Certainty.VERIFIED
        if args.address not in words:
            found = self._tuple_among(step, words)
            if not found:
                return None
            args, certainty = found, Certainty.INFERRED
        if kwargs is None or not kwargs.is_dict:
            return _Given(args, None, certainty, Certainty.INFERRED)
        is_same = kwargs.address in words
        return _Given(args, kwargs, certainty, Certainty.INFERRED if is_same else Certainty.UNKNOWN)

    def _tuple_among(self, step: DispatchFrame, words: frozenset[int]) -> PyRef | None:
        """The only tuple among these words that has a tensor and whose items can all be arguments of the step."""
        found = []
        for word in words:
            candidate = PyRef(self._session.python, word)
            if word & 7 or word < 4096 or candidate.type != "tuple":
                continue
            items = candidate.elements(65)
            if items.fault or not 0 < len(items) <= len(step.arguments):
                continue
            values = [self._value(argument.type, item) for argument, item in zip(step.arguments, items)]
            if all(values) and any(value.tensors for value in values if value):
                found.append(candidate)
        return found[0] if len(found) == 1 else None

    def _merged(self, step: DispatchFrame, given: _Given) -> tuple[Argument, ...]:
        """The step's arguments, with the more certain ones of those that were given. Raises GdbextError."""
        items = given.args.elements().checked()
        if len(items) > len(step.arguments):
            return step.arguments
        named = {key.str(): value for key, value in given.kwargs.items()} if given.kwargs else {}
        schema = self._schema(step)
        defaults, written = schema_defaults(schema), aliased_arguments(schema).values()
        by_keyword = keyword_arguments(schema)
        arguments = []
        for position, argument in enumerate(step.arguments):
            if position < len(items):
                value, certainty = self._value(argument.type, items[position]), given.certainty
            elif argument.name in named:
                value, certainty = self._value(argument.type, named[argument.name]), given.keyword_certainty
            else:
                value = _default(argument.type, defaults.get(argument.name, ""))
                certainty = given.keyword_certainty if argument.name in by_keyword else given.certainty
            if value and certainty is Certainty.UNKNOWN and not value.tensors:
                certainty = Certainty.INFERRED
            if argument.name in written:
                certainty = min(certainty, Certainty.INFERRED)
            is_better = not argument.text or argument.confidence < certainty
            if value and certainty is not Certainty.UNKNOWN and is_better:
                argument = self._reported(argument, value, certainty)
            arguments.append(argument)
        return tuple(arguments)

    def _reported(self, argument: Argument, value: Value, certainty: Certainty) -> Argument:
        """The argument with this value."""
        read = self._session.tensors.read_alive
        tensors = tuple(ArgumentTensor(at, read(at).short) if at else ArgumentTensor(0, "None") for at in value.tensors)
        return argument._replace(text=value.text, confidence=certainty, tensors=tensors, variable="")

    def _schema(self, step: DispatchFrame) -> str:
        """The text of the schema of the step's operator; "" if it is unknown. Raises GdbextError."""
        operators = self._session.dispatcher.find(step.op or "")
        schema = next((operator.schema for operator in operators if operator.overload == step.overload), None)
        return schema.text if schema else ""

    def _value(self, kind: str, item: PyRef) -> Value | None:
        """The value of the schema type ``kind`` that PyTorch makes of a Python object, or made it of; None for objects
        that it would convert in another way than is known here."""
        optional, of_class = kind.endswith("?"), item.type
        kind = kind.rstrip("?")
        if of_class == "NoneType":
            return Value("None") if optional or kind == "Tensor" else None
        try:
            return self._list(kind, item) if kind.endswith("]") else self._single(kind, of_class, item)
        except GdbextError:
            return None

    def _list(self, kind: str, item: PyRef) -> Value | None:
        """As ``_value``, for a list type. Raises GdbextError."""
        inner, _, length = kind[:-1].rpartition("[")
        if item.type not in ("list", "tuple", "torch.Size"):
            value, count = self._value(inner, item), number(length) or LIST_LIMIT + 1
            return list_value([value] * count, count) if value and not value.tensors and count <= LIST_LIMIT else None
        items = item.elements(1 << 16).checked()
        values = [self._value(inner, element) for element in items[:LIST_LIMIT]]
        return list_value([value for value in values if value], len(items)) if all(values) else None

    def _single(self, kind: str, of_class: str, item: PyRef) -> Value | None:
        """As ``_value``, for an object of the class ``of_class``, no list type. Raises GdbextError."""
        if kind == "Tensor":
            address = self._locals.tensor_address(item)
            return self._values.tensor(address) if address else None
        wanted = _PYTHON_TYPES.get(kind, ())
        if of_class not in wanted:
            return None
        if of_class in _NUMBERED:  # the number is the first member behind the header: torch/csrc/Dtype.h, Layout.h, …
            enumerator = item.read(lambda python, _: python.memory.u8(item.body))
            return self._values.of_schema_type(kind, Value(str(enumerator)))
        if of_class == "torch.device":
            return Value(self._values.device(item.read(lambda python, _: python.memory.u16(item.body))))
        if of_class == "str":
            return Value(quoted(item.str(200)))
        plain = item.plain()
        return Value(repr(float(plain) if kind == "float" and plain is not None else plain))


_NUMBERED = ("torch.dtype", "torch.layout", "torch.memory_format")
_PYTHON_TYPES = {
    "int": ("int",),
    "SymInt": ("int",),
    "float": ("int", "float"),
    "bool": ("bool",),
    "Scalar": ("int", "float", "bool"),
    "str": ("str",),
    "ScalarType": ("torch.dtype",),
    "Layout": ("torch.layout",),
    "MemoryFormat": ("torch.memory_format",),
    "Device": ("torch.device",),
}
"""Schema type → classes of the Python objects of it that are shown."""


def _default(kind: str, text: str) -> Value | None:
    """The default ``text`` of an argument as the value of its schema type ``kind``; None if there is none, or it may
    mean something else."""
    base, _, length = kind.rstrip("?").partition("[")
    count = number(length.rstrip("]"))
    if not text or text == "None" or text.startswith("["):
        return Value(text) if text else None
    if count is not None and count <= LIST_LIMIT and re.fullmatch(r"-?\d+", text):
        return Value(f"[{', '.join([text] * count)}]")
    if length or base not in ("int", "SymInt", "float", "bool", "Scalar", "str"):
        return None
    is_float = base == "float" or (base == "Scalar" and not re.fullmatch(r"-?\d+|True|False", text))
    try:
        return Value(repr(float(text)) if is_float else text)
    except ValueError:
        return None


def _is_operator(value: PyRef, step: DispatchFrame) -> bool:
    """True if the object is the step's operator in torch.ops, or all overloads of it."""
    member = OPERATOR_NAMES.get(value.type.rpartition(".")[2])
    return bool(member) and step.op is not None and value.var(member or "").str() in (step.op, step.qualified)


def _frames_around(thread: ThreadReport) -> list[tuple[int, int]]:
    """For each step the positions, in ``python_frames``, of the outermost Python frame inside it and of the innermost
    one around it, without another step in between; -1 for none."""
    levels = [step.level for step in thread.dispatch]
    around = [[-1, -1] for _ in levels]
    for at, frame in enumerate(thread.python_frames):
        inside_of = bisect_left(levels, frame.level)
        if inside_of < len(levels):
            around[inside_of][0] = at
        if inside_of and around[inside_of - 1][1] < 0:
            around[inside_of - 1][1] = at
    return [(inner, outer) for inner, outer in around]


def _shared(inner: DispatchFrame, outer: DispatchFrame) -> tuple[DispatchFrame, DispatchFrame]:
    """Both steps, each with missing arguments from the other one, if ``outer`` is a kernel that passes its arguments on
    and ``inner`` its redispatch."""
    function = outer.kernel.function if outer.kernel else ""
    if inner.event not in (DispatchEvent.REDISPATCH, DispatchEvent.REDISPATCH_BOXED):
        return inner, outer
    if inner.qualified != outer.qualified or not any(kernel in function for kernel in PASSING_KERNELS):
        return inner, outer
    if len(inner.arguments) != len(outer.arguments):
        return inner, outer
    pairs = list(zip(inner.arguments, outer.arguments))
    return (
        inner._replace(arguments=tuple(_either(own, other) for own, other in pairs)),
        outer._replace(arguments=tuple(_either(own, other) for other, own in pairs)),
    )


def _either(own: Argument, other: Argument) -> Argument:
    """``own``, or if that is unknown, ``other`` as an inferred one."""
    return own if own.text or not other.text else other._replace(confidence=Certainty.INFERRED)
