"""A pytest plugin: programs that the tests start heed SIGINT and SIGHUP, which nohup, background jobs of a shell and
some CI systems have their children ignore."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """execve resets handlers to the default and leaves ignored signals ignored (signal(7))."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
