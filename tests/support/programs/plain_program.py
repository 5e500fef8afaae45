"""Builds and runs inferiors/native/plain_program.c: small enough for hundreds of looks, its cores take a megabyte."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.programs import procfs
from support.programs.harness import HarnessError, run, take_core, wait_until

SOURCE = Path(__file__).resolve().parents[2] / "inferiors" / "native" / "plain_program.c"
MARK = "GDBEXT_PLAIN_PROGRAM"


def build(folder: Path) -> Path:
    target = folder / "plain program"  # the space is on purpose
    done = run(["gcc", "-O1", "-g0", "-Wl,--build-id", str(SOURCE), "-o", str(target), "-pthread"])
    if done.status != 0:
        raise HarnessError(f"plain_program.c does not compile\n{done}")
    return target


class Plain:
    """A running plain program. ``first`` is the first line that it wrote."""

    def __init__(self, program: Path, *args: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [str(program), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: "its value"},
            start_new_session=True,
            **options,
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        self.pid = self.process.pid
        self.truth: dict[str, Any] = json.loads(self.first) if self.first.startswith("{") else {}
        if self.truth:
            wait_until(lambda: set(self.states()) == {"S"}, "all threads pause")

    def states(self) -> list[str]:
        return [procfs.state(self.pid, tid) for tid in procfs.threads(self.pid)]

    def line(self) -> str:
        assert self.process.stdout is not None
        line: str = self.process.stdout.readline()
        return line

    def wait_until_it_writes(self) -> None:
        before = procfs.bytes_written(self.pid)
        wait_until(lambda: procfs.bytes_written(self.pid) > before, "it writes")

    def is_untouched(self) -> bool:
        traced = procfs.status(self.pid).get("TracerPid")
        return procfs.alive(self.pid) and traced == "0" and not set(self.states()) & {"t", "T"}

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running(program: Path, *args: str, **options: Any) -> Iterator[Plain]:
    plain = Plain(program, *args, **options)
    try:
        yield plain
    finally:
        plain.end()


def take_gcore(pid: int, path: Path) -> Path:
    """A core by gdb. Whoever sees the file sees all of it, and the first one made stays."""
    part = path.with_suffix(f".{os.getpid()}")
    take_core(pid, part)
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(part)
    part.unlink()
    return path


def kernel_core(program: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A core by the kernel of the program's crash, and the program's truth. Skips where the kernel pipes cores away."""
    import pytest

    rule = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if rule.startswith(("|", "/")):
        pytest.skip(f"the kernel writes cores elsewhere (core_pattern is {rule})")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are forbidden here (ulimit -Hc is 0)")
    command = ["sh", "-c", 'ulimit -Sc "$(ulimit -Hc)"; exec "$@"', "sh", str(program), "3", "crash"]
    environment = {**os.environ, MARK: "its value"}
    process = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, env=environment, check=False)
    assert process.returncode == -signal.SIGSEGV
    found = list(folder.glob("core*"))
    if len(found) != 1:
        raise HarnessError(f"the kernel wrote no core into {folder} (core_pattern {rule}): {found}")
    return Path(shutil.move(found[0], folder / "kernel.core")), json.loads(process.stdout)
