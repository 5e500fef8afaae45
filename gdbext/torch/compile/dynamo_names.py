"""Names that are assumed of the Python modules of torch.compile: modules, variables, attributes, files.

torch/_dynamo/utils.py, convert_frame.py, resume_execution.py, torch/utils/_config_module.py, of the releases in
compared.json. A name that such a release does not have is named among the problems; of other releases nothing is said.
"""

from __future__ import annotations

import json
import os
import re

COMPARED = f"{os.path.dirname(os.path.realpath(__file__))}/compared.json"  # noqa: PTH120 - pathlib takes long to import
"""The releases whose programs were compared with what they print themselves: scripts/measure_compile.py writes it."""

UTILS = "torch._dynamo.utils"
COUNTERS = "counters"
"""The variable with a defaultdict of Counters."""
METRICS = "_compilation_metrics"
"""A deque of CompilationMetrics, the last 64."""
ORIGINAL_CODES, VALUES = "orig_code_map", "values"
"""An ExactWeakKeyDictionary, whose ``values`` are the original code by the id of the compiled one."""
GUARD_FAILURES = "guard_failures"
"""A defaultdict of lists of texts, by code object."""
COMPILED_AGAIN = r".*/0*[1-9]\d*(?:_\d+)?$"
"""The id of a compilation that was not the first one of its code: "0/1" (torch/_guards.py, CompileId)."""
GRAPH_BREAK, RESUMES = "graph_break", "resumes"
"""Names of keys of the counters."""
RESUME_FUNCTION = r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$"
"""Names of the functions that dynamo makes of what follows a graph break (resume_execution.py)."""

CONFIG, INDUCTOR_CONFIG, CONFIG_ENTRIES = "torch._dynamo.config", "torch._inductor.config", "_config"
"""The modules, and the dict of entries by name that each has."""
DEFAULT, ALIAS = "default", "alias"
USER_OVERRIDE = "user_override"
FORCED_BY_ENVIRONMENT, ENVIRONMENT_DEFAULT = "env_value_force", "env_value_default"
"""Attributes of an entry. An object() stands for "not set"; since 2.13 the override is a ContextVar."""
DISABLE = "disable"
DISABLING_VARIABLES = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
"""Environment variables; "1" disables torch.compile."""

COMPILER = ("torch/_dynamo/convert_frame.py", "_compile")
"""(file, function): its callees are the compiler at work; its local ``code`` is what it compiles."""
COMPILED_LOCAL = "code"
LATE_COMPILER = ("torch/_inductor/compile_fx.py", ("compile_fx", "compile_fx_inner", "_compile_fx_inner"))
"""The same, where a backward graph is compiled when it is first needed."""
TRITON_COMPILER = ("triton/compiler/compiler.py", "compile")
TRITON_SOURCE, TRITON_FUNCTION = "src", "fn"
"""The same of Triton (3.1 to 3.7): its local variable with an ASTSource, whose attribute ``fn`` is a JITFunction, whose
own is the function of Python. Without them, the kernel that it compiles has no name."""
AUTOTUNERS = ("CachingAutotuner", "DebugAutotuner")
LAUNCHERS, LAUNCHED, RUNNER = "launchers", "function", "runner"
"""Classes of the objects that a module of Inductor has for its Triton kernels, under their names
(torch/_inductor/runtime/triton_heuristics.py); their list of launchers, functions that were made by exec; and in the
globals of such a function the handle of what it launches (a CUfunction as an int), or the method that has it in the
attribute of the same name of its object (static_triton_launcher.py)."""
STAGES = (
    ("/triton/", "Triton"),
    ("torch/_inductor/", "Inductor"),
    ("torch/_functorch/", "AOTAutograd"),
    ("torch/_dynamo/", "TorchDynamo"),
)
"""Parts of the path of a file, innermost frame first, and the part of the compiler that it belongs to."""
PASSES = (
    ("torch/_inductor/fx_passes/", "transforming the graph"),
    ("torch/_inductor/pattern_matcher.py", "matching patterns in the graph"),
    ("torch/_inductor/constant_folding.py", "folding constants"),
    ("torch/_inductor/freezing.py", "freezing parameters"),
    ("torch/_inductor/select_algorithm.py", "autotuning"),
    ("torch/_inductor/autotune_process.py", "autotuning"),
    ("torch/_inductor/codegen/", "generating kernels"),
    ("torch/_inductor/scheduler.py", "scheduling and fusing"),
    ("torch/_inductor/codecache.py", "compiling or loading generated code"),
    ("torch/_inductor/async_compile.py", "compiling or loading generated code"),
    ("torch/_inductor/graph.py", "lowering the graph"),
    ("torch/_functorch/partitioners.py", "partitioning the graph into forward and backward"),
    ("torch/_functorch/_aot_autograd/", "tracing the graph of operators"),
    ("torch/_dynamo/guards.py", "building guards"),
    ("call_user_compiler", "in the selected backend"),
    ("torch/_dynamo/symbolic_convert.py", "tracing the program's bytecode"),
)
"""Parts of the path of a file, or of the name of a function, and the pass of the compiler that this is; the innermost
frame with one tells (names of 2.6 to 2.15)."""
SYMPY, EXPRESSION_PARTS = "/sympy/", "_args"
"""The part of the path of SymPy's files, and the slot with the parts of an expression (SymPy's class Basic)."""
GRAPH_FILE = "<eval_with_key>"
"""The text in the file name of a graph's function (torch/fx/graph_module.py)."""
GENERATED_FILES = (GRAPH_FILE, "/torchinductor_", ".py:codegen(")
"""The same, of Inductor's modules in its default cache, and of wrappers that AOTAutograd writes
(torch/_functorch/_aot_autograd/subclass_codegen.py)."""
WRITTEN_FILE = re.compile(r"/([a-z2-7]{2})/c\1[a-z2-7]{49}\.py$")
"""The end of the path of a module that Inductor wrote, in any cache: two characters of its hash, and the whole of it
(torch/_inductor/codecache.py, code_hash and get_path)."""
COMPILED_GRAPH = "__compiled_fn_"
"""The beginning of the name under which TorchDynamo's bytecode calls a graph (output_graph.py), one in each code."""
GRAPH_ID = re.compile(r"# AOT ID: \['([^']+)'\]")
"""The text in one of the first lines of a module that Inductor wrote (torch/_inductor/codegen/wrapper.py)."""
GRAPH, GRAPH_LINES, GRAPH_ROOT, NEXT_NODE = "_graph", "_lineno_map", "_root", "_next"
NODE_META, STACK_TRACE = "meta", "stack_trace"
"""Attributes of torch.fx's GraphModule, Graph and Node, and a key of a node's ``meta``."""
COMPILERS = ("cc1plus", "cc1", "g++", "gcc", "c++", "clang++", "clang", "ld", "as", "collect2", "nvcc", "ptxas", "cicc")
"""Programs that Inductor and Triton start."""
LOCK_FILE = re.compile(r"/locks/[^/]+\.lock$")
"""The end of a lock file's path in Inductor's cache (torch/_inductor/codecache.py, get_lock_dir)."""
WORKER = "torch/_inductor/compile_worker"
"""The text in the command line of a process of Inductor's pool."""
POOL_READER = ("torch/_inductor/compile_worker/subproc_pool.py", "_read_thread")
POOL_PENDING, POOL_PROCESS = "pending_futures", "process"
"""(file, function) of the thread that waits for what the pool's process has done, and attributes of its ``self``, a
SubprocPool: a dict of the jobs that are not done, and the Popen."""
CODE_CACHE, PY_CODE_CACHE, WRITTEN_MODULES = "torch._inductor.codecache", "PyCodeCache", "modules"
"""The module, its class, and the list of the modules that Inductor wrote."""
SOURCE_NODES = "Source Nodes: "
"""The text in a comment of such a module, above what calls a kernel."""


def is_generated(file: str) -> bool:
    """True if the file name is that of generated Python code."""
    return any(part in file for part in GENERATED_FILES) or bool(WRITTEN_FILE.search(file))


def function_of(name: str) -> str:
    """The name of the program's function, also for a function that dynamo made of its code behind a graph break."""
    resumed = re.match(RESUME_FUNCTION, name)
    return resumed["function"] if resumed else name


def is_known(torch: str) -> bool:
    """True if that release ("2.13.0+cpu") was compared."""
    return ".".join(torch.split(".")[:2]) in compared()


def compared() -> list[str]:
    """The minor releases that were compared, the oldest first."""
    with open(COMPARED, encoding="utf-8") as stream:
        return [".".join(release.split(".")[:2]) for release in json.load(stream)]
