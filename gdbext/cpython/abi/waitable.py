"""Waitable: the objects of Python's standard library that a thread can wait for."""

from __future__ import annotations

from enum import Enum


class Waitable(Enum):
    """A kind of object. The value is its name in evidence."""

    LOCK = "lock"
    RLOCK = "rlock"
    CONDITION = "condition"
    EVENT = "event"
    SEMAPHORE = "semaphore"
    BARRIER = "barrier"
    QUEUE = "queue"
    SIMPLE_QUEUE = "simplequeue"
    FUTURE = "future"
    POOL_RESULT = "multiprocessing.pool's result"
    THREAD = "thread"
    IMPORT = "import"
    """The lock of a module that another thread imports."""
    SHUTDOWN = "shutdown"
    """No object: the interpreter waits for its threads to end."""
