"""``dispatch-values nan`` of a process that does not run: the operators on its stacks, and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.model.dispatch.argument import ArgumentTensor
from gdbext.torch.registry.operator_names import matcher

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.inspection.threads.arguments import ArgumentReporter
    from gdbext.model.dispatch.dispatch_frame import DispatchFrame


def notes_on_stacks(
    session: Session,
    reporter: ArgumentReporter,
    patterns: Sequence[str],
    is_bad: Callable[[ArgumentTensor], bool],
    what: str,
) -> Iterator[str]:
    """One sentence for each thread inside an operator that is named; ``patterns`` () for any operator. ``what``:
    "NaN" or the like."""
    matchers = [matcher(pattern) for pattern in patterns]
    found = False
    for thread in session.target.threads():
        try:
            frames = tuple(
                frame
                for frame in reporter.frames(session.threads.of(thread).stack)
                if not matchers or any(matches(frame.qualified) for matches in matchers)
            )
        except GdbextError as error:
            yield f"thread {thread.tid} cannot be read: {error.what}"
            continue
        if frames:
            found = True
            yield f"thread {thread.tid}: {_sentence(frames, is_bad, what)}"
    if not found:
        yield f"no thread is inside {' or '.join(patterns) or 'an operator'}"


def _sentence(frames: tuple[DispatchFrame, ...], is_bad: Callable[[ArgumentTensor], bool], what: str) -> str:
    """About the outermost operator that was given such a number."""
    one = f"{'an' if what[0] in 'aeiou' else 'a'} {what}"
    outer: DispatchFrame | None = None
    for frame in reversed(frames):
        bad = [
            argument.name for argument in frame.arguments if any(is_bad(tensor) for tensor in argument.tensors)
        ]
        if bad and outer is None:
            return f"{frame.qualified} was called with {one} in {', '.join(bad)}"
        if bad and outer is not None:
            return f"{frame.qualified} has {one} in {', '.join(bad)}, and {outer.qualified} around it was given none"
        outer = frame
    names = dict.fromkeys(frame.qualified for frame in frames)
    return f"no {what} among the arguments of {', '.join(names)}"
