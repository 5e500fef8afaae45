"""What is assumed of torch._dynamo's Python modules: modules, variables, attributes, files. Seen in 2.13.0.

torch/_dynamo/utils.py, convert_frame.py, resume_execution.py, torch/utils/_config_module.py. What another release does
not have is not reported, and named among the problems.
"""

from __future__ import annotations

UTILS = "torch._dynamo.utils"
COUNTERS = "counters"
"""A defaultdict of Counters."""
METRICS = "_compilation_metrics"
"""A deque of CompilationMetrics, the last 64."""
ORIGINAL_CODES, VALUES = "orig_code_map", "values"
"""An ExactWeakKeyDictionary, whose ``values`` are the original code by the id of the compiled one."""
FRAMES, OK, TOTAL = "frames", "ok", "total"
GRAPH_BREAK, RESUMES = "graph_break", "resumes"
"""Keys of the counters."""
RESUME_FUNCTION = r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$"
"""Names of the functions that dynamo makes of what follows a graph break (resume_execution.py)."""

CONFIG, CONFIG_ENTRIES = "torch._dynamo.config", "_config"
"""The module, and its dict of entries by name."""
USER_OVERRIDE = "user_override"
"""Of an entry: since 2.13 a ContextVar whose default stands for "not set"."""
DISABLE, SUPPRESS_ERRORS = "disable", "suppress_errors"
DISABLING_VARIABLES = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
"""Environment variables; "1" disables torch.compile."""

COMPILER = ("torch/_dynamo/convert_frame.py", "_compile")
"""(file, function): its callees are the compiler at work; its local ``code`` is what it compiles."""
COMPILED_LOCAL = "code"
LATE_COMPILER = ("torch/_inductor/compile_fx.py", ("compile_fx", "compile_fx_inner", "_compile_fx_inner"))
"""The same, where a backward graph is compiled when it is first needed."""
STAGES = (
    ("torch/_inductor/", "Inductor"),
    ("torch/_functorch/", "AOTAutograd"),
    ("torch/_dynamo/", "TorchDynamo"),
)
"""Parts of the path of a file, innermost frame first, and the part of the compiler that it belongs to."""
GENERATED_FILES = ("<eval_with_key>", "/torchinductor_")
"""In the file name of a graph's function (torch/fx/graph_module.py) and of Inductor's modules, in its default cache."""
COMPILERS = ("cc1plus", "cc1", "g++", "gcc", "c++", "clang++", "clang", "ld", "as", "collect2", "nvcc", "ptxas", "cicc")
"""Programs that Inductor and Triton start."""
WORKER = "torch/_inductor/compile_worker"
"""In the command line of a process of Inductor's pool."""
