"""Finds a Python variable by an expression such as ``x``, ``self.weight``, ``batch[0]``, ``state["step"]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef, type_name
from gdbext.diagnosis.report.thread_report import is_users_file
from gdbext.diagnosis.threads.frame_locals import python_frames_of
from gdbext.engine.numbers import integer, number
from gdbext.engine.vocabulary import or_unknown
from gdbext.errors import UsageError, words_like

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.frame_variables import PyStack
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread

_NAME = re.compile(r"[^\W\d]\w*")
_STEP = re.compile(r"""\.(\w+)|\[(-?\d{1,18})\]|\[(?:"([^"]*)"|'([^']*)'|([^\W\d][\w .-]*))\]""")
"""A key needs no quotes, since shells and debuggers remove them. An attribute may be a number:
``layers.0.weight`` is the name of a parameter.
"""
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
"""Dictionaries in which torch.nn.Module keeps what its __getattr__ finds (torch/nn/modules/module.py)."""
_NAMES_SHOWN = 8
_NAMES_READ = 2000
"""Names read of a namespace, at most."""


class Step(NamedTuple):
    """One step of a path; ``kind``: "attribute", "index" or "key" (a str)."""

    kind: str
    text: str

    def __str__(self) -> str:
        return {"attribute": f".{self.text}", "index": f"[{self.text}]"}.get(self.kind, f"[{self.text!r}]")


def parse(path: str) -> tuple[str, tuple[Step, ...]]:
    """Parse a path into (variable name, steps from its object). Raises UsageError."""
    head = _NAME.match(path)
    steps: list[Step] = []
    end = head.end() if head else 0
    while head and (match := _STEP.match(path, end)):
        attribute, index, *keys = match.groups()
        if attribute:
            steps.append(Step("attribute", attribute))
        elif index:
            steps.append(Step("index", index))
        else:
            steps.append(Step("key", next(key for key in keys if key is not None)))
        end = match.end()
    if not head or end < len(path):
        raise UsageError(
            f"{path!r} is not the name of a variable",
            why="names, attributes, and indices that are numbers or strings can be read without running the program",
            help="--py x   --py self.weight   --py batch[0]   --py state['step']",
        )
    return head.group(), tuple(steps)


class FoundVariable(NamedTuple):
    """An object, and the frame whose local or (``is_global``) module variable leads to it."""

    value: PyRef
    frame: PythonFrame
    is_global: bool = False

    @property
    def whose(self) -> str:
        """``train.py:8 (step)``; ``train.py, global``."""
        line = or_unknown(self.frame.line)
        return f"{self.frame.file}, global" if self.is_global else f"{self.frame.file}:{line} ({self.frame.function})"


class VariableFinder:
    """Finds variables in the frames of one thread, innermost first."""

    def __init__(self, stack: PyStack) -> None:
        self._stack = stack

    def find(self, path: str, is_wanted: Callable[[PyRef], bool] = bool) -> FoundVariable:
        """Find the object in the innermost frame in which the whole path exists: many frames have a ``self``. A frame
        whose object ``is_wanted`` comes first: for a tensor ``loss``, an optimizer's own ``loss`` that is None is not.

        The locals of all frames come before the globals of their modules. Raises UsageError with the nearest names,
        MemoryFault, BadData.
        """
        name, steps = parse(path)
        refusal: UsageError | None = None
        first: FoundVariable | None = None
        seen: set[PyRef] = set()
        for is_global, namespace_of in ((False, self._stack.locals), (True, self._stack.globals)):
            for frame in self._stack:
                value = namespace_of(frame)[name]
                if not value or value in seen:
                    continue
                seen.add(value)
                try:
                    variable = FoundVariable(_follow_path(value, name, steps), frame, is_global)
                except UsageError as error:
                    refusal = refusal or error
                    continue
                if is_wanted(variable.value):
                    return variable
                first = first or variable
        if first:
            return first
        raise refusal or self._unknown(name)

    def _unknown(self, name: str) -> UsageError:
        """The error for an unknown name, with the nearest names: tensors and the user's code first."""
        if not self._stack:
            return UsageError(
                f"there is no Python variable {name!r}: the thread runs no Python code",
                help="choose a thread with: --thread TID   (all-threads lists them)",
            )
        values: dict[str, PyRef] = {}
        own_first = sorted(self._stack, key=lambda frame: not is_users_file(frame.file))
        namespaces = [self._stack.locals(frame) for frame in own_first]
        namespaces += [self._stack.globals(frame).variables(_NAMES_READ) for frame in self._stack]
        for namespace in namespaces:
            for variable_name, value in namespace.items():
                values.setdefault(variable_name, value)
        public = (variable_name for variable_name in values if not variable_name.startswith("__"))
        tensors_first = sorted(public, key=lambda name: values[name].type not in ("Tensor", "Parameter"))
        return _nearest(f"there is no Python variable {name!r} in the frames of this thread", name, tensors_first)


def _follow_path(value: PyRef, name: str, steps: Sequence[Step]) -> PyRef:
    """Follow the steps from the object of that name. Raises UsageError."""
    for step in steps:
        following = _follow(value, step)
        if not following:
            raise _no_step(value, name, step)
        value, name = following, f"{name}{step}"
    return value


def hint_at(path: str, value: PyRef) -> str:
    """A hint for the user, who named an object that is not a tensor: its items, attributes or keys."""
    items = _sequence(value)
    if items is not None:
        return f"it has {len(items)} items: --py '{path}[0]'" if items else "it is empty"
    names = [name for name in _attributes(value) if not name.startswith("_")]
    if names:
        return f"its attributes are: {', '.join(names[:_NAMES_SHOWN])} (--py {path}.{names[0]})"
    keys = _keys(value)
    return f"its keys are: {', '.join(keys[:_NAMES_SHOWN])}" if keys else ""


def _follow(value: PyRef, step: Step) -> PyRef | None:
    """The object at the attribute, index or key ``step`` of ``value``; None if it has none."""
    if step.kind == "attribute":
        return _attributes(value).get(step.text)
    if value.is_dict and step.kind == "key":
        return value[step.text]
    if value.is_dict:
        return next((item for key, item in value.items() if key.int() == integer(step.text)), None)
    items = None if step.kind == "key" else _sequence(value)
    if items is not None:
        index = integer(step.text)
        return items[index] if -len(items) <= index < len(items) else None
    # nn.Sequential, ModuleList, ModuleDict, ParameterList and ParameterDict name their items by numbers or keys
    members = _module_members(value)
    if step.kind == "index" and integer(step.text) < 0:
        numbered = sum(name.isdecimal() for name in members)
        return members.get(str(numbered + integer(step.text)))
    return members.get(step.text)


def _sequence(value: PyRef) -> Sequence[PyRef] | None:
    """The items of a list, a tuple or a deque; None for anything else."""
    items = value.elements()
    return None if items.fault or value.type in ("set", "frozenset") else items


def _keys(value: PyRef) -> list[str]:
    """The keys of a dict that are str; [] for anything else."""
    return list(value.variables(_NAMES_READ)) if value.is_dict else []


def _attributes(value: PyRef) -> dict[str, PyRef]:
    """The object's own attributes, the fields of a named tuple, and what a torch.nn.Module has in its dictionaries.

    The items of torch.return_types (torch/csrc/utils/structseq.cpp) are named in ``__match_args__`` since Python 3.10
    (Objects/structseq.c), those of a named tuple in ``_fields``.
    """
    names = value.inherited("__match_args__" if value.type.startswith("torch.return_types.") else "_fields")
    fields = {name.str(200): item for name, item in zip(names, value.elements(_NAMES_READ))} if names else {}
    attributes = {**value.vars(_NAMES_READ), **value.attributes(_NAMES_READ)}
    for name, item in (*fields.items(), *_module_members(value).items()):
        attributes.setdefault(name, item)
    return attributes


def _module_members(value: PyRef) -> dict[str, PyRef]:
    """The parameters, buffers and modules of a torch.nn.Module, by name; {} for anything else."""
    own = value.attributes(_NAMES_READ)
    tables = (own[name].variables(_NAMES_READ) for name in _MODULE_DICTS if own[name].is_dict)
    return {name: member for table in tables for name, member in table.items()}


def _no_step(value: PyRef, name: str, step: Step) -> UsageError:
    """The error for a ``step`` that ``value`` does not have; ``name``: the path to ``value``."""
    kind = value.read(type_name)
    keys = _keys(value)
    if step.kind == "attribute":
        what = f"{name} (a {kind}) has no attribute {step.text!r} that can be read"
        if step.text in keys:
            return UsageError(what, why="it is a key", help=f"--py \"{name}['{step.text}']\"")
        return _nearest(what, step.text, list(_attributes(value)) or keys)
    keys = keys or list(_module_members(value))
    if keys:
        return _nearest(f"{name} (a {kind}) has no item {step}", step.text, keys)
    items = _sequence(value)
    size = f"; it has {len(items)} items" if items is not None else ""
    return UsageError(f"{name} (a {kind}) has no item {step}{size}", help=f"see what it is: --py {name}")


def chosen_frames(session: Session, thread: TargetThread, wanted: str | None) -> list[PythonFrame] | None:
    """The frames to search for --frame ``wanted``: the frame of that number (0: innermost), or all frames of that
    function. Without the option all frames, beginning at the native frame selected in the debugger; None if no frame is
    selected. Raises UsageError."""
    pointer = session.target.memory.selected_stack_pointer() if wanted is None else None
    if wanted is None and pointer is None:
        return None
    reported_and_read = python_frames_of(session, session.threads.snapshot(thread))
    frames = [source for _, source in reported_and_read]
    if wanted is None:
        stack = session.stacks.of(thread).frames
        level = next((number for number, frame in enumerate(stack) if frame.sp == pointer), 0)
        start = next((index for index, (frame, _) in enumerate(reported_and_read) if frame.level >= level), 0)
        return [*frames[start:], *frames[:start]]
    index = number(wanted)
    if index is not None:
        chosen = frames[index : index + 1]
    else:
        chosen = [frame for frame in frames if wanted in (frame.function, frame.function.rpartition(".")[2])]
    if chosen:
        return chosen
    names = list(dict.fromkeys(f"{number} ({frame.function})" for number, frame in enumerate(frames)))
    raise UsageError(
        f"the thread has no Python frame {wanted}",
        why=f"its frames are {', '.join(names[:_NAMES_SHOWN])}" if names else "it runs no Python code",
        help="--frame N counts from the innermost one, 0; --frame FUNCTION takes its name",
    )


def _nearest(what: str, name: str, names: Sequence[str]) -> UsageError:
    """The error ``what`` about ``name``, with those of ``names`` that are spelled most like it."""
    near = words_like(name, names, _NAMES_SHOWN, 0.65)
    shown = list(dict.fromkeys([*near, *names]))[:_NAMES_SHOWN]
    why = f"did you mean {' or '.join(near)}?" if near else "it may be in another thread, or not assigned yet"
    return UsageError(what, why=why, help=f"available: {', '.join(shown)}" if shown else "there are no names at all")
