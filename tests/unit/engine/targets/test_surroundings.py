"""What control groups, limits and the scheduler say, from made-up files."""

from __future__ import annotations

import pytest

from gdbext.engine.targets.system import surroundings
from gdbext.engine.targets.system.surroundings import Allowance, surroundings_from

LIMITS = f"{'Limit':26}{'Soft Limit':21}Hard\n{'Max open files':26}{'64':21}64\n{'Max processes':26}{'10':21}10\n"
STATUS = "Name:\tpython\nPPid:\t3\nCpus_allowed_list:\t0-1\nVmSize:\t 100 kB\nCapEff:\t0000000000000000\n"
HERE = "/sys/fs/cgroup/cpu/a/b"
BASE = {
    "/proc/7/status": STATUS,
    "/proc/7/limits": LIMITS,
    "/sys/devices/system/cpu/online": "0-3\n",
    "/proc/7/task/7/stat": "7 (a) b) R 1" + " 0" * 50,
    "/proc/7/task/7/schedstat": "1000000 2000000 5",
}


def read(more, later=None, seconds=None):
    return surroundings_from(7, {**BASE, **more}, later or {}, seconds)


def test_lists_of_processors():
    lists = {"0-2,5": [0, 1, 2, 5], "": [], "7\n": [7], "a-b": [], "3-": [3], "0-99999999999": []}
    assert {text: surroundings.numbers_of(text) for text in lists} == lists


V1_QUOTA = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "50000 100000", "cpu.stat": "nr_periods 9\nnr_throttled 6\nthrottled_usec 300000"},
        {**V1_QUOTA, "cpu.stat": "nr_periods 9\nnr_throttled 6\nthrottled_time 300000000"},
    ],
)
def test_a_quota(files):
    texts = {"groups cpu": HERE, **{f"{HERE}/{name}": text for name, text in files.items()}}
    quota = read(texts).quota
    assert (quota.processors, quota.period_ms, quota.periods, quota.throttled) == (0.5, 100, 9, 6)
    assert (quota.stood_ms, quota.seconds) == (300, None)


def test_what_counts_is_the_time_between_two_readings():
    path = f"{HERE}/cpu.stat"
    first = {
        "groups cpu": f"{HERE}\n/sys/fs/cgroup/cpu/a",
        f"{HERE}/cpu.max": "max 100000",
        "/sys/fs/cgroup/cpu/a/cpu.max": "20000 100000",
        "/sys/fs/cgroup/cpu/a/cpu.stat": "nr_periods 900\nnr_throttled 800\nthrottled_usec 5",
        path: "nr_periods 5",
    }
    later = {
        "/sys/fs/cgroup/cpu/a/cpu.stat": "nr_periods 903\nnr_throttled 800\nthrottled_usec 5",
        "/proc/7/task/7/schedstat": "51000000 202000000 9",
    }
    found = read(first, later, 0.25)
    assert (found.quota.group, found.quota.periods, found.quota.throttled) == ("/sys/fs/cgroup/cpu/a", 3, 0)
    assert [(each.running_ms, each.delayed_ms) for each in found.threads] == [(50, 200)]


def test_no_quota_and_damaged_files():
    for text in ("max 100000", "", "x y", "-1 100000", "5 0"):
        assert read({"groups cpu": HERE, f"{HERE}/cpu.max": text}).quota is None
    assert read({"groups memory": HERE, f"{HERE}/memory.current": "many"}).memory is None
    assert surroundings_from(7, {}, {}, None).unread


def test_memory_of_both_hierarchies():
    unified = {
        "memory.current": "90",
        "memory.high": "80",
        "memory.max": "max",
        "memory.events": "high 3\nmax 0",
        "memory.pressure": "some avg10=9.00 x\nfull avg10=41.50 avg60=0.00 avg300=0.00 total=9",
    }
    use = read({"groups memory": HERE, **{f"{HERE}/{name}": text for name, text in unified.items()}}).memory
    assert (use.used, use.high, use.limit, use.slowed, use.stalled) == (90, 80, None, 3, 41.5)
    older = {"memory.usage_in_bytes": "90", "memory.limit_in_bytes": "100", "memory.failcnt": "7"}
    texts = {"groups memory": HERE, **{f"{HERE}/{name}": text for name, text in older.items()}}
    use = read(texts, {f"{HERE}/memory.failcnt": "9"}, 0.2).memory
    assert (use.limit, use.full) == (100, 2)
    texts[f"{HERE}/memory.limit_in_bytes"] = "9223372036854771712"
    assert read(texts).memory is None


def test_allowances():
    files = {"pids.current": "5", "pids.max": "5", "pids.events": "max 12"}
    files = {f"{HERE}/{name}": text for name, text in files.items()}
    found = read({"groups pids": HERE, "/proc/7/fd": "64", "/proc/loadavg": "1 1 1 3/9 77", **files})
    assert found.tasks == Allowance(5, 5, f"{HERE}/pids.max", 12)
    assert found.descriptors.is_used_up
    assert found.user_tasks is None  # the whole machine has fewer
    assert read({"/proc/loadavg": "1 1 1 3/10 77"}).user_tasks is not None


def test_a_second_reading_only_where_it_tells_more():
    assert surroundings.pause_for(7, BASE) > 0  # two of four processors
    everywhere = {**BASE, "/sys/devices/system/cpu/online": "0-1\n"}
    assert not surroundings.pause_for(7, everywhere)
    quota = {"groups cpu": HERE, f"{HERE}/cpu.max": "1000 100000", f"{HERE}/cpu.stat": "nr_periods 9\nnr_throttled 0"}
    assert not surroundings.pause_for(7, {**everywhere, **quota})
    quota[f"{HERE}/cpu.stat"] = "nr_periods 9\nnr_throttled 1"
    assert surroundings.pause_for(7, {**everywhere, **quota}) == pytest.approx(0.32)
    stopped = BASE["/proc/7/task/7/stat"].replace("R", "t")
    assert not surroundings.pause_for(7, {**everywhere, **quota, "/proc/7/task/7/stat": stopped})


@pytest.mark.parametrize(("used", "delayed"), [("0", 250), ("3", 0)])
def test_who_had_no_turn_at_all(used, delayed):
    """The scheduler counts a wait when it is over; on a processor without ticks utime alone tells of a thread's run."""
    stat = BASE["/proc/7/task/7/stat"].split()
    stat[14] = used
    later = {**BASE, "/proc/7/task/7/stat": " ".join(stat)}
    (turns,) = read({}, later, 0.25).threads
    assert (turns.running_ms, turns.delayed_ms) == (0, delayed)


@pytest.mark.parametrize(("policy", "nice", "said"), [(5, 0, "SCHED_IDLE"), (0, 9, "nice 9"), (0, -5, ""), (1, 0, "")])
def test_who_comes_after_others(policy, nice, said):
    stat = BASE["/proc/7/task/7/stat"].split()
    stat[40 + 1], stat[18 + 1] = str(policy), str(nice)  # the name has a blank
    (turns,) = read({"/proc/7/task/7/stat": " ".join(stat)}).threads
    assert turns.priority == said


def test_processors_of_others_are_idle():
    first = {"/proc/stat": "cpu  9 9\ncpu0 5 0 0 0 0\ncpu2 5 0 0 10 0\ncpu3 5 0 0 10 0\n"}
    later = {"/proc/stat": "cpu  9 9\ncpu0 25 0 0 0 0\ncpu2 5 0 0 30 0\ncpu3 25 0 0 10 0\n"}
    assert read(first, later, 0.2).idle == 0.5
