"""What is assumed of CPython, names and offsets, against every Python of this machine."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

from gdbext.cpython.abi import PythonAbi, python_structures
from gdbext.cpython.abi import assumed_names as names
from gdbext.cpython.abi.python_layout import PythonLayout, layout_for
from gdbext.cpython.abi.versions import SUPPORTED
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.engine.layouts.declarations import Struct
from gdbext.errors import SymbolFileError
from support.installed import pythons

SINCE = {
    "_PyRun_InteractiveLoopObject": (3, 10),
    "_Py_FatalErrorFunc": (3, 9),
    "_Py_FatalErrorFormat": (3, 9),
    "_Py_FatalRefcountErrorFunc": (3, 11),
    "_PyErr_CheckSignalsTstate": (3, 9),
    **dict.fromkeys(("_PyEval_AcquireLock", "Py_NewInterpreterFromConfig", "_Py_HandlePending"), (3, 12)),
    **dict.fromkeys(("_PyMutex_LockTimed", "_PyParkingLot_Park", "_PySemaphore_Wait"), (3, 13)),
    **dict.fromkeys(("PyThread_join_thread", "ThreadHandle_join"), (3, 13)),
}
"""Names that not every version has, and the first that does."""
INLINED = re.compile(
    "eval_frame_handle_pending|handle_(signals|weakrefs|callback|weakref_callbacks)|slot_tp_finalize|"
    "_PyErr_CheckSignals"
)
"""Names that the compiler usually inlines."""

FILES = {
    **{file: f"concurrent/futures/{file}" for file in ("_base.py", "thread.py", "process.py")},
    **{file: f"multiprocessing/{file}" for file in ("queues.py", "pool.py")},
    "<frozen importlib._bootstrap>": "importlib/_bootstrap.py",
}
_POOLS = (pools.FUTURES, pools.QUEUE_FEEDER, pools.MULTIPROCESSING, pools.EXECUTOR_MANAGER, pools.PROCESS_WORKER)


def library(abi: PythonAbi) -> Path:
    found = [each / "lib" / f"python{abi.text}" for each in pythons.prefixes(abi.text)]
    if not found:
        pythons.lacking(abi.text, f"no Python {abi.text} on this machine (scripts/test --all installs it)")
    return found[-1]


def source(abi: PythonAbi, file: str) -> str:
    return (library(abi) / FILES.get(file, file)).read_text(encoding="utf-8")


def functions(abi: PythonAbi, file: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(source(abi, file))) if isinstance(node, ast.FunctionDef)}


VERSIONS = pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)


@VERSIONS
def test_functions_of_the_standard_library(abi: PythonAbi) -> None:
    """Each file has some of the functions that are assumed of it; which ones differs."""
    assumed: dict[str, set[str]] = {}
    for file, function in (*names.WAITING_FUNCTIONS, *(call for pool in _POOLS for call in pool.python)):
        assumed.setdefault(file, set()).add(function)
    for file, wanted in assumed.items():
        there = functions(abi, file)
        assert wanted & there, (file, wanted)
        if file != "threading.py":
            assert wanted - there <= {"_lock_unlock_module", "wait_result_broken_or_wakeup"}, file
    assert {names.CONDITION_WAIT, names.SHUTDOWN} <= functions(abi, names.THREADING_FILE)
    assert names.JOB_RUN in functions(abi, names.FUTURES_FILE)


ATTRIBUTES = {
    names.THREADING_FILE: (names.THREAD_NAME, names.THREAD_IDENT, names.CONDITION_LOCK, names.RLOCK_OWNER),
    names.FUTURES_FILE: (names.JOB_FUTURE,),
    "importlib/_bootstrap.py": (names.MODULE_LOCK_OWNER,),
    "multiprocessing/process.py": (names.PROCESS_POPEN,),
    "multiprocessing/popen_fork.py": (names.POPEN_PID,),
}


@VERSIONS
def test_attributes_of_the_standard_library(abi: PythonAbi) -> None:
    for file, attributes in ATTRIBUTES.items():
        for name in attributes:
            assert re.search(rf"self\.{name}\b", source(abi, file)), name
    threading = source(abi, names.THREADING_FILE)
    assert re.search(rf"^{names.ACTIVE_THREADS} = \{{\}}", threading, re.MULTILINE)
    assert re.search(rf"^\s+{names.CONDITION_WAITER} = ", threading, re.MULTILINE)
    modules = ("threading.py", "queue.py", "_base.py", "importlib/_bootstrap.py", "pool.py")
    everything = "".join(source(abi, each) for each in modules)
    for attribute in {attribute for _, attributes in names.OBJECT_KINDS for attribute in attributes}:
        assert re.search(rf"self\.{attribute}\b", everything), attribute


@VERSIONS
def test_native_functions(abi: PythonAbi) -> None:
    prefix = library(abi).parents[1]
    shared = prefix / "lib" / f"libpython{abi.text}.so.1.0"
    try:
        index = SymbolIndex(ElfImage.open(str(shared if shared.exists() else prefix / "bin" / f"python{abi.text}")))
    except SymbolFileError as error:
        pytest.skip(str(error))
    if not index.complete:
        pytest.skip("that Python is stripped")
    groups = [names.EVAL_FUNCTIONS, names.TAKES_GIL, names.OFFERS_GIL, names.WAITS_FOR_LOCK, names.READS_PROMPT]
    groups += [names.RUNS_SIGNAL_HANDLERS, names.RUNS_FINALIZERS, names.RUNS_WEAKREF_CALLBACKS, names.FATAL_ERROR]
    for name in (name for group in groups for name in group):
        if not INLINED.fullmatch(name):
            assert bool(index.lookup(name)) == (abi.version >= SINCE.get(name, (3, 8))), name


ASK = """
import gdb, json
found = []
for struct, path in PAIRS:
    try:
        try:
            kind = gdb.lookup_type(struct)
        except gdb.error:
            kind = gdb.lookup_type("struct " + struct)
        bits, kind = 0, kind.strip_typedefs()
        for name in path.split(".") if path else ():
            bits += kind[name].bitpos
            kind = kind[name].type.strip_typedefs()
        found.append([struct, path, bits // 8 if path else kind.sizeof])
    except (gdb.error, KeyError):
        continue
print("FOUND" + json.dumps(found))
"""


def used(layout: PythonLayout) -> dict[tuple[str, str], int | None]:
    """(structure, member), "" for the size, to what we take it to be; None where this version does not have it."""
    pairs: dict[tuple[str, str], int | None] = {}
    own = vars(python_structures).values()
    for each in (each for each in own if isinstance(each, type) and issubclass(each, Struct) and each.OF):
        outer, _, inner = each.OF.partition(".")
        for member in each.members():
            if member.owner == each.OF:
                start = layout.struct(outer).fields[inner].offset if inner and member.is_in(layout) else 0
                at = member.find(layout)
                pairs[outer, f"{inner}.{member.path}".lstrip(".")] = None if at is None else start + at
        if not inner and (each.SIZE or layout.table.has_struct(each.OF)):
            pairs[outer, ""] = layout.size(each)
    return pairs


@pytest.mark.gdb
@pytest.mark.pythons
@VERSIONS
def test_offsets_are_those_of_the_compiler(abi: PythonAbi, tmp_path: Path) -> None:
    """Of libpython, and of _queue, an extension module; a library without debug information has none of them."""
    text = abi.text
    libraries = [found for each in pythons.prefixes(text) for found in each.glob(f"lib/libpython{text}.so.1.0")]
    if not libraries:
        pythons.lacking(text, f"no shared CPython {text} on this machine (--enable-shared)")
    (lock,) = abi.lock_types_named("_queue.SimpleQueue")
    pairs = used(layout_for(abi))
    queue = {("simplequeueobject", field): at for (struct, field), at in pairs.items() if struct == lock.struct.OF}
    pairs = {pair: at for pair, at in pairs.items() if pair[0] not in ("simplequeueobject", lock.struct.OF)} | queue
    assert len(pairs) > 80
    script = tmp_path / "ask.py"
    script.write_text(f"PAIRS = {sorted(pairs)!r}\n{ASK}")
    queues = libraries[-1].parent.glob(f"python{text}/lib-dynload/_queue.*.so")
    truth: dict[tuple[str, str], int] = {}
    for library in (*queues, libraries[-1]):
        command = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-x", str(script), str(library)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        answer = next(line for line in output.splitlines() if line.startswith("FOUND"))
        truth.update({(struct, field): offset for struct, field, offset in json.loads(answer[len("FOUND") :])})
    if len(truth) < 60:
        pytest.skip(f"{libraries[-1]} has no debug information")
    assert {pair: pairs[pair] for pair in truth} == truth
    unknown = {struct for struct, field in pairs.keys() - truth.keys() if field and pairs[struct, field] is not None}
    assert [struct for struct in unknown if not OWN_NAMES.fullmatch(struct)] == []


OWN_NAMES = re.compile(
    "simplequeueobject|parkingqueueobject|mutexlockobject|mutexrlockobject|wait_entry|deque block|PyTryBlock|"
    "PyMemberDescrObject|FutureObj|futureiterobject|SemLockObject"
)
"""Structures of extension modules, and forms of other versions: named otherwise, or not, in debug information."""
