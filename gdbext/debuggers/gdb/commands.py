"""The commands inside gdb: one gdb.Command per entry of the registry, and the session they share at a stop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gdb

from gdbext.commands import registry

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

_CHANGES = ("stop", "cont", "exited", "memory_changed", "register_changed", "new_objfile", "clear_objfiles",
            "inferior_deleted", "inferior_call")  # fmt: skip
"""gdb's events after which what was read may be wrong. Older gdbs lack some."""


class Sessions:
    """The session of the current stop. Dropped as soon as gdb tells that the process ran or was changed."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._key: tuple[Any, ...] = ()
        self._connected = False

    def get(self) -> Session:
        """The session of gdb's selected inferior. Raises TargetError and its relatives."""
        from gdbext.debuggers.gdb.target import current_target
        from gdbext.inspection.session import Session

        self._connect()
        key = _stop_key()
        if self._session is None or key != self._key:
            self.forget()
            self._session = Session(current_target())
            self._key = key
        return self._session

    def forget(self, _: object = None) -> None:
        """Drop what was read; called by gdb's events."""
        session, self._session = self._session, None
        if session is not None:
            session.target.close()

    def close(self) -> None:
        """Leave no trace in gdb."""
        self.forget()
        if self._connected:
            for event in _events():
                event.disconnect(self.forget)
            self._connected = False

    def _connect(self) -> None:
        if not self._connected:
            for event in _events():
                event.connect(self.forget)
            self._connected = True


def _events() -> list[Any]:
    return [getattr(gdb.events, name) for name in _CHANGES if hasattr(gdb.events, name)]


def _stop_key() -> tuple[Any, ...]:
    """What tells one target from another, where no event does (a core replaced by another, another inferior)."""
    inferior = gdb.selected_inferior()
    connection = getattr(inferior, "connection", None)
    number = connection.num if connection is not None else 0
    return inferior.num, inferior.pid, number, gdb.parameter("sysroot")


class DispatchCommand(gdb.Command):  # type: ignore[misc]
    """One command of the registry. Its ``__doc__`` is what gdb's help shows; gdb copies it here and now."""

    def __init__(self, entry: registry.Entry, sessions: Sessions, documentation: str) -> None:
        self._entry = entry
        self._sessions = sessions
        self.__doc__ = documentation
        super().__init__(entry.name, gdb.COMMAND_USER)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Called by gdb. Failures become gdb.GdbError, or with --json a document."""
        self.dont_repeat()
        argv = gdb.string_to_argv(argument)
        outcome = registry.execute(self._entry.name, argv, self._session, _terminal(from_tty))
        try:
            if outcome.output:
                _write(outcome.output, gdb.STDOUT)
        except KeyboardInterrupt:  # the user ended gdb's pager
            return
        if outcome.error:
            if not outcome.output:
                raise gdb.GdbError(outcome.error)
            _write(outcome.error + "\n", gdb.STDERR)

    def _session(self) -> Session:
        """The current session; a live command may come before the program was started."""
        if self._entry.live and gdb.selected_inferior().pid == 0:
            from gdbext.inspection.session import Session
            from gdbext.live.no_process import NoProcess

            return Session(NoProcess())
        return self._sessions.get()

    def complete(self, text: str, word: str) -> Sequence[str]:
        """Options, and thread numbers after --thread."""
        words = text.split()
        current = "" if not words or text[-1:].isspace() else words.pop()
        if words[-1:] == ["--thread"]:
            candidates = [str(thread.num) for thread in gdb.selected_inferior().threads()]
        else:
            candidates = registry.parser_of(self._entry).option_names()
        # gdb completes its own idea of the last word, which begins after the option's dashes.
        dropped = len(current) - len(word) if current.endswith(word) else 0
        return [name[dropped:] for name in sorted(candidates) if name.startswith(current)]


def _terminal(from_tty: bool) -> registry.Terminal:
    color = from_tty and sys.__stdout__ is not None and sys.__stdout__.isatty() and bool(gdb.parameter("style enabled"))
    return registry.Terminal(color, gdb.parameter("width") or 120)


def _write(text: str, stream: int) -> None:
    try:
        gdb.write(text, stream)
    except (UnicodeError, gdb.error):  # gdb's host charset (LANG=C) has no such character
        gdb.write(text.encode("ascii", "backslashreplace").decode(), stream)


_sessions = Sessions()


def load() -> None:
    """Define the commands, with a line of help each; the whole help follows with the first prompt.

    Making it takes the import of every command (0.1 s), which nobody should pay who only runs one in a script.
    """
    for entry in registry.available():
        DispatchCommand(entry, _sessions, f"{entry.summary}\nSee: {entry.name} --help")
    if hasattr(gdb.events, "before_prompt"):
        gdb.events.before_prompt.connect(_complete_help)


def unload() -> None:
    """Prepare for being replaced by a newer version of this module."""
    _sessions.close()
    _forget_prompt()


def _complete_help() -> None:
    _forget_prompt()
    for entry in registry.available():
        DispatchCommand(entry, _sessions, registry.help_text(entry))


def _forget_prompt() -> None:
    try:
        gdb.events.before_prompt.disconnect(_complete_help)
    except (AttributeError, ValueError):  # an old gdb; not connected any more
        return
