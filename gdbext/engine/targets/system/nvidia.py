"""NVIDIA devices: NVML's figures, Xid errors of the kernel's log, open device files; all optional.

NVML is a library of the driver, which may not answer: a child of ours asks it, is killed by an alarm, and abandoned if
not even that kills it. The examined process is not touched. Functions, structures and numbers: nvml.h (CUDA 12 and 13),
as the package nvidia-ml-py declares them.
"""

from __future__ import annotations

import ctypes
import json
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats import open_nonblocking
from gdbext.engine.targets.live import supervision

if TYPE_CHECKING:
    from typing import Union

    _Unsigned = Union[type[ctypes.c_uint], type[ctypes.c_ulonglong]]

LIBRARY = "libnvidia-ml.so.1"
_SECONDS = 2
"""Seconds that the driver is given."""
_MOST_DEVICES, _TEXT = 64, 96
_KERNEL_LOG = "/dev/kmsg"
_MOST_RECORDS, _RECORD, _MOST_XIDS = 100_000, 8192, 8
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(.*)")
_FILE = re.compile(r"/dev/nvidia(?:\d+|ctl|-uvm|-modeset|-caps/.+)")
_BUSY, _LITTLE_POWER = 90, 0.35
"""Percentage of the time in which kernels ran; part of the power limit below which they do not compute much."""


class NvidiaFigures(NamedTuple):
    """NVML's figures of one device; None: unknown by this driver, for this device, or under MIG."""

    number: int
    """NVML's number, which CUDA_VISIBLE_DEVICES does not change: it differs from PyTorch's if that is set."""
    name: str
    minor: int | None
    """The number of its file, /dev/nvidia0."""
    mig: bool | None
    busy_percent: int | None
    """The share of about the last second in which a kernel ran."""
    memory_busy_percent: int | None
    milliwatts: int | None
    limit_milliwatts: int | None
    sm_mhz: int | None
    memory_mhz: int | None
    memory_used: int | None
    memory_total: int | None
    uncorrected_errors: int | None
    """ECC errors since the driver was loaded."""

    @property
    def file(self) -> str:
        """Its device file: ``/dev/nvidia0``."""
        return f"/dev/nvidia{self.minor}"

    @property
    def spins(self) -> bool | None:
        """A kernel runs nearly all the time with little power, as one that spins does; None if unknown."""
        if self.busy_percent is None or self.milliwatts is None or not self.limit_milliwatts:
            return None
        return self.busy_percent >= _BUSY and self.milliwatts <= _LITTLE_POWER * self.limit_milliwatts


class NvidiaFacts(NamedTuple):
    """What NVML, the kernel's log and /proc say about a process's devices."""

    driver: str
    """The driver's version, "" if unknown."""
    figures: tuple[NvidiaFigures, ...]
    xids: tuple[str, ...]
    """The last Xid errors of the kernel's log, as the driver wrote them."""
    files: tuple[str, ...]
    """Device files that the process has open."""
    problems: tuple[str, ...]
    """What could not be read, and why."""


def read_nvidia(files: Iterable[str], library: str = LIBRARY, kernel_log: str = _KERNEL_LOG) -> NvidiaFacts:
    """The facts about the devices whose files are among ``files``, which the process has open; about all devices if
    none is."""
    problems: list[str] = []
    opened = tuple(sorted(filter(_FILE.fullmatch, files)))
    driver, figures = _read_figures(library, problems)
    of_process = tuple(device for device in figures if device.file in opened)
    return NvidiaFacts(driver, of_process or figures, _read_xids(kernel_log, problems), opened, tuple(problems))


# --- NVML, in a child ---------------------------------------------------------------------------


def _read_figures(library: str, problems: list[str]) -> tuple[str, tuple[NvidiaFigures, ...]]:
    """(the driver's version, each device's figures), asked by a child of ours; adds to ``problems``."""
    answer = supervision.run_in_child(lambda: _ask_nvml(library), _SECONDS)
    if not answer:
        problems.append(f"NVML: the driver did not answer within {_SECONDS} seconds")
        return "", ()
    document = json.loads(answer)
    if document["problem"]:
        problems.append(f"NVML: {document['problem']}")
    return document["driver"], tuple(NvidiaFigures(*row) for row in document["devices"])


def _ask_nvml(library: str) -> bytes:
    """The answers as JSON. Runs in the child, which an alarm kills if the driver blocks it, or loops."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(_SECONDS)
    driver, devices, problem = "", [], ""
    try:
        nvml = _Nvml(library)
        driver = nvml.driver()
        devices = list(nvml.devices())
    except (OSError, AttributeError) as error:
        problem = str(error)
    return json.dumps({"driver": driver, "devices": devices, "problem": problem}).encode()


class _Nvml:
    """The library, loaded and initialized. Raises OSError, AttributeError if it lacks a function that all have."""

    def __init__(self, library: str) -> None:
        """``library``: file name of libnvidia-ml."""
        self._library = ctypes.CDLL(library)
        status = self._library.nvmlInit_v2()
        if status:
            raise OSError(f"nvmlInit failed with {status}")

    def driver(self) -> str:
        """The driver's version, "" if unknown."""
        text = ctypes.create_string_buffer(_TEXT)
        failed = self._library.nvmlSystemGetDriverVersion(text, _TEXT)
        return "" if failed else text.value.decode("ascii", "replace")

    def devices(self) -> Iterator[tuple[object, ...]]:
        """The members of NvidiaFigures for each device."""
        count = ctypes.c_uint()
        status = self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if status:
            raise OSError(f"nvmlDeviceGetCount failed with {status}")
        for number in range(min(count.value, _MOST_DEVICES)):
            device = ctypes.c_void_p()
            if not self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(device)):
                yield (number, *self._device(device))

    def _device(self, device: ctypes.c_void_p) -> Iterator[object]:
        """The members of NvidiaFigures but ``number``, in their order."""
        name = ctypes.create_string_buffer(_TEXT)
        failed = self._call("nvmlDeviceGetName", device, name, _TEXT)
        yield "" if failed else name.value.decode("utf-8", "replace")
        yield from self._numbers("nvmlDeviceGetMinorNumber", device)
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        failed = self._call("nvmlDeviceGetMigMode", device, ctypes.byref(current), ctypes.byref(pending))
        yield None if failed else bool(current.value)
        yield from self._numbers("nvmlDeviceGetUtilizationRates", device, count=2)
        yield from self._numbers("nvmlDeviceGetPowerUsage", device)
        yield from self._numbers("nvmlDeviceGetEnforcedPowerLimit", device)
        yield from self._numbers("nvmlDeviceGetClockInfo", device, 1)  # NVML_CLOCK_SM
        yield from self._numbers("nvmlDeviceGetClockInfo", device, 2)  # NVML_CLOCK_MEM
        total, _, used = self._numbers("nvmlDeviceGetMemoryInfo", device, count=3, kind=ctypes.c_ulonglong)
        yield from (used, total)
        # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC: since the driver was loaded
        yield from self._numbers("nvmlDeviceGetTotalEccErrors", device, 1, 0, kind=ctypes.c_ulonglong)

    def _numbers(
        self, function: str, *arguments: object, count: int = 1, kind: _Unsigned = ctypes.c_uint
    ) -> list[int] | list[None]:
        """The ``count`` numbers that the function writes through its last pointer; None for each if it fails, or this
        library lacks it."""
        values = (kind * count)()
        failed = self._call(function, *arguments, ctypes.byref(values))
        return [None] * count if failed else list(values)

    def _call(self, name: str, *arguments: object) -> int:
        """The status that the function returns, 0 for success; 1 if this library lacks it."""
        function = getattr(self._library, name, None)
        return 1 if function is None else int(function(*arguments))


# --- the kernel's log ---------------------------------------------------------------------------


def _read_xids(path: str, problems: list[str]) -> tuple[str, ...]:
    """The driver's last lines "NVRM: Xid (PCI:0000:41:00): 79, …". Each read gives one record and never blocks."""
    xids: list[str] = []
    try:
        with open(path, "rb", buffering=0, opener=open_nonblocking) as log:
            for _ in range(_MOST_RECORDS):
                with suppress(BrokenPipeError):  # records were overwritten meanwhile
                    record = log.read(_RECORD)
                    if not record:  # None: the end of what was logged
                        break
                    xids += [match.group(0).strip() for match in _XID.finditer(record.decode("utf-8", "replace"))]
    except OSError as error:
        problems.append(f"the kernel's log, for Xid errors: {error.strerror}")
    return tuple(xids[-_MOST_XIDS:])
