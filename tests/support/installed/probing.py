"""What tests of kernel probes share: whether they are permitted here, and whether a tool has placed its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.programs import procfs
from support.programs.harness import DISPATCH, Inferior, wait_until

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session


def _refused() -> str:
    from gdbext.engine.arch import architectures
    from gdbext.errors import GdbextError
    from gdbext.tools.probes.bpf.bpf_kernel import permitted

    with contextlib.suppress(GdbextError):
        if permitted(architectures.by_name(os.uname().machine)):
            return ""
    return "this kernel or container does not permit kernel probes (BPF)"


PROBES = pytest.mark.skipif(bool(_refused()), reason=_refused() or "permitted")


def probes_placed(pid: int, count: int = 2) -> bool:
    """The tool holds its links, one for each library and program, so that every probe is in place."""
    links = 0
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            links += "bpf_link" in str(descriptor.readlink())
    return links >= count


@contextlib.contextmanager
def tool_with_probes(pid: int, *words: str, links: int = 2) -> Iterator[subprocess.Popen[str]]:
    """``scripts/dispatch -p PID WORDS`` once it holds that many links; killed at the end."""
    command = [str(DISPATCH), "-p", str(pid), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
        try:
            wait_until(lambda: probes_placed(tool.pid, links) or tool.poll() is not None, "the probes are placed")
            yield tool
        finally:
            tool.kill()


def interrupt(tool: subprocess.Popen[str]) -> str:
    """End it by Ctrl+C; returns its standard output."""
    tool.send_signal(signal.SIGINT)
    stdout, stderr = tool.communicate(timeout=120)
    assert tool.returncode == 0, stderr
    return stdout


def work(counted: Inferior, *requests: str) -> None:
    """Let tests/inferiors/counted_calls.py do what it is asked for, one request after the other."""
    for request in requests:
        before = counted.output().count("done")
        counted.send(request)
        wait_until(lambda: counted.output().count("done") > before, f"{request} is done")  # noqa: B023


def is_counting(pid: int) -> bool:
    """All probes are in place, and the tool sleeps while it counts: the process that placed them may go."""
    sleeps = map(str, procfs.SYSCALLS["sleep"] | procfs.SYSCALLS["poll"])
    return probes_placed(pid) and procfs.syscall(pid, pid)[0] in sleeps


def keeper_of(pid: int) -> int:
    """The process that places and keeps the tool's probes, 0 where there is none (yet)."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "gdbext-probes\n":
                return int(child)
    return 0


def places_of(session: Session) -> list[int]:
    """Where in the process probes are placed when everything is counted or traced."""
    from gdbext.tools.probes.trace_places import TracePlaces, addresses

    return sorted(addresses(session, TracePlaces(session).everything()).values())


def links_on(pid: int) -> int:
    """How many links with probes on that process the kernel has, whoever holds them, by its own list of all links.

    bpf(2): BPF_LINK_GET_NEXT_ID 31, BPF_LINK_GET_FD_BY_ID 30, BPF_OBJ_GET_INFO_BY_FD 15; ``struct bpf_link_info`` of
    Linux 6.6 (include/uapi/linux/bpf.h): type at 0 (12: uprobe_multi), the process at 60.
    """
    from gdbext.engine.arch import architectures
    from gdbext.tools.probes.bpf.bpf_kernel import Bpf

    bpf, found, link = Bpf.of(architectures.by_name(os.uname().machine)), 0, 0
    while True:
        following = ctypes.create_string_buffer(struct.pack("<II", link, 0), 8)
        try:
            bpf.system_call(bpf._number, 31, following, len(following))
        except OSError:
            return found
        link = struct.unpack_from("<I", following, 4)[0]
        with contextlib.suppress(OSError):  # it is gone meanwhile
            descriptor = bpf(30, struct.pack("<I", link))
            info = ctypes.create_string_buffer(256)
            try:
                bpf(15, struct.pack("<IIQ", descriptor, len(info), ctypes.addressof(info)))
            finally:
                os.close(descriptor)  # a link lives as long as anybody has it open
            found += struct.unpack_from("<I", info)[0] == 12 and struct.unpack_from("<I", info, 60)[0] == pid
