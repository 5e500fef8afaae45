"""A Python variable by the name that people write: ``x``, ``self.weight``, ``batch[0]``, ``state["step"]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef, type_name
from gdbext.diagnosis.report.thread_report import is_users_file
from gdbext.diagnosis.threads.frame_locals import python_frames_of
from gdbext.engine.numbers import integer, number
from gdbext.engine.vocabulary import or_unknown
from gdbext.errors import UsageError, words_like

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.py_stack import PyStack
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread

_NAME = re.compile(r"[^\W\d]\w*")
_STEP = re.compile(r"""\.(\w+)|\[(-?\d{1,18})\]|\[(?:"([^"]*)"|'([^']*)'|([^\W\d][\w .-]*))\]""")
"""A key without quotes is one, too: shells and debuggers take the quotes in a word away. An attribute may be a number:
``layers.0.weight`` is the name of a parameter."""
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
"""Dictionaries in which torch.nn.Module keeps what its __getattr__ finds (torch/nn/modules/module.py)."""
_RETURN_TYPES = "torch.return_types."
"""Names of the classes of several results (torch/csrc/utils/structseq.cpp). Since Python 3.10 the names of their
items are in ``__match_args__`` (Objects/structseq.c); those of a named tuple are in ``_fields``."""
_TENSORS = ("Tensor", "Parameter")
_NAMES_SHOWN = 8
_NAMES_READ = 2000


class Step(NamedTuple):
    """One step of a path: an attribute, an index, or a key that is a str."""

    kind: str
    text: str

    def __str__(self) -> str:
        return {"attribute": f".{self.text}", "index": f"[{self.text}]"}.get(self.kind, f"[{self.text!r}]")


def parse(path: str) -> tuple[str, tuple[Step, ...]]:
    """Parse a path into (name, steps). Raises UsageError."""
    head = _NAME.match(path)
    steps: list[Step] = []
    at = head.end() if head else 0
    while head and at < len(path):
        found = _STEP.match(path, at)
        if not found:
            break
        attribute, index, *keys = found.groups()
        if attribute:
            steps.append(Step("attribute", attribute))
        elif index:
            steps.append(Step("index", index))
        else:
            steps.append(Step("key", next(key for key in keys if key is not None)))
        at = found.end()
    if not head or at < len(path):
        raise UsageError(
            f"{path!r} is not the name of a variable",
            why="names, attributes, and indices that are numbers or strings can be read without running the program",
            help="--py x   --py self.weight   --py batch[0]   --py state['step']",
        )
    return head.group(), tuple(steps)


class FoundVariable(NamedTuple):
    """An object, and the frame whose variable led to it."""

    value: PyRef
    frame: PythonFrame
    is_global: bool = False

    @property
    def whose(self) -> str:
        """``train.py:8 (step)``; of a global the module's file."""
        line = or_unknown(self.frame.line)
        return f"{self.frame.file}, global" if self.is_global else f"{self.frame.file}:{line} ({self.frame.function})"


class VariableFinder:
    """Finds variables in the frames of one thread, innermost first."""

    def __init__(self, stack: PyStack) -> None:
        self._stack = stack

    def find(self, path: str, is_wanted: Callable[[PyRef], bool] = bool) -> FoundVariable:
        """The object, in the innermost frame that has the whole path: many of them have a ``self``. Where some of these
        objects are wanted ones (tensors: an optimizer's own ``loss`` is None), the innermost of those.

        Raises UsageError with the nearest names, MemoryFault, BadData.
        """
        name, steps = parse(path)
        refusal: UsageError | None = None
        first: FoundVariable | None = None
        for variable in self._variables(name):
            try:
                found = variable._replace(value=_walk(variable.value, name, steps))
            except UsageError as error:
                refusal = refusal or error
                continue
            if is_wanted(found.value):
                return found
            first = first or found
        if first:
            return first
        raise refusal or self._unknown(name)

    def _variables(self, name: str) -> Iterator[FoundVariable]:
        """The objects of that name, each once, from the innermost frame on: all frames' own variables first, then
        their modules'."""
        seen: set[PyRef] = set()
        for is_global in (False, True):
            for frame in self._stack:
                found = self._stack.globals(frame)[name] if is_global else self._stack.locals(frame)[name]
                if found and found not in seen:
                    seen.add(found)
                    yield FoundVariable(found, frame, is_global)

    def _unknown(self, name: str) -> UsageError:
        if not self._stack:
            return UsageError(
                f"there is no Python variable {name!r}: the thread runs no Python code",
                help="choose a thread with: --thread TID   (all-threads lists them)",
            )
        values: dict[str, PyRef] = {}
        own_first = sorted(self._stack, key=lambda frame: not is_users_file(frame.file))
        known = (self._stack.locals(frame) for frame in own_first)
        for found in (*known, *(self._stack.globals(frame).variables(_NAMES_READ) for frame in self._stack)):
            for known_name, value in found.items():
                values.setdefault(known_name, value)
        own = (each for each in values if not each.startswith("__"))
        names = sorted(own, key=lambda each: values[each].type not in _TENSORS)
        return _nearest(f"there is no Python variable {name!r} in the frames of this thread", name, names)


def _walk(value: PyRef, done: str, steps: Sequence[Step]) -> PyRef:
    """Follow the steps from an object. Raises UsageError."""
    for step in steps:
        following = _follow(value, step)
        if not following:
            raise _no_step(value, done, step)
        value, done = following, f"{done}{step}"
    return value


def hint_at(path: str, value: PyRef) -> str:
    """A hint at what can be asked of an object that is no tensor."""
    items = _sequence(value)
    if items is not None:
        return f"it has {len(items)} items: --py '{path}[0]'" if items else "it is empty"
    names = [name for name in _attributes(value) if not name.startswith("_")]
    if names:
        return f"its attributes are: {', '.join(names[:_NAMES_SHOWN])} (--py {path}.{names[0]})"
    keys = _keys(value)
    return f"its keys are: {', '.join(keys[:_NAMES_SHOWN])}" if keys else ""


def _follow(value: PyRef, step: Step) -> PyRef | None:
    if step.kind == "attribute":
        return _attributes(value).get(step.text)
    if value.is_dict and step.kind == "key":
        return value[step.text]
    if value.is_dict:
        return next((each for key, each in value.items() if key.int() == integer(step.text)), None)
    items = None if step.kind == "key" else _sequence(value)
    if items is None:
        return _module_item(value, step)
    index = integer(step.text)
    return items[index] if -len(items) <= index < len(items) else None


def _sequence(value: PyRef) -> Sequence[PyRef] | None:
    """The items of a list, a tuple or a deque; None for anything else."""
    items = value.elements()
    return None if items.fault or value.type in ("set", "frozenset") else items


def _module_item(value: PyRef, step: Step) -> PyRef | None:
    """The item of an nn.Sequential, ModuleList, ModuleDict, ParameterList or ParameterDict."""
    held = _held(value)
    if step.kind == "index" and integer(step.text) < 0:  # they are called by their numbers
        return held.get(str(sum(name.isdecimal() for name in held) + integer(step.text)))
    return held.get(step.text)


def _keys(value: PyRef) -> list[str]:
    """Those keys of a dict that are str; [] for anything else."""
    return list(value.variables(_NAMES_READ)) if value.is_dict else []


def _attributes(value: PyRef) -> dict[str, PyRef]:
    """The object's own attributes, the fields of a named tuple, and what a torch.nn.Module has in its dictionaries."""
    found = {**value.vars(_NAMES_READ), **value.attributes(_NAMES_READ)}
    for name, each in (*_fields(value).items(), *_held(value).items()):
        found.setdefault(name, each)
    return found


def _held(value: PyRef) -> dict[str, PyRef]:
    """The members that a torch.nn.Module holds, by name; {} for anything else."""
    own = value.attributes(_NAMES_READ)
    tables = (own[name].variables(_NAMES_READ) for name in _MODULE_DICTS if own[name].is_dict)
    return {name: held for table in tables for name, held in table.items()}


def _fields(value: PyRef) -> dict[str, PyRef]:
    """The items of a named tuple."""
    names = value.inherited("__match_args__" if value.type.startswith(_RETURN_TYPES) else "_fields")
    return {name.str(200): item for name, item in zip(names, value.elements(_NAMES_READ))} if names else {}


def _no_step(value: PyRef, done: str, step: Step) -> UsageError:
    kind = value.read(type_name)
    if step.kind == "attribute":
        what = f"{done} (a {kind}) has no attribute {step.text!r} that can be read"
        keys = _keys(value)
        if step.text in keys:
            return UsageError(what, why="it is a key", help=f"--py \"{done}['{step.text}']\"")
        return _nearest(what, step.text, list(_attributes(value)) or keys)
    keys = _keys(value) or list(_held(value))
    if keys:
        return _nearest(f"{done} (a {kind}) has no item {step}", step.text, keys)
    items = _sequence(value)
    size = f"; it has {len(items)} items" if items is not None else ""
    return UsageError(f"{done} (a {kind}) has no item {step}{size}", help=f"see what it is: --py {done}")


def chosen_frames(session: Session, thread: TargetThread, wanted: str | None) -> list[PythonFrame] | None:
    """The frames to look in: those that ``wanted`` means, a number counted from the innermost one or a function; else
    all of them, from the one on that the user has selected in the debugger. None where he selected none.

    Raises UsageError.
    """
    if wanted is None:
        pointer = session.target.memory.selected_stack_pointer()
        if pointer is None:
            return None
    placed = python_frames_of(session, session.threads.of(thread))
    frames = [source for _, source in placed]
    if wanted is None:
        stack = session.stacks.of(thread).frames
        level = next((number for number, frame in enumerate(stack) if frame.sp == pointer), 0)
        start = next((at for at, (frame, _) in enumerate(placed) if frame.level >= level), 0)
        return [*frames[start:], *frames[:start]]
    place = number(wanted)
    if place is not None:
        found = frames[place : place + 1]
    else:
        found = [frame for frame in frames if wanted in (frame.function, frame.function.rpartition(".")[2])]
    if found:
        return found
    names = list(dict.fromkeys(f"{number} ({frame.function})" for number, frame in enumerate(frames)))
    raise UsageError(
        f"the thread has no Python frame {wanted}",
        why=f"its frames are {', '.join(names[:_NAMES_SHOWN])}" if names else "it runs no Python code",
        help="--frame N counts from the innermost one, 0; --frame FUNCTION takes its name",
    )


def _nearest(what: str, name: str, names: Sequence[str]) -> UsageError:
    near = words_like(name, names, _NAMES_SHOWN, 0.65)
    shown = list(dict.fromkeys([*near, *names]))[:_NAMES_SHOWN]
    why = f"did you mean {' or '.join(near)}?" if near else "it may be in another thread, or not assigned yet"
    return UsageError(what, why=why, help=f"there is: {', '.join(shown)}" if shown else "there are no names at all")
