"""Files of /proc whose length the process chooses: nobody reads more of one than its limit."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator

import pytest

from gdbext.engine.targets.budget import MemoryLimit
from gdbext.engine.targets.host_files import HostFiles
from gdbext.engine.targets.live.local_process import ProcessOrigin, read_command, read_file
from gdbext.engine.targets.live.supervision import read_proc_file
from gdbext.errors import TargetError, TargetGone
from gdbext.tools import family
from gdbext.tools.ps import torch_processes
from gdbext.tools.ranks import rank_processes
from support.programs.endless_words import endless

_FEW = 256 << 20
"""Bytes that a reader may take: the files have 64 GB."""


@pytest.fixture(scope="module")
def pid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    library = tmp_path_factory.mktemp("torch") / "libtorch_cpu.so"
    library.write_bytes(bytes(1 << 20))
    with endless([library]) as found:
        yield found


READERS: dict[str, Callable[[int], object]] = {
    "environment of the process looked at": lambda pid: ProcessOrigin(pid).environ(),
    "its command line": read_command,
    "environment of a family": family.is_rank,
    "a rank": rank_processes.read_process,
    "children of a process": lambda pid: HostFiles().text(f"/proc/{pid}/cmdline", 4096),
    "any text": lambda pid: HostFiles().text(f"/proc/{pid}/environ"),
    "ps": lambda _: torch_processes(),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_takes_more_than_it_needs(pid: int, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with MemoryLimit(_FEW):
        READERS[name](pid)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < _FEW


def test_what_is_too_long_is_an_error_that_says_so(pid: int) -> None:
    for name in ("environ", "cmdline"):
        with pytest.raises(OSError, match="longer than") as raised:
            read_proc_file(pid, name)
        assert raised.value.errno == errno.EFBIG
        with pytest.raises(TargetError, match=f"/proc/{pid}/{name} is longer than 6291456 bytes") as told:
            read_file(pid, name)
        assert not isinstance(told.value, TargetGone)


def test_the_process_is_known_as_one_that_may_be_of_any_job(pid: int) -> None:
    known = rank_processes.local_processes()
    assert known[pid].is_endless
    assert not known[os.getpid()].is_endless
    assert pid in rank_processes.endless_environments(known, [os.getpid()])
    assert rank_processes.endless_environments(known, []) == []


def test_ps_lists_it_and_ends_in_time(pid: int) -> None:
    found = {each.pid: each for each in torch_processes().processes}
    assert (found[pid].program, found[pid].rank) == ("", None)
    late = torch_processes(0)
    assert late.processes == ()
    assert late.unexamined > 1
