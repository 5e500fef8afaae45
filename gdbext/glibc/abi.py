"""What differs in glibc from one architecture to another: one row each.

Everything else in this room is the same on every 64-bit little-endian Linux. Sources: sysdeps/ARCH/nptl/tls.h
(``tcbhead_t``, TLS_TCB_AT_TP or TLS_DTV_AT_TP), nptl/descr.h (``struct pthread``).
"""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.arch.base import Architecture
from gdbext.model.record import Record


class GlibcAbi(Record):
    """Offsets in bytes, all of them from the thread pointer."""

    own_addresses: tuple[int, ...]
    """Words of the thread control block that hold the thread pointer itself (``tcb``, ``self``)."""
    dtv: int
    """The pointer to the thread's dynamic thread vector."""
    blocks_below: bool
    """The thread-local blocks of the program and of the libraries loaded with it end below the thread pointer."""
    pthread_self: int
    """What pthread_self() returns, minus the thread pointer."""
    thread_id: int
    """``struct pthread.tid``: the kernel's id of the thread, which the kernel clears when it ends (until 2.42)."""
    join_state: int
    """``struct pthread.joinstate``, which it clears instead since 2.43: ``joinid`` was there, whom nobody waits for."""


_ROWS: Mapping[str, GlibcAbi] = {
    "x86_64": GlibcAbi(
        own_addresses=(0, 16),
        dtv=8,
        blocks_below=True,
        pthread_self=0,
        thread_id=0x2D0,  # 704 bytes of tcbhead_t's padding, then a list_t; the same in glibc 2.12 to 2.43
        join_state=0x628,
    ),
}


def rows() -> Mapping[str, GlibcAbi]:
    """All rows, by the architecture's name."""
    return _ROWS


def glibc_abi(architecture: Architecture) -> GlibcAbi:
    """The row of an architecture; each of the registry's has one."""
    return _ROWS[architecture.name]
