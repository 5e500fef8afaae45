"""The pytest plugin: explains each test that runs longer than ``--gdbext-threshold``, with its children and ranks.

Off until that option is given. Another process (hosts/hang_watcher.py) examines the tests, so that neither a held GIL
nor a stopped process prevents it. Works in each worker of pytest-xdist.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import gdbext.hosts
from gdbext.engine import libc

if TYPE_CHECKING:
    from types import ModuleType

    from gdbext.hosts.hang_board import TestBoard

NAME = "gdbext-hangs"
"""The plugin's name in pytest, and the default folder for verdicts and recordings."""
SECTION = "gdbext: ran longer than --gdbext-threshold"
_SCRIPT = 'exec 3<&0; { sleep "$0"; exec "$@"; } <&3 3<&- >/dev/null & echo $!'
"""Starts the watcher, not as a child of pytest's process: tests may wait for any child, or count them. Python starts
only after $0 seconds, so that short runs do not pay for it."""
_START = (
    "import sys; sys.path.append(sys.argv.pop(1)); from gdbext.hosts import hang_watcher as watcher; watcher.main()"
)
_PATIENCE = 20.0
"""Seconds to wait for the watcher when it examines a test that has just ended."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's three options to pytest."""
    group = parser.getgroup("gdbext", "explain tests that hang (gdbext)")
    group.addoption(
        "--gdbext-threshold",
        type=float,
        metavar="SECONDS",
        help="explain each test that runs longer, with its child processes and ranks; the test continues",
    )
    group.addoption(
        "--gdbext-dir",
        metavar="DIR",
        default=NAME,
        help=f"folder for verdicts and recordings of these tests (default: {NAME}, created when needed)",
    )
    group.addoption(
        "--gdbext-kill",
        action="store_true",
        help="then fail the test; if it does not end, kill its children, then its process",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin's hooks if a threshold is given: without one, the plugin costs nothing."""
    threshold = config.getoption("--gdbext-threshold")
    if threshold is None:
        return
    if not 0 < threshold <= 1e6:
        raise pytest.UsageError("--gdbext-threshold takes a number of seconds greater than 0")
    plugin = HangPlugin(config, threshold)
    config.pluginmanager.register(plugin, NAME)
    if hasattr(config, "workerinput"):
        # a worker of pytest-xdist may wait for others after a test
        config.pluginmanager.register(SimpleNamespace(pytest_runtest_logfinish=plugin.pause))


class HangPlugin:
    """The hooks of one pytest process."""

    def __init__(self, config: pytest.Config, threshold: float) -> None:
        self._threshold = threshold
        self._folder = str(Path(config.invocation_params.dir, config.getoption("--gdbext-dir")).absolute())
        self._plugins = config.pluginmanager
        self._kills: bool = config.getoption("--gdbext-kill")
        self._errors = os.dup(2)  # before pytest captures what tests write there
        self._board: TestBoard | None = None
        self._pid = os.getpid()
        self._orders = -1
        self._starter: subprocess.Popen[bytes] | None = None
        self._watcher = 0
        self._group = 0
        self._watches_from = 0.0
        self._began = time.time()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Wait for the shell that started the watcher: no test must meet it as a child."""
        self._finish_start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Note that a test begins. Wrappers of hooks would cost more than all the rest."""
        (self._board or self._start()).begin(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Note that the last test has ended, and tell the watcher to exit."""
        self.pause()
        if self._board and self._pid == os.getpid():
            self._end_watcher()

    def pause(self) -> None:
        """Stop the clock until the next test begins."""
        if self._board:
            self._board.end()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, None]:
        """Note the import of a test's file, which may hang as well."""
        board = self._board or self._start()
        board.begin(collector.nodeid or "collection")
        yield
        board.end()

    def pytest_enter_pdb(self) -> None:
        """Stop the clock: the test waits for its user."""
        self.pause()

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Add the verdict on a test that killed its worker of pytest-xdist."""
        files = sorted(Path(self._folder).glob("*.hang.json"), key=lambda file: file.stat().st_mtime)
        verdicts = [_read_verdict(str(file)) for file in files if file.stat().st_mtime >= self._began]
        for verdict in [verdict for verdict in verdicts if verdict and verdict["test"] == crashitem][-1:]:
            report.sections.append((SECTION, verdict["text"]))
            report.longrepr = f"{report.longrepr}\n{verdict['summary']}\nkept: {verdict['files']}"

    def pytest_unconfigure(self) -> None:
        """Wait until the watcher has exited."""
        if self._board and self._pid == os.getpid():
            self._end_watcher()
            _board_module().wait_for_exit(self._watcher, _PATIENCE)
            os.close(self._orders)
            self._board = None
        os.close(self._errors)

    def _start(self) -> TestBoard:
        """Start the watcher of this process; tests are collected meanwhile."""
        hang_board = _board_module()
        board = os.memfd_create("gdbext-tests")
        os.truncate(board, hang_board.SIZE)
        orders, self._orders = os.pipe()
        root = str(Path(__file__).resolve().parents[2])
        words = [sys.executable, "-I", "-S", "-c", _START, root, str(self._pid), str(board)]
        words += [str(self._threshold), self._folder, "1" if self._kills else ""]
        pause = int(min(self._threshold / 4, 5))
        self._watches_from = time.monotonic() + pause
        self._starter = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, str(pause), *words],
            stdin=orders,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            pass_fds=(board,),
        )
        self._board = hang_board.TestBoard(board)
        self._plugins.register(_Phases(self._plugins, self._board))
        os.close(board)
        os.close(orders)
        if self._kills:
            try:
                signal.signal(hang_board.SIGNAL, self._fail)  # by which the watcher fails the test that runs
            except ValueError as error:
                raise pytest.UsageError("--gdbext-kill needs pytest to run in the main thread") from error
        if Path("/proc/sys/kernel/yama").exists():
            self._finish_start()
            # PR_SET_PTRACER (linux/prctl.h): with Yama, a process names the one that may trace it
            libc.prctl(0x59616D61, self._watcher)
        return self._board

    def _end_watcher(self) -> None:
        """Have the watcher exit; before it has become a Python process, kill it."""
        self._finish_start()
        with contextlib.suppress(OSError):
            if time.monotonic() < self._watches_from and os.getpgid(self._watcher) == self._group:
                os.killpg(self._group, signal.SIGKILL)
            else:
                os.write(self._orders, b"end")

    def _finish_start(self) -> None:
        """Wait for the shell that starts the watcher."""
        if not self._starter:
            return
        output, _ = self._starter.communicate()
        self._group, self._starter = self._starter.pid, None
        if not output:
            raise pytest.UsageError("--gdbext-threshold: /bin/sh cannot start the watcher")
        self._watcher = int(output)

    def _fail(self, *_: object) -> None:
        """The handler of the watcher's signal: fail the test, if it still runs."""
        if self._board and self._board.is_examined() and self._board.running():
            pytest.fail(f"ran longer than {self._threshold:g} s (--gdbext-threshold)")


class _Phases:
    """Registers _ReportedVerdicts once the watcher has examined a test. The hook is called three times for each test:
    so it takes no argument and reads one byte."""

    def __init__(self, plugins: pytest.PytestPluginManager, board: TestBoard) -> None:
        page, index = board.examined_byte()

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_makereport() -> None:
            """Called by pytest at the end of each phase of a test."""
            if page[index]:
                plugins.unregister(self)
                plugins.register(_ReportedVerdicts(board))

        self.pytest_runtest_makereport = pytest_runtest_makereport


class _ReportedVerdicts:
    """Adds verdicts to the reports of tests that were examined. Registered after the first one."""

    def __init__(self, board: TestBoard) -> None:
        self._board = board
        self._reported = 0  # number of the last test with a verdict
        self._properties: list[tuple[str, object]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the verdict to the test's first report after the examination, and the properties to later ones, too,
        before another plugin shows the report or sends it to another process."""
        if not self._board.is_examined():
            return
        if self._board.number != self._reported:
            verdict = _read_verdict(self._board.verdict_file(_PATIENCE))
            if verdict is None:
                return
            self._reported = self._board.number
            self._properties = [("gdbext-verdict", verdict["summary"]), ("gdbext-files", verdict["files"])]
            report.sections.append((SECTION, verdict["text"]))
        report.user_properties += self._properties


def _board_module() -> ModuleType:
    """The module hosts/hang_board.py, imported by Python's own loader: pytest's compiles it in each run that has no
    cache, as in a fresh container."""
    name = "gdbext.hosts.hang_board"
    if name not in sys.modules:
        spec = PathFinder.find_spec(name, gdbext.hosts.__path__)
        assert spec
        assert spec.loader
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def _read_verdict(path: str) -> dict[str, str] | None:
    """The members test, summary, text and files of the watcher's file; None if there is no such file."""
    try:
        document = json.loads(Path(path).read_text())
        return {name: str(document[name]) for name in ("test", "summary", "text", "files")}
    except (OSError, ValueError, LookupError, TypeError):
        return None
