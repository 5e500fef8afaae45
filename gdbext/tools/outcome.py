"""The result of a command, and the boundary at which every failure becomes a message."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gdbext import log
from gdbext.engine.targets.budget import ANY_SOURCE, make_room, memory_error
from gdbext.engine.vocabulary import ErrorReport
from gdbext.errors import GdbextError
from gdbext.render import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Outcome:
    """The result of a command: texts for standard output and standard error, and the exit status."""

    __slots__ = ("error", "output", "status")

    def __init__(self, status: int, output: str = "", error: str = "") -> None:
        self.status = status
        self.output = output
        self.error = error

    def encode(self) -> bytes:
        """The bytes that a debugger sends to the launcher: a line with status and lengths, then both texts."""
        output, error = (text.encode("utf-8", "backslashreplace") for text in (self.output, self.error))
        return b"gdbext-result %d %d %d\n" % (self.status, len(output), len(error)) + output + error

    @classmethod
    def decode(cls, data: bytes) -> Outcome | None:
        """The inverse of encode(); None if the data is incomplete."""
        head, _, body = data.partition(b"\n")
        words = head.split()
        if len(words) != 4 or words[0] != b"gdbext-result":
            return None
        status, length, rest = (int(word) for word in words[1:])
        if len(body) != length + rest:
            return None
        return cls(status, body[:length].decode(), body[length:].decode())


def guard(name: str, argv: Sequence[str], work: Callable[[], Outcome]) -> Outcome:
    """The outcome of ``work``, or of its failure: every exception becomes a message, except SystemExit and the
    exceeded limits of an inspection."""
    interrupted = GdbextError("interrupted", why="Ctrl+C, or the end of --timeout; the process was not changed")
    try:
        return work()
    except GdbextError as error:
        return failure(name, argv, error)
    except KeyboardInterrupt:
        return failure(name, argv, interrupted)
    except MemoryError:
        pass  # the objects that the error holds must be freed before it is reported
    except Exception as error:
        # CPython before 3.12 turns what a signal handler raises while a class is created into a RuntimeError, since it
        # leaves __set_name__ (type_new_set_names, typeobject.c).
        cause = error.__cause__ if isinstance(error, RuntimeError) else None
        if cause is None or isinstance(cause, Exception):
            return failure(name, argv, _unexpected(error))
        if not isinstance(cause, KeyboardInterrupt):
            raise cause from None
        return failure(name, argv, interrupted)
    make_room()
    return failure(name, argv, memory_error(ANY_SOURCE))


def interruption(end: BaseException, state: str = "") -> GdbextError:
    """The error for a command that KeyboardInterrupt or SystemExit (``end``) interrupted. ``state``: a sentence on the
    process that was examined, "" for none."""
    why = "Ctrl+C" if isinstance(end, KeyboardInterrupt) else "a signal asked this command to end"
    return GdbextError("interrupted", why=why, help=state)


def failure(name: str, argv: Sequence[str], error: GdbextError) -> Outcome:
    """The outcome of the command ``name`` that failed: the error as text and, with --json, as a document."""
    output = ""
    if "--json" in argv:
        from gdbext.diagnosis.report import Report, json_report  # programs that make no report need none of it

        output = json_report.render(Report(name, None, errors=(ErrorReport.of(error, name),)))
    return Outcome(error.exit_status, output, error_text(error))


def error_text(error: GdbextError) -> str:
    """The error in words: what happened, why it can happen and the next step, a line each."""
    lines = [error.what]
    if error.why:
        lines.append(f"  why: {error.why}")
    if error.help:
        lines.append(f"  try: {error.help}")
    return "\n".join(escape(line) for line in "\n".join(lines).split("\n"))


def _unexpected(error: Exception) -> GdbextError:
    """The error that reports a fault of gdbext to its user, with the traceback if GDBEXT_DEBUG is set."""
    what = f"internal error: {type(error).__name__}: {error}"
    if not log.is_wanted():
        return GdbextError(
            what,
            why="this is a bug in gdbext, or in the debugger; the process was not changed",
            help="run it again with GDBEXT_DEBUG=1 in the environment, and report the traceback",
        )
    import traceback  # 4 ms, for faults of gdbext alone

    return GdbextError(what, why=traceback.format_exc(), help=f"report this, with Python {sys.version.split()[0]}")
