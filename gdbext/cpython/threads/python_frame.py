"""Python frames as they were read: one frame, the frames of one evaluation loop, the whole stack of a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.errors import BadData
from gdbext.model.record import Record
from gdbext.process.memory import Memory

FRAME_LIMIT = 1_000_000
"""Most Python frames of one thread that are walked."""


class PythonFrame(Record):
    """One Python frame.

    ``function`` is the qualified name where the version keeps it, else the plain name, ``line`` the current line (None
    where the compiler gave none), ``address`` that of the PyFrameObject or _PyInterpreterFrame, ``code`` that of its
    code object.
    """

    function: str
    file: str
    line: int | None
    address: int
    code: int


class FrameGroup(list[PythonFrame]):
    """The Python frames that one native evaluation loop runs, innermost first.

    ``anchor`` is an address inside that loop's native stack frame, None where the version keeps nothing there.
    ``cut``: its callers could not be found, so groups that should follow are missing.
    """

    def __init__(self, frames: Sequence[PythonFrame], anchor: int | None, cut: bool = False) -> None:
        super().__init__(frames)
        self.anchor = anchor
        self.cut = cut


class PythonStack(Record):
    """All groups of a thread, innermost first; ``problem`` says why the walk ended early, None if it did not."""

    groups: tuple[FrameGroup, ...]
    problem: str | None

    @property
    def frames(self) -> list[PythonFrame]:
        """All frames, innermost first."""
        return [frame for group in self.groups for frame in group]


class IncompleteGroup(Exception):
    """Carries what was read of a group before a fault."""

    def __init__(self, group: FrameGroup, problem: str) -> None:
        super().__init__(problem)
        self.group = group
        self.problem = problem


def linked_frames(memory: Memory, address: int, previous_at: int) -> Iterator[int]:
    """Addresses of a linked list of frames; ``previous_at`` is the offset of the link to the caller.

    Raises MemoryFault; BadData for a list without end.
    """
    seen: set[int] = set()
    while address:
        if address in seen:
            raise BadData(f"the frame at {address:#x} is its own caller")
        if len(seen) >= FRAME_LIMIT:
            raise BadData(f"truncated at {FRAME_LIMIT} frames")
        seen.add(address)
        yield address
        address = memory.u64(address + previous_at)


def c_frames(memory: Memory, cframe: int, root: int, previous_at: int) -> Iterator[int]:
    """Addresses of the _PyCFrame (CFrame in 3.10) of each evaluation loop, innermost first, up to the thread state's
    own, ``root``. Each is a local variable of its loop, so it lies inside the loop's native stack frame."""
    for address in linked_frames(memory, cframe, previous_at):
        if address == root:
            return
        yield address
