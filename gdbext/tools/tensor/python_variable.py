"""A Python variable by the name that people write: ``x``, ``self.weight``, ``batch[0]``, ``state["step"]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gdbext.cpython.objects import ITEM_LIMIT, slot_attributes
from gdbext.cpython.objects.object_items import deque_items
from gdbext.cpython.threads.frame_variables import locals_of, namespace_of
from gdbext.diagnosis.report.thread_report import is_users_file
from gdbext.engine.numbers import integer, number
from gdbext.engine.record import Record
from gdbext.errors import GdbextError, UsageError

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime
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


class Step(Record):
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
    while head is not None and at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            break
        attribute, index, *keys = found.groups()
        if attribute is not None:
            steps.append(Step("attribute", attribute))
        elif index is not None:
            steps.append(Step("index", index))
        else:
            steps.append(Step("key", next(key for key in keys if key is not None)))
        at = found.end()
    if head is None or at < len(path):
        raise UsageError(
            f"{path!r} is not the name of a variable",
            why="names, attributes, and indices that are numbers or strings can be read without running the program",
            help="--py x   --py self.weight   --py batch[0]   --py state['step']",
        )
    return head.group(), tuple(steps)


class FoundVariable(Record):
    """An object, and the frame whose variable led to it."""

    address: int
    frame: PythonFrame
    is_global: bool = False

    @property
    def whose(self) -> str:
        """``train.py:8 (step)``; of a global the module's file."""
        line = self.frame.line if self.frame.line is not None else "?"
        return f"{self.frame.file}, global" if self.is_global else f"{self.frame.file}:{line} ({self.frame.function})"


class VariableFinder:
    """Finds variables in the frames of one thread, innermost first; those of ``frames`` where they are given."""

    def __init__(
        self, runtime: PythonRuntime, states: Sequence[ThreadState], frames: Sequence[PythonFrame] | None = None
    ) -> None:
        self._runtime = runtime
        known = (frame for state in states for frame in runtime.frames.stack(state).frames)
        self._frames = list(known if frames is None else frames)

    def find(self, path: str, is_wanted: Callable[[int], bool] = bool) -> FoundVariable:
        """The object, in the innermost frame that has the whole path: many of them have a ``self``. Where some of these
        objects are wanted ones (tensors: an optimizer's own ``loss`` is None), the innermost of those.

        Raises UsageError with the nearest names, MemoryFault, BadData.
        """
        name, steps = parse(path)
        refusal: UsageError | None = None
        first: FoundVariable | None = None
        for variable in self._variables(name):
            try:
                found = variable._replace(address=self._walk(variable.address, name, steps))
            except UsageError as error:
                refusal = refusal or error
                continue
            if is_wanted(found.address):
                return found
            first = first or found
        if first is not None:
            return first
        raise refusal or self._unknown(name)

    def _walk(self, found: int, done: str, steps: Sequence[Step]) -> int:
        """Follow the steps from an object. Raises UsageError."""
        for step in steps:
            following = self._follow(found, step)
            if following is None:
                raise self._no_step(found, done, step)
            found, done = following, f"{done}{step}"
        return found

    def hint(self, path: str, address: int) -> str:
        """A hint at what can be asked of an object that is no tensor."""
        items = self._sequence(address)
        if items is not None:
            return f"it has {len(items)} items: --py '{path}[0]'" if items else "it is empty"
        names = [name for name in self._attributes(address) if not name.startswith("_")]
        if names:
            return f"its attributes are: {', '.join(names[:_NAMES_SHOWN])} (--py {path}.{names[0]})"
        keys = self._keys(address)
        return f"its keys are: {', '.join(keys[:_NAMES_SHOWN])}" if keys else ""

    def _variables(self, name: str) -> Iterator[FoundVariable]:
        """The objects of that name, each once, from the innermost frame on: all frames' own variables first, then
        their modules'."""
        seen: set[int] = set()
        for variables in (self._locals, self._globals):
            for frame in self._frames:
                found = variables(frame).get(name)
                if found and found not in seen:
                    seen.add(found)
                    yield FoundVariable(found, frame, variables == self._globals)

    def _locals(self, frame: PythonFrame) -> dict[str, int]:
        try:
            return locals_of(self._runtime, frame)
        except GdbextError:
            return {}

    def _globals(self, frame: PythonFrame) -> dict[str, int]:
        try:
            namespace = namespace_of(self._runtime, frame)
            return dict(self._named(self._runtime.dicts.items(namespace, _NAMES_READ)))
        except GdbextError:
            return {}

    def _named(self, items: Iterable[tuple[int, int]]) -> Iterator[tuple[str, int]]:
        """Items whose key is a str."""
        for key, value in items:
            try:
                yield self._runtime.objects.text(key, 200), value
            except GdbextError:
                continue

    # --- one step --------------------------------------------------------------------------------

    def _follow(self, address: int, step: Step) -> int | None:
        if step.kind == "attribute":
            return self._attributes(address).get(step.text)
        objects = self._runtime.objects
        if objects.is_dict(address):
            return self._item(address, step)
        items = None if step.kind == "key" else self._sequence(address)
        if items is None:
            return self._module_item(address, step)
        index = integer(step.text)
        return items[index] if -len(items) <= index < len(items) else None

    def _module_item(self, address: int, step: Step) -> int | None:
        """The item of an nn.Sequential, ModuleList, ModuleDict, ParameterList or ParameterDict."""
        held = self._held(address)
        if step.kind == "index" and integer(step.text) < 0:  # they are called by their numbers
            return held.get(str(sum(name.isdecimal() for name in held) + integer(step.text)))
        return held.get(step.text)

    def _sequence(self, address: int) -> Sequence[int] | None:
        objects = self._runtime.objects
        for read in (objects.list_items, objects.tuple_items, lambda at: deque_items(self._runtime, at, ITEM_LIMIT)[1]):
            try:
                return read(address)
            except GdbextError:
                continue
        return None

    def _item(self, address: int, step: Step) -> int | None:
        for key, value in self._runtime.dicts.items(address):
            if self._is_key(key, step):
                return value
        return None

    def _is_key(self, key: int, step: Step) -> bool:
        objects = self._runtime.objects
        if step.kind == "key":
            return objects.text_equals(key, step.text)
        try:
            return objects.integer(key) == integer(step.text)
        except GdbextError:
            return False

    def _keys(self, address: int) -> list[str]:
        """Those keys of a dict that are str; [] for anything else."""
        if not self._runtime.objects.is_dict(address):
            return []
        items = islice(self._runtime.dicts.items(address, _NAMES_READ), _NAMES_READ)
        return [name for name, _ in self._named(items)]

    def _attributes(self, address: int) -> dict[str, int]:
        """The object's own attributes, the fields of a named tuple, and what a torch.nn.Module has in its
        dictionaries."""
        found = self._own_attributes(address)
        for name, value in (*self._fields(address), *self._held(address, found).items()):
            found.setdefault(name, value)
        return found

    def _own_attributes(self, address: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for attributes in (self._runtime.dicts.attributes(address), slot_attributes(self._runtime.objects, address)):
            try:
                found.update(self._named(islice(attributes, _NAMES_READ)))
            except GdbextError:
                continue
        return found

    def _held(self, address: int, attributes: dict[str, int] | None = None) -> dict[str, int]:
        """The members that a torch.nn.Module holds, by name; {} for anything else."""
        attributes = self._own_attributes(address) if attributes is None else attributes
        found: dict[str, int] = {}
        for name in _MODULE_DICTS:
            held = attributes.get(name)
            if held and self._runtime.objects.is_dict(held):
                found.update(self._named(self._runtime.dicts.items(held, _NAMES_READ)))
        return found

    def _fields(self, address: int) -> Iterator[tuple[str, int]]:
        """The items of a named tuple."""
        objects, dicts = self._runtime.objects, self._runtime.dicts
        try:
            items, kind = objects.tuple_items(address, _NAMES_READ), objects.type_of(address)
            where = "__match_args__" if kind.name.startswith(_RETURN_TYPES) else "_fields"
            fields = dicts.inherited_attribute(kind.address, where)
            names = objects.tuple_items(fields) if fields else ()
            yield from ((objects.text(name, 200), item) for name, item in zip(names, items))
        except GdbextError:
            return

    # --- what to say when there is none ----------------------------------------------------------

    def _unknown(self, name: str) -> UsageError:
        if not self._frames:
            return UsageError(
                f"there is no Python variable {name!r}: the thread runs no Python code",
                help="choose a thread with: --thread TID   (all-threads lists them)",
            )
        own_first = sorted(self._frames, key=lambda frame: not is_users_file(frame.file))
        values: dict[str, int] = {}
        for frame in own_first:
            values = {**values, **{known: value for known, value in self._locals(frame).items() if known not in values}}
        for frame in self._frames:
            values.update((known, value) for known, value in self._globals(frame).items() if known not in values)
        names = sorted(
            (known for known in values if not known.startswith("__")), key=lambda each: not self._holds(values[each])
        )
        return _nearest(f"there is no Python variable {name!r} in the frames of this thread", name, names)

    def _holds(self, address: int) -> bool:
        """The object is a tensor, by the name of its class: only for the order of what is suggested."""
        try:
            return self._runtime.objects.type_of(address).name in _TENSORS
        except GdbextError:
            return False

    def _no_step(self, address: int, done: str, step: Step) -> UsageError:
        kind = self._runtime.objects.type_of(address).name
        if step.kind == "attribute":
            what = f"{done} (a {kind}) has no attribute {step.text!r} that can be read"
            keys = self._keys(address)
            if step.text in keys:
                return UsageError(what, why="it is a key", help=f"--py \"{done}['{step.text}']\"")
            return _nearest(what, step.text, list(self._attributes(address)) or keys)
        keys = self._keys(address) or list(self._held(address))
        if keys:
            return _nearest(f"{done} (a {kind}) has no item {step}", step.text, keys)
        items = self._sequence(address)
        size = f"; it has {len(items)} items" if items is not None else ""
        return UsageError(f"{done} (a {kind}) has no item {step}{size}", help=f"see what it is: --py {done}")


def chosen_frames(session: Session, thread: TargetThread, wanted: str | None) -> list[PythonFrame] | None:
    """The frames to look in: those that ``wanted`` means, a number counted from the innermost one or a function; else
    all of them, from the one on that the user has selected in the debugger. None where he selected none.

    Raises UsageError.
    """
    from gdbext.diagnosis.threads.frame_locals import python_frames_of

    if wanted is None:
        pointer = session.target.selected_stack_pointer()
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
    import difflib

    near = difflib.get_close_matches(name, names, _NAMES_SHOWN, 0.65)
    shown = list(dict.fromkeys([*near, *names]))[:_NAMES_SHOWN]
    why = f"did you mean {' or '.join(near)}?" if near else "it may be in another thread, or not assigned yet"
    return UsageError(what, why=why, help=f"there is: {', '.join(shown)}" if shown else "there are no names at all")
