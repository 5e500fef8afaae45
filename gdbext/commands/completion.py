"""What the word that a user is typing may become: options and their values, threads, operators, dispatch keys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gdbext.commands import registry
from gdbext.commands.options import names_file
from gdbext.errors import GdbextError
from gdbext.torch.registry.operator_names import continuations

if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Callable, Iterable, Sequence

    from gdbext.inspection.session import Session

_OPERATORS = frozenset({"op"})
_KEYS = frozenset({"key", "has"})
_KEYSETS = frozenset({"keyset", "value"})
_THREADS = frozenset({"thread"})
"""Arguments by their name in the parsers, where what they may be is for the target to say."""


class Completer:
    """Asks the target only where nothing else knows: ``thread_numbers`` gives the debugger's, ``session`` the current
    session, and may raise GdbextError."""

    def __init__(self, thread_numbers: Callable[[], Sequence[int]], session: Callable[[], Session]) -> None:
        self._thread_numbers = thread_numbers
        self._session = session

    def completions(self, entry: registry.Entry, words: Sequence[str], current: str) -> list[str]:
        """What ``current`` may become behind ``words``, in order; nothing where the target does not say."""
        parser = registry.parser_of(entry)
        action = parser.awaited(words)
        options = [] if action is not None and action.option_strings else parser.option_names()
        if current.startswith("-"):
            return [name for name in options if name.startswith(current)]
        values = sorted({value for value in self._values(entry, action, current) if value.startswith(current)})
        return values if current else [*values, *options]

    def _values(self, entry: registry.Entry, action: Action | None, current: str) -> Iterable[str]:
        if action is None:
            return ()
        if action.choices is not None:
            return map(str, action.choices)
        fixed = getattr(registry.module_of(entry), "COMPLETIONS", {}).get(action.dest)
        if fixed is not None:
            return tuple(fixed)
        if names_file(action):
            return _files(current)
        try:
            return self._of_the_target(action.dest, current)
        except GdbextError:
            return ()

    def _of_the_target(self, dest: str, current: str) -> Iterable[str]:
        if dest in _THREADS:
            return map(str, self._thread_numbers())
        if dest in _OPERATORS and current:
            return continuations(self._session().dispatcher.names, current)
        if dest in _KEYS:
            return self._session().dispatch_keys.runtime_keys
        if dest in _KEYSETS and current:
            others = current[: current.rfind(",") + 1]
            return (others + key for key in self._session().dispatch_keys.runtime_keys)
        return ()


def _files(current: str) -> Iterable[str]:
    import glob

    for path in glob.glob(f"{glob.escape(current)}*"):  # noqa: PTH207
        yield f"{path}/" if os.path.isdir(path) else path  # noqa: PTH112
