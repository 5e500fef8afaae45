"""dispatch-compile: states of frames, graphs, who compiles and who holds lock files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.engine.targets.system.procfs import NO_PROCFS
from gdbext.tools.compile import graph_breaks, resumptions
from gdbext.tools.compile.compiled_frames import (
    _innermost,
    compile_locks,
    compiling_processes,
    graph_node,
    module_comments,
    stage,
    states,
)
from gdbext.torch.compile import compile_section as section
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.compile_section import CompilingProcess, CompilingThread, FrameState, Resumption
from support.fakes.own_python import own_python

SITE = "/site-packages/torch/"
COMPILED, COMPILING, EAGER = FrameState.COMPILED, FrameState.COMPILING, FrameState.EAGER


def frame(function: str, file: str, code: int = 1) -> PythonFrame:
    return PythonFrame(function, file, 3, 0x1000, code)


USER = frame("step", "train.py")
COMPILE = frame("_compile", f"{SITE}_dynamo/convert_frame.py")
TRITON = frame("compile", "/site-packages/triton/compiler/compiler.py")
OWN_CACHE = f"/mnt/own/cache/q2/cq2{'x7' * 24}z.py"


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([USER._replace(code=9), USER], [COMPILED, EAGER]),
        ([frame("forward", "<eval_with_key>.12"), USER._replace(code=9)], [COMPILED, COMPILED]),
        *(([frame("call", file), USER], [COMPILED, EAGER]) for file in ("/tmp/torchinductor_me/ab/cab.py", OWN_CACHE)),
        ([frame("call", f"/mnt/own/cache/q2/cq3{'x7' * 24}z.py"), USER], [EAGER, EAGER]),
        ([frame("wrapper", f"{SITE}_functorch/_aot_autograd/subclass_codegen.py:codegen(wrapper)")], [COMPILED]),
        ([frame("make_cubin", "/site-packages/triton/backends/nvidia/compiler.py"), TRITON], [COMPILING, COMPILING]),
        ([frame("trace", f"{SITE}_dynamo/symbolic_convert.py"), COMPILE, USER], [COMPILING, COMPILING, EAGER]),
        # a graph that the compiler itself runs, while it propagates fake tensors
        ([frame("forward", "<eval_with_key>.3"), COMPILE], [COMPILING, COMPILING]),
        ([COMPILE, USER, COMPILE, USER], [COMPILING, COMPILING, COMPILING, EAGER]),
        ([frame("Backend.compile_fx", f"{SITE}_inductor/compile_fx.py"), USER], [COMPILING, EAGER]),
        # wrappers that compiled code goes through are no compiler
        ([frame("compile_wrapper", f"{SITE}_dynamo/eval_frame.py"), USER], [EAGER, EAGER]),
        ([frame("_compile", "train.py"), frame("compile_fx", "train.py")], [EAGER, EAGER]),
    ],
)
def test_states_of_frames(frames: list[PythonFrame], expected: list[FrameState]) -> None:
    assert states(frames, {9}) == expected


def test_the_part_of_the_compiler_is_that_of_the_innermost_frame_of_torch() -> None:
    inductor, aot = frame("f", f"{SITE}_inductor/graph.py"), frame("f", f"{SITE}_functorch/aot_autograd.py")
    stacks = ([USER, inductor, aot, COMPILE], [aot, COMPILE], [COMPILE], [USER])
    assert [stage(each) for each in stacks] == ["Inductor", "AOTAutograd", "TorchDynamo", ""]


def test_graph_breaks_and_where_code_goes_on() -> None:
    counters = {
        "graph_break": {"rare": 1, "often": 5},
        "resumes": {"torch_dynamo_resume_in_step_at_9": 2, "torch_dynamo_resume_in_<lambda>_at_30": 1, "other": 7},
    }
    resumed = ("torch_dynamo_resume_in_step_at_9", "train.py", 9)
    recorded = section.Compilation("1/0", *resumed, None, None, None, None, True)
    assert graph_breaks(counters) == (section.GraphBreak("often", 5), section.GraphBreak("rare", 1))
    expected = (Resumption("step", 9, "train.py", 2), Resumption("<lambda>", 30, None, 1))
    assert resumptions(counters, (recorded,)) == expected
    assert (graph_breaks({}), resumptions({}, ())) == ((), ())


class Linked:
    """A graph, which has a root, or a node, which has a next one."""


@pytest.mark.parametrize("closed", [True, False])
def test_a_number_that_no_node_has(closed: bool) -> None:
    """Nodes are a ring behind the root; of one that is not closed, the last does not lead back there."""
    graph, root, first, second = linked = [Linked() for _ in range(4)]
    setattr(graph, names.GRAPH_ROOT, root)
    for one, following in zip(linked[1:], (first, second, root if closed else first)):
        setattr(one, names.NEXT_NODE, following)
    with own_python() as python:
        found = PyRef(python, id(graph))
        assert [graph_node(found, number).address for number in (0, 1)] == [id(first), id(second)]
        assert not any(graph_node(found, number) for number in (None, -1, 1 << 60))
        assert bool(graph_node(found, 2)) is not closed


MODULE = """# AOT ID: ['1_backward']
cpp_fused_sin_0 = async_compile.cpp_pybinding(['const float*', 'float*'])
class Runner:
    def call(self, args):
        buf0 = empty_strided_cpu((3, ), (1, ), torch.float32)
        # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.sin, my.wait]
        buf1 = torch.ops.my.wait.default(buf0)
        del buf0
        # Unrelated
        cpp_fused_sin_0(buf1)

        return (buf1, )
"""
TEXTS = [line.strip() for line in MODULE.splitlines()]
NODES = "[y, z], Original ATen: [aten.sin, my.wait]"


def test_the_graph_and_the_nodes_of_lines() -> None:
    trace = '  File "a.py", line 3, in outer\n    inner()\n  File "b.py", line 7, in inner\n    x.sin()\n'
    assert _innermost(trace) == ("inner", "b.py", 7, True)
    assert _innermost("something else") is None
    comments = module_comments(TEXTS)
    assert comments.graph == "1_backward"
    assert module_comments(TEXTS[1:]).graph == ""
    assert [comments.lines.get(number, "") for number in (5, 7, 8, 10, 12)] == ["", NODES, NODES, NODES, ""]


LOCK = "/cache/locks/cab.lock"
WORKER = "python -m torch._inductor.compile_worker --kind=fork torch/_inductor/compile_worker/__main__.py"
PROCESSES = {
    11: ChildProcess(11, "python", command=WORKER, call="read"),
    12: ChildProcess(12, "g++", command="g++ /cache/ab/cab.cpp -O3 -o /cache/ab/cab.so", call="wait4"),
    13: ChildProcess(13, "cc1plus", command="cc1plus -quiet cab.cpp -o /tmp/x.s"),
    14: ChildProcess(14, "sleep", command="sleep 9"),
    99: ChildProcess(99, "python", command="python other.py"),
}


OPEN = {"/dev/null", LOCK}
PROCFS = SimpleNamespace(
    descendants=lambda: {11: 7, 14: 7, 12: 11, 13: 12},
    process=PROCESSES.__getitem__,
    open_files=lambda pid: OPEN if pid in (7, 12) else {"pipe:[1]", "/else/locks"},
    file_lock=lambda path: {LOCK: SimpleNamespace(processes=(PROCESSES[99],))}[path],
    has_locked=lambda pid, path: (pid, path) == (12, LOCK),
)
SESSION: Any = SimpleNamespace(procfs=PROCFS, target=SimpleNamespace(pid=7))
WORK = CompilingThread(11, "Triton", "triton_poi_fused_add_0", "/cache/x.py", 4)


@pytest.fixture(autouse=True)
def works(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose stacks were asked for."""
    asked: list[int] = []

    def work_of(pid: int) -> CompilingThread | None:
        asked.append(pid)
        return WORK if pid == 11 else None

    monkeypatch.setattr("gdbext.tools.compile.compiled_frames.work_of", work_of)
    return asked


def test_compilers_with_what_they_compile_and_lock_files_with_who_holds_them() -> None:
    assert compiling_processes(SESSION) == (
        CompilingProcess(11, "python", WORKER, "in read, started g++ 12", 7, "", WORK),
        CompilingProcess(12, "g++", PROCESSES[12].command, "in wait4, started cc1plus 13", 11, "/cache/ab/cab.cpp"),
        CompilingProcess(13, "cc1plus", PROCESSES[13].command, "runs", 12, "cab.cpp"),
    )
    assert compile_locks(SESSION) == (section.CompileLock(LOCK, (7, 12), (12, 99)),)
    core: Any = SimpleNamespace(procfs=NO_PROCFS, target=SESSION.target)
    assert (compiling_processes(core), compile_locks(core)) == ((), ())


def test_workers_that_wait_for_a_job_are_left_alone_and_of_many_only_some_are_stopped(works: list[int]) -> None:
    calls = {pid: "futex" if pid < 105 else "wait4" for pid in range(100, 130)}
    many = {pid: ChildProcess(pid, "python", command=WORKER, call=call) for pid, call in calls.items()}
    procfs = SimpleNamespace(descendants=lambda: dict.fromkeys(many, 7), process=many.__getitem__)
    session: Any = SimpleNamespace(procfs=procfs, target=SimpleNamespace(pid=7))
    assert len(compiling_processes(session)) == 30
    assert works == list(range(105, 113))
