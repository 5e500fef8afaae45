"""Ctrl+C while a command of ours runs. LLDB only notes it, and leaves it to the command to ask.

A command that reads is ended by KeyboardInterrupt, as in gdb; one that lets the process run has it stopped.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lldb

_PERIOD = 0.05


class Interruption:
    """Asks LLDB, in a thread of its own, whether the user wants the running command to end."""

    def __init__(self, debugger: lldb.SBDebugger) -> None:
        self._interpreter = debugger.GetCommandInterpreter()
        self._stop: Callable[[], None] | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self.happened = False

    def begin(self) -> None:
        """A command begins, in the calling thread."""
        self._is_over.clear()
        self.happened = False
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The command has ended; idempotent. A KeyboardInterrupt may come just behind."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """While LLDB lets the process run nothing can be raised: ``stop`` is called instead."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def _watch(self, command: int) -> None:
        while not self._is_over.wait(_PERIOD):
            if self._interpreter.WasInterrupted():
                self.happened = True
                stop = self._stop
                if stop is not None:
                    stop()
                else:
                    _raise_in(command)
                return


def _raise_in(thread: int) -> None:
    """KeyboardInterrupt at the thread's next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
