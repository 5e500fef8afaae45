"""``dispatch-info --memory``: storages and bytes of the tensors that Python's garbage collector tracks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.garbage_collector import objects_of
from gdbext.diagnosis.report import Report
from gdbext.engine.vocabulary import Section, byte_size, counted
from gdbext.errors import GdbextError, NotTorch
from gdbext.render import Style, escape
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.torch.assumed_symbols import CUDA
from gdbext.torch.state.cuda_state import CudaAllocator, CudaMemory
from gdbext.torch.torch_symbol import BUFFERS, MODULE_CLASS, PARAMETERS, TENSOR_CLASS

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Hexadecimal

OBJECTS, TENSORS, MODULES = 250_000, 8_000, 2_000
"""Python objects, tensors and modules that are read, at most: half a second of work."""


class HeldMemory(NamedTuple):
    """Number and bytes of the storages of one dtype on one device. A storage that tensors of several dtypes share
    counts for the first one."""

    dtype: str
    device: str
    storages: int
    bytes: int


class LargeStorage(NamedTuple):
    """A storage with one of its tensors."""

    address: Hexadecimal
    bytes: int
    tensor: str
    """``f32[4, 4] cpu``."""
    name: str
    """``Linear.weight`` for a parameter or buffer of a module, else ""."""


@dataclass(frozen=True)
class MemorySection(Section):
    """The memory of the tensors that Python's garbage collector tracks."""

    name: ClassVar[str] = "memory"
    objects: int
    """Python objects that were examined."""
    tensors: int
    """Tensors among them."""
    storages: int
    bytes: int
    held: tuple[HeldMemory, ...]
    """The most bytes first."""
    largest: tuple[LargeStorage, ...]
    truncated: tuple[str, ...]
    problems: tuple[str, ...]
    cuda: tuple[CudaMemory, ...] = ()
    """CUDA devices that were used."""


def read_memory(session: Session) -> MemorySection:
    """Read the memory of all tensors that Python's garbage collector tracks. Raises NotTorch without torch or Python,
    LayoutError, PythonUnsupported."""
    if not session.python or not session.has_torch:
        raise NotTorch("no PyTorch for Python is loaded in this process")
    return _HeldMemory(session).section(objects_of(session.python, OBJECTS, _torch_class))


class _HeldMemory:
    """Collects the tensors and modules of one process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tensors = TensorReporter(session)
        self._fields = self._tensors.fields
        self._storages: dict[int, tuple[int, int, str, str]] = {}
        """Address → (bytes, TensorImpl of one of its tensors, that one's dtype, device)."""
        self._modules: list[PyRef] = []
        self._unread = 0  # tensors whose storage cannot be read

    def section(self, python_objects: Iterator[tuple[PyRef, str] | None]) -> MemorySection:
        """The report. ``python_objects``: (object, its _torch_class()) for each, None for one that cannot be read."""
        objects = tensors = 0
        truncated = []
        for entry in python_objects:
            objects += 1
            if not entry:
                continue
            value, kind = entry
            if kind == TENSOR_CLASS:
                if tensors == TENSORS:
                    truncated.append(f"tensors, truncated at {TENSORS}")
                    break
                tensors += 1
                self._add(value)
            elif len(self._modules) < MODULES:
                self._modules.append(value)
        if objects == OBJECTS:
            truncated.append(f"Python objects, truncated at {OBJECTS}")
        problems = [f"the storage of {counted(self._unread, 'tensor')}"] if self._unread else []
        cuda: tuple[CudaMemory, ...] = ()
        if self._session.modules.named(CUDA):
            try:
                cuda = CudaAllocator(self._session.memory, self._session.symbolizer, self._session.layout).devices()
                if not cuda:
                    problems.append("CUDA's caching allocator has no device: CUDA was not initialized")
            except GdbextError as error:
                problems.append(f"the statistics of CUDA's caching allocator: {error.what}")
        sums: dict[tuple[str, str], tuple[int, int]] = {}  # (dtype, device) → (storages, bytes)
        for size, _, dtype, device in self._storages.values():
            number, total = sums.get((dtype, device), (0, 0))
            sums[dtype, device] = number + 1, total + size
        held = (HeldMemory(*key, *numbers) for key, numbers in sums.items())
        return MemorySection(
            objects=objects,
            tensors=tensors,
            storages=len(self._storages),
            bytes=sum(size for size, *_ in self._storages.values()),
            held=tuple(sorted(held, key=lambda memory: -memory.bytes)),
            largest=tuple(self._largest()),
            truncated=tuple(truncated),
            problems=tuple(problems),
            cuda=cuda,
        )

    def _add(self, value: PyRef) -> None:
        """Add the storage of the tensor behind a Python object, or count it as unread."""
        try:
            tensor = self._tensors.tensor_of(value)
            storage = self._fields.storage(tensor) if tensor is not None else None
            if tensor is None or not storage:
                self._unread += 1
            elif storage.address not in self._storages:
                dtype = self._session.tensors.dtype(tensor)
                self._storages[storage.address] = storage.size, tensor, dtype, storage.device or "unknown"
        except GdbextError:
            self._unread += 1

    def _largest(self) -> Iterator[LargeStorage]:
        """The 20 largest storages. A parameter or buffer is named by its module's class and its name there."""
        chosen = heapq.nlargest(20, self._storages.items(), key=lambda item: item[1][0])
        python_object = self._session.python_object
        objects = {tensor: python_object(self._fields.python_object(tensor)) for _, (_, tensor, _, _) in chosen}
        wanted, names = set(objects.values()), dict[PyRef, str]()
        for module in self._modules:
            for table in (PARAMETERS, BUFFERS):
                for key, value in module[table].items(1000):
                    if value in wanted:
                        names.setdefault(value, f"{module.type}.{key.str(200)}")
        for storage, (size, tensor, _, _) in chosen:
            short = self._session.tensors.read(tensor).short
            yield LargeStorage(storage, size, short, names.get(objects[tensor], ""))


def _torch_class(kind: PyRef) -> str:
    """Classify a Python class by its name and those of its bases: TENSOR_CLASS, MODULE_CLASS or "". The tp_name of a
    class that is written in Python lacks the module, which is among its attributes."""
    for name, base in kind.bases:
        if name == TENSOR_CLASS or (name == MODULE_CLASS and base["__module__"].str(100).startswith("torch.nn.")):
            return name
    return ""


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, tables of dtypes and of the largest storages, CUDA devices, and what is missing."""
    section = report.section(MemorySection)
    tensors, storages = counted(section.tensors, "tensor"), counted(section.storages, "storage")
    least = "at least " if section.truncated else ""
    held = f"{least}{byte_size(section.bytes)} in {storages}"
    yield style(f"{tensors} tracked by Python's garbage collector hold {held}.", "bold")
    for memory in section.held:
        where = f"{escape(memory.dtype)} on {escape(memory.device)}"
        yield f"  {byte_size(memory.bytes):>10}  {memory.storages:6}  {where}"
    if section.largest:
        yield ""
        yield style("The largest", "bold")
    for storage in section.largest:
        name = f"  {escape(storage.name)}" if storage.name else ""
        yield f"  {byte_size(storage.bytes):>10}  {escape(storage.tensor)}{name}"
    for device in section.cuda:
        yield ""
        yield from _cuda(device, style)
    for text in section.truncated:
        yield style(escape(text), "yellow")
    for text in section.problems:
        yield style(f"unknown: {escape(text)}", "yellow")


def _cuda(memory: CudaMemory, style: Style) -> Iterator[str]:
    """The main statistics of a device: bytes now and at the peak; the rest is in the JSON document."""
    yield style(f"CUDA device {memory.device}, by its caching allocator", "bold")
    for name in ("allocated", "requested", "active", "reserved", "inactive_split"):
        now, most = (memory.statistics.get(f"{name}_bytes.all.{which}") for which in ("current", "peak"))
        if now is not None and most is not None:
            yield f"  {byte_size(now):>10}  {name.replace('_', ' ')}, {byte_size(most)} at its peak"
    segments, ooms = (memory.statistics.get(name, 0) for name in ("segment.all.current", "num_ooms"))
    yield f"  {counted(segments, 'segment')}, {counted(ooms, 'out-of-memory error')}"
