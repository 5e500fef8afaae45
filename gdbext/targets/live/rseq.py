"""What the kernel writes into a thread's memory by itself: the processor that it runs on, in its struct rseq.

struct rseq (include/uapi/linux/rseq.h, Linux 6.12), aligned to 32 bytes: __u32 cpu_id_start, cpu_id; __u64 rseq_cs;
__u32 flags, node_id, mm_cid. glibc keeps one in every thread's block, which for all threads but the first one lies at
the outer end of the stack; an allocator may have its own. Where it is cannot be asked without stopping the thread.
"""

from __future__ import annotations

import os
import struct

_AREA = struct.Struct("<2IQ4I")


def same_but_for_rseq(one: bytes, other: bytes, address: int = 0) -> bool:
    """Two copies of the memory at ``address`` are equal but for the numbers of the processor, node and concurrency
    that the kernel notes in a struct rseq whenever it moves a thread."""
    if one == other:
        return True
    if len(one) != len(other):
        return False
    first = -address % _AREA.size
    bounds = [0, *range(first, len(one), _AREA.size), len(one)]
    pieces = ((one[low:high], other[low:high]) for low, high in zip(bounds, bounds[1:]))
    return all(mine == theirs or _is_moved_area(mine, theirs) for mine, theirs in pieces)


def _is_moved_area(one: bytes, other: bytes) -> bool:
    """Both may be the same struct rseq on two processors."""
    if len(one) < _AREA.size:
        return False
    processors = os.sysconf("SC_NPROCESSORS_CONF")
    mine, theirs = _AREA.unpack(one), _AREA.unpack(other)
    numbers = [(start, cpu, node, concurrency) for start, cpu, _, _, node, concurrency, _ in (mine, theirs)]
    kept = [(critical, flags, rest) for _, _, critical, flags, _, _, rest in (mine, theirs)]
    return kept[0] == kept[1] and all(each[0] == each[1] and max(each) < processors for each in numbers)
