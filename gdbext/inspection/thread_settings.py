"""What one thread has set for itself: grad mode, autocast, modes, hooks, callbacks, profiler, default device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.model.dispatch.dispatch_state import AutogradFlags, DispatchState
from gdbext.model.sections.settings_section import SettingValue
from gdbext.torch.python_names import DEVICE_MODE
from gdbext.torch.state.thread_variable import ThreadVariables

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Thread
    from gdbext.torch.state.recorded_functions import RecordedFunctions
    from gdbext.torch.state.thread_counts import ThreadCounts

Described = dict[str, SettingValue]
_FLAGS = AutogradFlags()
"""As a new thread has them."""
_DEVICE_SIZE = 2


class ThreadSettings:
    """Reads the threads of one session."""

    def __init__(self, session: Session, recorded: RecordedFunctions, counts: ThreadCounts) -> None:
        """Raises NotTorch, LayoutError."""
        self._session = session
        self._recorded = recorded
        self._counts = counts
        self._states = session.dispatch_states
        self._variables = ThreadVariables(session.memory, session.symbolizer)

    def changed(self, thread: Thread) -> Described:
        """What differs from a new thread; "unknown" has what could not be read. Empty for nothing of either."""
        try:
            pointer = self._session.memory.architecture.thread_pointer(thread.registers())
        except GdbextError as error:
            return {"unknown": (error.what,)}
        state = self._states.read(pointer)
        own = self._variables.of(pointer)
        found = dict(_of_dispatch(state))
        unknown = list(state.problems)
        readers: dict[str, Callable[[], SettingValue]] = {
            "saved_tensor_hooks": lambda: tuple(map(self._pair, self._recorded.saved_tensor_hooks(own))),
            "saved_tensor_hooks_disabled": lambda: self._recorded.saved_tensor_hooks_disabled(own),
            "record_function_callbacks": lambda: self._recorded.thread_callbacks(own),
            "profiler": lambda: self._recorded.profiler(own),
        }
        for name, read in readers.items():
            try:
                value = read()
            except GdbextError as error:
                unknown.append(f"{name}: {error.what}")
                continue
            if value:
                found[name] = value
        if unknown:
            found["unknown"] = tuple(unknown)
        return found

    def _pair(self, functions: tuple[int, int]) -> SettingValue:
        return tuple(map(self._function, functions))

    def _function(self, address: int) -> str:
        """A Python function with its place."""
        python = self._session.python
        found = python.functions.source(address) if python is not None else None
        if found is None:
            return f"the Python object at {address:#x}"
        return f"{found.qualname} ({found.place})" if found.place else found.qualname

    def default_device(self, pointer: int) -> str:
        """torch.get_default_device() of the thread with its control block there, without the index of a device that
        has none. Raises GdbextError."""
        python = self._session.python
        for mode in reversed(self._states.function_modes(pointer)):
            if python is None or python.objects.type_of(mode).name != DEVICE_MODE:
                continue
            device = python.dicts.attribute(mode, "device")
            if device:
                return self._device(device + python.layout.size("PyObject"))
        return "cpu"

    def _device(self, address: int) -> str:
        """The c10::Device there as Python writes it."""
        from gdbext.torch.tensors.tensor_fields import TensorFields
        from gdbext.torch.tensors.vtables import ClassNames

        session = self._session
        classes = ClassNames(session.memory, session.symbolizer)
        return TensorFields(session.memory, session.layout, classes).device_at(address)


def _of_dispatch(state: DispatchState) -> Iterator[tuple[str, SettingValue]]:
    """What is not as a new thread has it."""
    for name, value in vars(state.autograd).items() if state.autograd is not None else ():
        if value is not None and value != getattr(_FLAGS, name):
            yield name, value
    autocast = {each.device: each.dtype for each in state.autocast or () if each.enabled}
    if autocast:
        yield "autocast", autocast
    if state.autocast_cache is False:
        yield "autocast_cache", False
    if state.torch_function not in (None, "enabled"):
        yield "torch_function", state.torch_function
    if state.torch_function_modes:
        yield "torch_function_modes", state.torch_function_modes
    if state.python_modes:
        yield "torch_dispatch_modes", tuple(each.name for each in state.python_modes)
    if state.functorch:
        yield "functorch", tuple(each.transform for each in state.functorch)
