"""Starts real programs (tests/inferiors), waits until they hang as intended, and looks at them with scripts/dispatch.

Needs no pytest, so that scripts/bench uses it, too. Nothing here sleeps for a fixed time: it waits for conditions,
with a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from support.installed import pythons
from support.programs import native_build, procfs
from support.source import contract_schema

ROOT = Path(__file__).resolve().parents[3]
INFERIORS = ROOT / "tests" / "inferiors"
DISPATCH = ROOT / "scripts" / "dispatch"
PATIENCE = float(os.environ.get("GDBEXT_TEST_PATIENCE", "120"))
"""Seconds until a condition that must come true counts as failed; generous, for machines with noisy neighbours."""
UNDEMANGLED = ("-iex", "set demangle-style none")
"""For a gdb that reads torch's symbols and is asked for none by its C++ name: a quarter of the time, five seconds."""
_SETTINGS = ("auto-solib-add off", "debuginfod enabled off", "debug-file-directory /nonexistent")
NO_SYMBOLS = tuple(word for setting in _SETTINGS for word in ("-iex", f"set {setting}"))
"""For a gdb that needs no symbols; without the last one it reads the C library's debug information where that is
installed, twice as much work as its start and attaching."""


Value = TypeVar("Value")


class HarnessError(AssertionError):
    """The test's surroundings are not as they must be; says what is missing."""


def some(value: Value | None) -> Value:
    assert value is not None
    return value


def wait_until(condition: Callable[[], Any], what: str, deadline: float = PATIENCE) -> Any:
    """The condition's first true value; HarnessError with ``what`` when there is none in time."""
    end = time.monotonic() + deadline
    pause = 0.005
    while not (value := condition()):
        if time.monotonic() > end:
            raise HarnessError(f"after {deadline:.0f} s still not true: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.03)
    return value


def interpreter(name: str) -> tuple[str, dict[str, str]]:
    """A Python by name: the executable and the environment that lets it import torch where it can.

    ``venv``: the one that runs the tests; ``debian``: /usr/bin/python3, stripped, on the venv's packages; ``3.9``:
    that version, without torch; a path: that executable.
    """
    if os.sep in name:
        return name, {}
    if name == "venv":
        return sys.executable, {}
    if name == "debian":
        return "/usr/bin/python3", {"PYTHONPATH": _site_packages_for("/usr/bin/python3")}
    return pythons.need(name), {}


def _site_packages_for(python: str) -> str:
    if not Path(python).exists():
        raise HarnessError(f"{python} is missing (apt-get install python3)")
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    theirs = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    if theirs != "{}.{}".format(*sys.version_info[:2]):
        raise HarnessError(f"{python} is Python {theirs}: it cannot import the torch of {sys.executable}")
    return str(native_build.torch_folder().parent)


@dataclass
class Outcome:
    command: Sequence[str]
    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(self.stdout)
        except ValueError as error:
            raise HarnessError(f"no JSON document on standard output ({error})\n{self}") from None
        if "schema" in document:
            contract_schema.check(document)
        return document

    @property
    def documents(self) -> list[dict[str, Any]]:
        """A line each, among other lines."""
        found = [json.loads(line) for line in self.stdout.splitlines() if line.startswith('{"schema"')]
        for document in found:
            contract_schema.check(document)
        return found

    def __str__(self) -> str:
        return (
            f"$ {' '.join(self.command)}\nexit status {self.status} after {self.seconds:.2f} s\n"
            f"--- standard output\n{self.stdout[:4000]}\n--- standard error\n{self.stderr[-4000:]}"
        )


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout: float = PATIENCE, **options: Any
) -> Outcome:
    """Run a command to its end, without standard input, in a process group that does not survive a timeout."""
    words = [str(word) for word in command]
    started = time.monotonic()
    process = subprocess.Popen(
        words,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        **options,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return Outcome(words, process.returncode, stdout, stderr, time.monotonic() - started)


@dataclass
class Inferior:
    """A program in the state it was made for. ``truth`` is what it wrote about itself (inferiors/truth.py), ``pid`` the
    process to look at: the program itself, or the child that it forked for the purpose."""

    name: str
    process: subprocess.Popen[bytes]
    folder: Path
    truth: dict[str, Any] = field(default_factory=dict)
    _core: Path | None = None

    @property
    def pid(self) -> int:
        return int(self.truth.get("pid", self.process.pid))

    def tid(self, role: str) -> int:
        return int(self.truth["threads"][role]["tid"])

    @property
    def ended(self) -> bool:
        """It was killed by a signal, as intended: there is only its core."""
        return "ends" in self.truth

    def core(self) -> Path:
        """A core of it as gcore makes it, taken once (the inferior goes on), or the one that it left behind."""
        if self._core is None:
            self._core = self.folder / "core"
            take_core(self.pid, self._core)
            self.assert_undisturbed()
        return self._core

    def dispatch(
        self,
        *args: str,
        debugger: str = "gdb",
        core: bool = False,
        json: bool = True,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Outcome:
        """Run ``scripts/dispatch`` on it, live or on its core; with ``check`` a status other than 0 fails."""
        where = ["-c", str(self.core())] if core else ["-p", str(self.pid)]
        options = ["--debugger", debugger, *(["--json"] if json else [])]
        outcome = run([DISPATCH, *options, *where, *args], env=env, timeout=timeout)
        if check and outcome.status != 0:
            raise HarnessError(f"scripts/dispatch failed\n{outcome}")
        return outcome

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def assert_undisturbed(self) -> None:
        """It lives, nobody traces it, and no thread was left stopped. Gives a detaching debugger a moment."""
        if self.ended:
            return
        wait_until(lambda: not self.disturbance(), f"{self.name} ({self.pid}) is undisturbed: {self.disturbance()}")

    def disturbance(self) -> str:
        if not procfs.alive(self.pid):
            return f"it is gone (exit status {self.process.poll()}); its output: {self.output()[-2000:]}"
        expected = set(self.truth.get("stopped", ()))
        for tid in procfs.threads(self.pid):
            state = procfs.state(self.pid, tid)
            if state in ("t", "T") and tid not in expected:
                return f"thread {tid} was left in state {state}"
        tracer = procfs.status(self.pid).get("TracerPid", "0")
        return "" if tracer == "0" else f"process {tracer} still traces it"

    def pause(self) -> None:
        if self.truth.get("busy") and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.truth.get("busy") and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)
            wait_until(lambda: not self.disturbance(), f"{self.name} runs again: {self.disturbance()}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def executable(path: Path, content: str) -> Path:
    path.write_text(content)
    path.chmod(0o755)
    return path


def tree_without_layouts(folder: Path) -> Path:
    """A copy of this tree that knows no PyTorch, and an empty folder "bin"."""
    for name in ("gdbext", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "torch-*.json"))
    (index,) = (folder / "gdbext/engine/layouts/data").glob("*/index.json")
    index.write_text('{"build_ids": {}, "torch": {}}')
    (folder / "bin").mkdir()
    return folder


def take_core(pid: int, path: Path) -> None:
    """gcore through gdb without reading symbols (4 s instead of 8)."""
    outcome = run(["gdb", "-nx", "-batch", *NO_SYMBOLS, "-p", str(pid), "-ex", f"gcore {path}"])
    if not path.exists():
        raise HarnessError(f"gcore made no core of {pid}\n{outcome}")


def start(
    name: str, *args: str, python: str = "venv", env: Mapping[str, str] | None = None, command: Sequence[str] = ()
) -> Inferior:
    """Start ``tests/inferiors/NAME.py`` and return it once it is in its final state, or has left its core. ``command``
    goes in front of it (``["prlimit", "--stack=unlimited"]``)."""
    script, first = _script(name)
    crashes = "truth.ends(" in script.read_text()
    folder = Path(tempfile.mkdtemp(prefix=f"gdbext-{name}-"))
    try:
        executable, extra = interpreter(python)
        own = {"GDBEXT_READY": str(folder / "truth.json"), "GDBEXT_NATIVE": native_build.build_for(script)}
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [*command, *(_core_maker(folder) if crashes else []), executable, str(script), *first, *args],
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **extra, **own, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    inferior = Inferior(name, process, folder)
    try:
        inferior.truth = _wait_for_truth(inferior)
        if inferior.ended:
            wait_until(lambda: inferior.process.poll() is not None, f"{name} dies of {inferior.truth['ends']}")
            inferior._core = next(folder.glob("core*"), None)
            if inferior._core is None:
                raise HarnessError(f"{name} left no core (exit status {process.poll()})\n{inferior.output()[-2000:]}")
        else:
            procfs.wait_settled(inferior.pid, inferior.truth, wait_until)
    except BaseException:
        inferior.close()
        raise
    return inferior


def _script(name: str) -> tuple[Path, list[str]]:
    word = name.replace("-", "_")
    if (INFERIORS / f"{word}.py").exists():
        return INFERIORS / f"{word}.py", []
    several = (INFERIORS / "hangs.py", INFERIORS / "reported.py")
    return next(path for path in several if f"\ndef {word}(" in path.read_text()), [name]


def _core_maker(folder: Path) -> list[str]:
    """What to start a crashing program with, so that a core is left in its folder: by the kernel where its pattern
    leads into it; elsewhere (apport, systemd-coredump) gdb runs the program and writes the core at the signal."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if pattern.startswith("core") and "/" not in pattern and hard == resource.RLIM_INFINITY:
        return ["prlimit", "--core=unlimited"]
    return ["gdb", "-nx", "-batch", *NO_SYMBOLS, "-ex", "run", "-ex", f"gcore {folder / 'core'}", "--args"]


def _wait_for_truth(inferior: Inferior) -> dict[str, Any]:
    path, process = inferior.folder / "truth.json", inferior.process
    try:
        wait_until(lambda: process.poll() is not None or path.exists(), f"{inferior.name} writes its truth")
        if not path.exists():
            raise HarnessError(f"{inferior.name} ended with {process.poll()} before it was ready")
    except HarnessError as error:
        raise HarnessError(f"{error}\n{inferior.output()[-4000:]}") from None
    truth: dict[str, Any] = json.loads(path.read_text())
    return truth


class Pool:
    """Keeps started inferiors for the next test; the least recently used one goes when there are too many: each costs
    2 s to start, 300 MB of memory and, where a core was taken, 640 MB of disk. Those that many files of tests look at
    stay till the end, beside the others."""

    STAYING = frozenset((name, (), "[]") for name in ("meta-mm", "idle"))

    def __init__(self, limit: int = int(os.environ.get("GDBEXT_TEST_POOL", "5"))) -> None:
        self._limit = limit
        self._alive: OrderedDict[tuple[Any, ...], Inferior] = OrderedDict()

    def get(self, name: str, *args: str, **options: Any) -> Inferior:
        if options.get("python") == "venv":
            del options["python"]
        key = (name, args, repr(sorted(options.items())))
        if key in self._alive:
            self._alive.move_to_end(key)
            self._alive[key].resume()
            return self._alive[key]
        passing = [each for each in self._alive if each not in self.STAYING]
        for each in passing[: max(0, len(passing) - self._limit + 1)]:
            self._alive.pop(each).close()
        self._alive[key] = start(name, *args, **options)
        return self._alive[key]

    def discard(self, inferior: Inferior) -> None:
        self._alive = OrderedDict((key, value) for key, value in self._alive.items() if value is not inferior)
        inferior.close()

    def close(self) -> None:
        while self._alive:
            self._alive.popitem()[1].close()


@contextlib.contextmanager
def started(name: str, *args: str, **options: Any) -> Iterator[Inferior]:
    inferior = start(name, *args, **options)
    try:
        yield inferior
    finally:
        inferior.close()


@contextlib.contextmanager
def ready(words: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has written a line, for the length of a block; it ends with its children."""
    options |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(words, **options) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


Start = Callable[..., Inferior]
"""The fixture ``inferior``: starts a program by its name and arguments, or gives the one that is there already."""
