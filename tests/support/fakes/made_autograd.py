"""What dispatch-autograd reports, made by hand: for golden texts and documents."""

from __future__ import annotations

from gdbext.diagnosis.report.thread_report import BackwardNode, Frame, FrameKind, ThreadReport
from gdbext.tools.autograd import autograd_section as made

LEAF = made.NodeReference("torch::autograd::AccumulateGrad", 0x5000, (1 << 64) - 1, "f32[6] cpu")
NODE = made.AutogradNode(
    name="AddmmBackward0",
    address=0x4000,
    sequence_nr=42,
    variable=None,
    topological_nr=3,
    made_by=8,
    forward_op="aten::addmm",
    file="train.py",
    line=12,
    function="forward",
    source="x = self.fc(x)\x1b",
    line_known_by="anomaly mode",
    hooks=(
        made.NodeHook(made.HookKind.TENSOR, "clip", "train.py", 40, runs=True),
        made.NodeHook(made.HookKind.NODE_AFTER, "c10d::Reducer::Hook"),
    ),
    saved=(
        made.SavedTensor("mat1", "f32[2, 6] cpu", 0, 2),
        made.SavedTensor("mat2", "f32[6, 6] cpu", 1, 1),
        made.SavedTensor("bias", "none", None, None),
    ),
    next_functions=(made.NextFunction(LEAF, 0), made.NextFunction(None, 0), *[made.NextFunction(LEAF, 1)] * 6),
)
SIGMOID = made.NodeReference("SigmoidBackward0", 0x4800, 41, None)
STALE = made.StaleTensor(SIGMOID, made.SavedTensor("result", "f32[2] cpu", 0, 2))
TASK, CLIP = 0x6000, "train.py:41 (clip)"
THREADS = (
    made.AutogradThread(7, "main", made.Phase.BACKWARD, NODE, 57, TASK, False, "aten::mm", CLIP, outer=(SIGMOID,)),
    made.AutogradThread(8, None, made.Phase.FORWARD, None, 3, None, False, "aten::conv2d", "train.py:9 (forward)"),
    made.AutogradThread(9, "waits", made.Phase.BACKWARD, None, None, None, None, None, "", ("no such variable",)),
    made.AutogradThread(10, "idle", made.Phase.NONE, None, 0, None, True, None, ""),
)
TASKS = (
    made.GraphTask(TASK, 1, (7,), 2, 12, 20, 1, "cpu", 1, True, True, (LEAF,), (STALE,) * 11, True),
    made.GraphTask(0x7000, None, (9, 11), None, None, None, None, None, None, None, None),
)
BACKWARD = ThreadReport(
    7,
    name="main",
    python_frames=tuple(
        Frame(level, FrameKind.PYTHON, None, name, file="train.py", line=line)
        for level, name, line in ((3, "clip", 41), (30, "<module>", 50))
    ),
    backward=(
        BackwardNode(9, "Mul\x1bBackward0", 4),
        BackwardNode(12, "torch::autograd::AccumulateGrad", (1 << 64) - 1, "f32[6] cpu"),
        BackwardNode(20, "TwiceBackward", None),
    ),
)
GRAPH = made.GraphFile(LEAF, 1, True, ("graph.dot", "graph.svg"), (STALE,), saved_known=False)
BUSY = made.AutogradSection(
    THREADS, TASKS, True, GRAPH, (made.DeviceQueue(0, 1, (SIGMOID,)), made.DeviceQueue(1, None, ()))
)
QUIET = made.AutogradSection(THREADS[3:], (), None)
