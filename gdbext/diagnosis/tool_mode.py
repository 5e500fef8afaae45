"""The ways in which a tool treats the process."""

from __future__ import annotations

from enum import Enum


class Mode(Enum):
    """The treatment of the process by a tool. The values are those of the rows in tools/table.py."""

    STOPPED = "stopped"
    """Reads a stopped target: a process, a core, a recording."""
    RESUMES = "resumes"
    """Lets the process run and observes it, which takes a debugger."""
    RUNNING = "running"
    """Observes a process that is not stopped, from outside of any debugger."""
    SETTING = "setting"
    """Changes what the user's own debugger shows."""
    PROGRAM = "program"
    """A command of scripts/dispatch alone, which finds its processes itself."""
