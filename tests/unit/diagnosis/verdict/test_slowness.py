"""Explanations of slowness, and the findings that they make."""

from __future__ import annotations

import pytest

from gdbext.cpython.threads.garbage_collector import GcRun
from gdbext.diagnosis.kinds.deadlock import SELF_DEADLOCK
from gdbext.diagnosis.kinds.state import BUSY as RUNS
from gdbext.diagnosis.kinds.state import SLOW, STARVED
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, Progress, ThreadProgress
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import judge
from gdbext.diagnosis.verdict.progress import with_collections
from gdbext.diagnosis.verdict.slowness import (
    Explanation,
    ExplanationKind,
    MachineSection,
    Slowness,
    SlownessInputs,
    explanations,
    repeated_collector,
    with_history,
)
from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
from gdbext.engine.targets.system.surroundings import Allowance, MemoryUse, Quota, Surroundings, Turns
from support.fakes.analysis_facts import step, thread, wait
from support.programs.wait_processes import NO_PYTHON_WAITS

NOTHING = Surroundings(4, (0, 1, 2, 3), None, "", None, None, None, None, None, None, (), None, 0.25, (), ())
QUOTA = Quota("/sys/fs/cgroup/a", 0.5, 100, 4, 4, 180, 0.32)
BUSY = thread(1, dispatch=[step("aten::mm")])


def facts(around, *threads, environ=None, recompiled=0):
    process = ProcessSnapshot(None, None, None, 1, frozenset((1,)), NO_PYTHON_WAITS)  # type: ignore[arg-type]
    return SlownessInputs(process, threads or (BUSY,), around, environ or {}, lambda: recompiled)


def kinds(around, *threads, **more):
    return [(each.kind.value, each.proven, each.starves) for each in explanations(facts(around, *threads, **more))]


def turns(running, delayed, count=1, priority=""):
    return tuple(Turns(tid, "R", running, delayed, 0, priority) for tid in range(1, count + 1))


PINNED = {"allowed": (2,), "threads": turns(50, 200), "idle": 0.9}
NICE = turns(90, 150, priority="nice 10")
MEMORY = MemoryUse("/sys/fs/cgroup/a", 100 << 20, 90 << 20, None, 5, 0, None, 30.0)
FULL = MEMORY._replace(slowed=0, full=9, limit=100 << 20, stalled=6.0)
TASKS = Allowance(9, 9, "pids.max", 4)
FILES = Allowance(64, 64, "limits", None, {"socket": 60, "pipe": 4})


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        ({"quota": QUOTA}, [("quota", True, True)]),
        ({"quota": QUOTA._replace(throttled=1, periods=4, stood_ms=40)}, [("quota", True, False)]),
        ({"quota": QUOTA._replace(throttled=0, stood_ms=0)}, []),
        ({"quota": QUOTA._replace(throttled=1, periods=10)}, []),
        ({"quota": QUOTA._replace(seconds=None)}, [("quota", False, False)]),
        ({"quota": QUOTA._replace(stood_ms=1)}, [("quota", False, False)]),
        (PINNED, [("affinity", True, True)]),
        ({**PINNED, "idle": 0.1}, [("affinity", False, False)]),
        ({**PINNED, "idle": 0.1, "threads": turns(50, 200, 3)}, [("affinity", True, True)]),
        ({**PINNED, "threads": turns(249, 1)}, []),
        ({"threads": turns(50, 200)}, [("other-processes", False, False)]),
        ({"threads": turns(50, 200, 9)}, [("oversubscription", False, False)]),
        ({"threads": turns(0, 250)}, [("other-processes", True, True)]),
        *(({"threads": turns(*times)}, [("other-processes", False, False)]) for times in ((10, 190), (0, 100))),
        # On a crowded machine a low priority alone does not starve.
        *(({"threads": NICE, "ready": ready}, [("other-processes", False, False)]) for ready in (None, 8, 40)),
        ({"memory": MEMORY}, [("memory", True, True)]),
        ({"memory": MEMORY._replace(slowed=0, stalled=0.0)}, []),
        ({"memory": FULL}, [("memory", True, False)]),
        ({"memory": FULL._replace(stalled=0.0)}, []),  # its page cache fills the group
        ({"tasks": TASKS}, [("tasks", True, True)]),
        ({"tasks": TASKS._replace(refused=0)}, []),
        ({"descriptors": FILES._replace(used=63)}, []),
    ],
)
def test_what_the_system_lacks(around, expected):
    assert kinds(NOTHING._replace(**around)) == expected


@pytest.mark.parametrize(
    ("around", "environ", "part"),
    [
        (PINNED, {"GOMP_CPU_AFFINITY": "2"}, "pinned by GOMP_CPU_AFFINITY=2"),
        ({**PINNED, "pinned_parent": "3 taskset"}, {}, "parent process 3 taskset"),
        ({"threads": turns(100, 150, priority="SCHED_IDLE"), "ready": 5}, {}, "it runs with SCHED_IDLE"),
        ({"descriptors": FILES}, {}, "60 socket, 4 pipe"),
    ],
)
def test_what_is_said_of_it(around, environ, part):
    (found,) = explanations(facts(NOTHING._replace(**around), environ=environ))
    assert (found.proven, found.starves) == (True, True)
    assert part in found.summary
    assert ("would be about 20%" in found.for_[-1]) == ("ready" in around)


def test_one_thread_where_many_could_run():
    environ = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"}
    (found,) = explanations(facts(NOTHING, environ=environ))
    assert (found.kind, found.proven) == (ExplanationKind.ONE_THREAD, False)
    assert "torchrun" in found.summary
    assert found.against
    assert kinds(NOTHING._replace(allowed=(0,)), environ=environ) == []
    asked = facts(NOTHING)._replace(set_num_threads=lambda: 1)
    (found,) = explanations(asked)
    assert "torch.set_num_threads(1)" in found.summary
    assert explanations(asked._replace(set_num_threads=lambda: 4)) == ()


def test_many_that_wait_for_the_gil_and_a_lock_that_is_on_its_way():
    waiting = [thread(tid, wait("gil", 1)) for tid in range(2, 8)]
    assert kinds(NOTHING, BUSY, *waiting) == [("gil", False, False)]
    assert kinds(NOTHING, BUSY, *waiting[:2]) == []
    free = wait("python-lock", None, address=0x10, being_released=True)
    waiting = [thread(tid, free) for tid in range(2, 7)]
    around = NOTHING._replace(threads=tuple(Turns(tid, "S", 1, 30, None, "") for tid in range(2, 5)))
    found = next(each for each in explanations(facts(around, BUSY, *waiting)) if each.kind.value == "lock-convoy")
    assert "5 threads wait" in found.summary
    assert found.for_ == ("3 of them ran for a moment during the examination: it changes hands",)
    assert not found.against


def test_subnormal_numbers():
    shares = [("self of aten::mul (f32[9] cpu)", 0.4), ("other of aten::mul (f32[9] cpu)", 0.05)]
    (found,) = explanations(facts(NOTHING)._replace(subnormals=lambda: shares))
    assert (found.kind, found.proven) == (ExplanationKind.SUBNORMALS, False)
    assert "40% of the numbers in self of aten::mul" in found.summary
    having, other = Slowness(MachineSection(NOTHING), (found,)), Slowness(MachineSection(NOTHING), ())
    for samples, proven in (
        ((having, having, having), True),
        ((other, having, having), True),
        ((having, other, other, having), False),
        ((having, having), False),  # too few
    ):
        (again,) = with_history(samples, 0.1).explanations
        assert again.proven == proven, samples


def found(*listed, threads=(BUSY,)):
    section = MachineSection(NOTHING)
    return judge(Observations(threads, 1, slowness=Slowness(section, listed))).verdict.finding


def test_the_verdict():
    proven = Explanation(ExplanationKind.QUOTA, "the quota is used up", proven=True, cure="raise it")
    assert found().kind is RUNS
    assert found(proven._replace(proven=False)).kind is RUNS
    slow = found(proven)
    assert (slow.kind, slow.step, slow.cures) == (SLOW, BUSY.innermost, ("raise it",))
    assert slow.summary.startswith("The process runs slowly: the quota is used up.")
    assert found(proven._replace(starves=True)).kind is STARVED
    stuck = thread(1, wait("mutex", 1))
    assert found(proven._replace(starves=True), threads=(stuck,)).kind is SELF_DEADLOCK


def test_the_pass_of_the_compiler_and_the_size_of_its_expression():
    path = ("sympy/core/expr.py simplify", "torch/_inductor/graph.py run_node")
    path += ("torch/_dynamo/convert_frame.py _compile",)
    frames = tuple(Frame(1, FrameKind.PYTHON, None, name, "", f"/x/{file}", 1) for file, name in map(str.split, path))
    (found,) = explanations(facts(NOTHING, thread(1, python_frames=frames))._replace(expression_size=lambda _: 77))
    assert found.kind is ExplanationKind.COMPILING
    assert "it is lowering the graph (run_node)" in found.for_
    assert found.for_[-1] == "SymPy works on an expression of 77 parts"


def collecting(done, generation=2, survivors=9):
    found = Explanation(ExplanationKind.GARBAGE_COLLECTION, "it collects", against=("one look",))
    return Slowness(MachineSection(None), (found,), GcRun(generation, survivors, done), 1)


NO_COLLECTION = Slowness(MachineSection(None), ())


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([collecting(3)] * 4, ["in 4 of 4 samples", "longer than 1.5 s"]),
        ([collecting(2), collecting(3), collecting(3)], ["in 3 of 3", "longer than 0.5 s", "1 collection of"]),
        ([collecting(3), NO_COLLECTION, collecting(3)], ["in 2 of 3 samples"]),
        ([None, collecting(3), collecting(9)], ["in 2 of 3 samples", "6 collections of generation 2 ended"]),
    ],
)
def test_how_long_a_collection_takes_is_told_by_samples(looks, told):
    (found,) = with_history(looks, 0.5).explanations
    assert found.against == ()
    assert len(found.for_) == len(told)
    assert all(part in text for part, text in zip(told, found.for_))


def test_who_collects_anew_has_left_its_place():
    assert repeated_collector([collecting(3), collecting(4)]) == 1
    assert repeated_collector([collecting(3), collecting(3)]) is None
    assert repeated_collector([collecting(3), collecting(3, survivors=8)]) is None, "counted in the middle of one"
    assert repeated_collector([collecting(3), NO_COLLECTION]) is None
    assert with_history([collecting(3), NO_COLLECTION], 0.5) == NO_COLLECTION
    stays = ThreadProgress(1, Progress.SPINNING, (), "gc_collect_main")
    moved = stays._replace(progress=Progress.MOVED, moved=("collections of garbage",), place="")
    assert with_collections([stays], 1) == [moved]
    assert with_collections([stays], None) == [stays]
