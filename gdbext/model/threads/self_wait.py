"""SelfWait: why a thread waits for what only it could give: its own code was interrupted, or it runs an event loop."""

from __future__ import annotations

from enum import Enum

_ANOTHER_POOL = "A job must not wait for a job of its own pool: give those jobs a pool of their own."


class SelfWait(Enum):
    """The value says it in a sentence."""

    SIGNAL = "a signal handler interrupted the code that holds it"
    FINALIZER = "a finaliser (__del__) interrupted the code that holds it"
    WEAKREF = "the callback of a weak reference interrupted the code that holds it"
    POOL = "it is the only worker of the pool that should run the job"
    EVENT_LOOP = "only the event loop that it blocks could complete it"

    @property
    def advice(self) -> str:
        """How such code is written."""
        if self is SelfWait.EVENT_LOOP:
            return (
                "Inside of an event loop await, and never block: await asyncio.wrap_future(future), or leave the "
                "blocking call to loop.run_in_executor()."
            )
        if self is SelfWait.POOL:
            return _ANOTHER_POOL
        if self is SelfWait.SIGNAL:
            return (
                "A signal handler must take no lock, and so must not log or put into a queue.Queue: set a flag in it, "
                "write to signal.set_wakeup_fd(), or use queue.SimpleQueue."
            )
        return (
            "Finalisers and weakref callbacks run at any moment, in any thread: they must take no lock. Use "
            "queue.SimpleQueue, which is reentrant, or leave the work to another thread."
        )
