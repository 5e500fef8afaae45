"""A pytest plugin: programs that the tests start heed SIGINT and SIGHUP, whoever started the tests.

nohup, background jobs of a shell and some CI systems ignore these signals, and children inherit that.
"""

from __future__ import annotations

import signal

HEEDED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)


def pytest_configure() -> None:
    """What is ignored here is handled by doing nothing from now on: the same for us, the default for our children.

    execve resets handlers to the default and leaves ignored signals ignored (signal(7)).
    """
    for number in HEEDED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _nothing)


def _nothing(_number: int, _frame: object) -> None:
    pass
