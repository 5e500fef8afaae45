"""What is missing where the kernel refuses probes."""

from __future__ import annotations

import errno
import os

import pytest

from gdbext.errors import ProbesRefused
from gdbext.tools.probes.bpf.bpf_kernel import Bpf, Circumstances, refused

BPF, PERFMON, SYS_ADMIN = 1 << 39, 1 << 38, 1 << 21


@pytest.mark.parametrize(
    ("code", "here", "why", "help_"),
    [
        (errno.EPERM, ("6.18.0", 0, False, False), "CAP_BPF and CAP_PERFMON", "--cap-add=BPF --cap-add=PERFMON"),
        (errno.EPERM, ("6.18.0", BPF, True, True), "need CAP_PERFMON, or root", "--cap-add=PERFMON;"),
        (errno.EPERM, ("6.18.0", SYS_ADMIN, True, True), "user namespace", "on the host"),
        (errno.EPERM, ("6.18.0", BPF | PERFMON, True, False), "seccomp", "seccomp=unconfined"),
        (errno.EACCES, ("6.18.0", SYS_ADMIN, False, False), "locked down", "lockdown"),
        (errno.EINVAL, ("5.10.0-13-amd64", SYS_ADMIN, False, False), "Linux 5.10.0-13-amd64 has", "dispatch-trace OP"),
        (errno.EINVAL, ("6.18.0", SYS_ADMIN, False, False), "Linux 6.18.0 does not take it", "dispatch-trace OP"),
        (errno.ENOSYS, ("6.18.0", 0, False, False), "CONFIG_BPF_SYSCALL", "dispatch-trace OP"),
        (errno.EIO, ("6.6.1", SYS_ADMIN, False, False), "file system", "dispatch-trace OP"),
    ],
)
def test_what_is_missing_is_named(code: int, here: tuple[str, int, bool, bool], why: str, help_: str) -> None:
    error = refused("a BPF map cannot be made", OSError(code, os.strerror(code)), Circumstances(*here))
    assert error.what == f"a BPF map cannot be made: {os.strerror(code)}"
    assert why in (error.why or "")
    assert help_ in (error.help or "")


@pytest.mark.parametrize(("signals", "loaded"), [(3, True), (999, False)])
def test_a_signal_does_not_end_the_loading_of_a_program(
    signals: int, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that was resized meanwhile had commands take breakpoints instead."""
    calls: list[int] = []

    def system_call(_bpf: Bpf, number: int, *_: object) -> int:
        calls.append(number)
        if len(calls) <= signals:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return 7

    monkeypatch.setattr(Bpf, "system_call", system_call)
    bpf = Bpf(321, True)
    if loaded:
        assert bpf.program(bytes(8)) == 7
    else:
        with pytest.raises(ProbesRefused, match="Resource temporarily unavailable"):
            bpf.program(bytes(8))
    assert len(calls) == (4 if loaded else 42)


def test_which_kernels_place_many_probes_at_once() -> None:
    releases = ("5.15.0-91-generic", "6.5.13", "6.6.0", "7.0", "odd")
    assert [release for release in releases if Circumstances(release, 0, False, False).lacks_many] == list(releases[:2])
