"""Caches the paths of walked stacks, since threads of a pool are often in the same functions.

On such a path each frame has the same distance from the innermost stack pointer. A few reads give the words of all its
frames, one comparison proves that their return addresses are the same; the other registers follow.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from gdbext.engine.unwind.frame_steps import FrameStep, FrameSteps, NativeFrame
from gdbext.engine.unwind.unwind_row import MASK, CompiledRow, Registers
from gdbext.errors import MemoryFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gdbext.engine.unwind.unwind_row import ReadMemory

_LEAST_FRAMES = 4  # number of frames whose unwinding costs as much as a failed comparison
_MOST_FRAMES = 256
_ORIGIN = 1 << 40  # an imaginary stack pointer, used to compute which stack word each register comes from


class KnownPath:
    """A path of frames with plain call frame information. The source of a register is an int: the index of a word of
    the path, or, if negative, -1 - the index of an initial register."""

    def __init__(
        self, steps: Sequence[FrameStep], frames: Sequence[NativeFrame], registers: Registers, pc: str, sp: str
    ) -> None:
        """``registers`` are those of the innermost frame, ``pc`` and ``sp`` the names of two of them."""
        self.sp = sp
        self.initial = tuple(registers)  # names of the innermost frame's registers
        self._names = frozenset(registers)
        self.pcs = tuple(frame.pc for frame in frames)
        self.steps = steps
        self.distances = (0, *(frame.cfa - registers[sp] for frame in frames))
        """Distances from the innermost stack pointer to that of each frame."""
        symbols = [{name: -1 - index for index, name in enumerate(registers)}]
        """For each frame, and the last one's caller: register → address of its word, if the innermost stack pointer
        were _ORIGIN, or negative as a source."""
        for step, distance in zip(steps, self.distances[1:]):
            assert step.row
            symbols.append(step.row.caller(symbols[-1], _addresses, _ORIGIN + distance)[1])
        slots = sorted({at for sources in symbols for name, at in sources.items() if at >= 0 and name != sp})
        index = {at: position for position, at in enumerate(slots)}
        self.sources = [
            [(name, index.get(at, at)) for name, at in sources.items() if name != sp] for sources in symbols
        ]
        self._returns = [index[sources[pc]] for sources in symbols[1:]]
        self._reads = tuple(_reads_of(slots))
        self._checks: list[tuple[int, int, int]] = []
        """(level, source, distance): if a CFA is not relative to the stack pointer, its register, from ``source``, must
        be the innermost stack pointer plus ``distance``."""
        for level, step in enumerate(steps):
            row = step.row
            if isinstance(row, CompiledRow) and row.cfa_register != sp:
                source = symbols[level][row.cfa_register]
                distance = self.distances[level + 1] - row.cfa_offset
                self._checks.append((level, index.get(source, source), distance))

    def follow(self, registers: Registers, read: ReadMemory) -> KnownStack | None:
        """The innermost frames of the stack with these registers that are on this path; None if they are too few."""
        if registers.keys() != self._names:
            return None
        start = registers[self.sp]
        words: tuple[int, ...] = ()
        try:
            for distance, size, form in self._reads:
                words += form.unpack(read(start + distance, size))
        except MemoryFault:
            return None
        count = len(self.pcs)  # the last frame may have another caller
        for level, (at, pc) in enumerate(zip(self._returns, self.pcs[1:])):
            if words[at] != pc:
                count = level + 1
                break
        for level, source, distance in self._checks:
            value = words[source] if source >= 0 else registers[self.initial[-1 - source]]
            if value != (start + distance) & MASK:
                count = min(count, level)
                break
        return KnownStack(self, registers, words, start, count) if count >= _LEAST_FRAMES else None


def _reads_of(slots: Sequence[int]) -> Iterator[tuple[int, int, struct.Struct]]:
    """(distance from the stack pointer, size, layout) of the reads that give all words at ``slots``, ascending
    addresses."""
    first, form, end = slots[0], "<", slots[0]
    for at in slots:
        if at - end > 2048:  # no page is read that has none of the words
            yield first - _ORIGIN, end - first, struct.Struct(form)
            first, form, end = at, "<", at
        form += f"{at - end}xQ"
        end = at + 8
    yield first - _ORIGIN, end - first, struct.Struct(form)


class KnownStack:
    """The innermost ``count`` frames of a stack, which are those of ``path``."""

    def __init__(self, path: KnownPath, initial: Registers, words: tuple[int, ...], start: int, count: int) -> None:
        """``start``: the innermost stack pointer."""
        self.count = count
        self._path = path
        self._initial = initial
        self._words = words
        self._start = start

    @property
    def is_whole(self) -> bool:
        return self.count == len(self._path.steps)

    def registers(self, level: int) -> Registers:
        """The registers of frame ``level``, at most that of the last frame's caller."""
        path, names, initial, words = self._path, self._path.initial, self._initial, self._words
        values = {name: words[at] if at >= 0 else initial[names[-1 - at]] for name, at in path.sources[level]}
        values[path.sp] = initial[path.sp] + path.distances[level]
        return values

    def frames(self) -> list[NativeFrame]:
        """The frames, whose registers are computed on demand."""
        path, start, registers = self._path, self._start, self.registers
        pointers = [start + distance for distance in path.distances[: self.count + 1]]
        return [
            NativeFrame(
                level, pc, sp, registers, cfa, "cfi" if level else "registers", False, step.lookup_pc, step.module
            )
            for level, (pc, sp, cfa, step) in enumerate(zip(path.pcs, pointers, pointers[1:], path.steps))
        ]


class KnownPaths:
    """The paths of one process. A path is made when a second stack begins at the same program counter."""

    def __init__(self, steps: FrameSteps, pc: str, sp: str) -> None:
        """``pc`` and ``sp`` are the names of these registers."""
        self._steps = steps
        self._pc, self._sp = pc, sp
        self._walked: dict[int, tuple[Sequence[NativeFrame], Registers]] = {}
        self._paths: dict[int, list[KnownPath]] = {}

    def match(self, registers: Registers, read: ReadMemory, limit: int) -> KnownStack | None:
        """The innermost frames of the stack with these registers by the path with the most of them; None if no path
        matches. ``limit``: most frames that the caller wants."""
        pc = registers.get(self._pc, 0)
        walked = self._walked.pop(pc, None)
        if walked:
            self._add_path(pc, *walked)
        best = None
        paths = self._paths.get(pc, []) if limit > _MOST_FRAMES else []
        for index, path in enumerate(paths):
            stack = path.follow(registers, read)
            if stack and (not best or stack.count > best.count):
                best = stack
                if stack.is_whole:
                    if index:  # one place on, so that the usual ones come first
                        paths[index - 1 : index + 1] = path, paths[index - 1]
                    break
        return best

    def learn(self, registers: Registers, frames: Sequence[NativeFrame]) -> None:
        """Remember a walked stack, if no known path has all of it."""
        pc = registers.get(self._pc, 0)
        if len(self._paths.get(pc, ())) < 8:
            self._walked[pc] = frames[: _MOST_FRAMES + 1], registers

    def _add_path(self, pc: int, frames: Sequence[NativeFrame], registers: Registers) -> None:
        """Add the path of a stack, up to the first frame without plain call frame information."""
        steps = []
        for level, frame in enumerate(frames[:-1]):
            step = self._steps.at(frame.pc, exact=not level)
            if not isinstance(step.row, CompiledRow) or frames[level + 1].how != "cfi":
                break
            steps.append(step)
        if len(steps) >= _LEAST_FRAMES:
            path = KnownPath(steps, frames[: len(steps)], registers, self._pc, self._sp)
            self._paths.setdefault(pc, []).append(path)


def _addresses(address: int, size: int) -> bytes:
    """Reads imaginary memory in which each word has its own address as value."""
    return struct.pack(f"<{size // 8}Q", *range(address, address + size, 8))
