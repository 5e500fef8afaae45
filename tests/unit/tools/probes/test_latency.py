"""Buckets of durations, as the kernel's program and the report understand them."""

from __future__ import annotations

from gdbext.tools.probes.bpf.probe_programs import ENTERED, PARTS_BITS, range_of
from gdbext.tools.probes.latency_meter import LatencyBucket, _within, powers


def bucket_of(nanoseconds: int) -> int:
    """As the program computes it."""
    power = max(0, nanoseconds.bit_length() - 1)
    return (power << PARTS_BITS) + ((nanoseconds << PARTS_BITS) >> power & (1 << PARTS_BITS) - 1)


def test_a_duration_lies_in_its_bucket_and_buckets_follow_each_other() -> None:
    for nanoseconds in (*range(1, 300), 1023, 1024, 5000, 10**9, 2**61):
        bucket = bucket_of(nanoseconds)
        low, high = range_of(bucket)
        assert low <= nanoseconds < high
        assert bucket < ENTERED
        assert nanoseconds < 4 or high == range_of(bucket + 1)[0]


def test_so_many_took_less() -> None:
    counts = {bucket_of(1000): 50, bucket_of(3000): 49, bucket_of(900000): 1}
    assert [_within(counts, share) for share in (0.5, 0.9, 0.99, 1.0)] == [1.024, 3.072, 3.072, 917.504]
    assert _within({}, 0.5) is None


def test_powers_join_quarters_and_have_no_gaps() -> None:
    quarters = [LatencyBucket(*(edge / 1e3 for edge in range_of(bucket_of(at))), count=1) for at in (1024, 1300, 9000)]
    found = [(bucket.from_us, bucket.count) for bucket in powers(quarters)]
    assert found == [(1.024, 2), (2.048, 0), (4.096, 0), (8.192, 1)]
    assert powers([]) == []
