"""What abi/assumed_names.py and abi/assumed_names.py assume by name, against every Python of this machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gdbext.cpython.abi import PythonAbi, assumed_names
from gdbext.cpython.abi.versions import EVALUATES, SUPPORTED
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.errors import SymbolFileError
from support.installed import pythons

SINCE = {
    "eval_frame_handle_pending": None,
    "_PyEval_AcquireLock": (3, 12),
    "Py_NewInterpreterFromConfig": (3, 12),
    "_Py_HandlePending": (3, 12),
    "_PyMutex_LockTimed": (3, 13),
    "_PyParkingLot_Park": (3, 13),
    "_PySemaphore_Wait": (3, 13),
    "PyThread_join_thread": (3, 13),
    "ThreadHandle_join": (3, 13),
    "_PyRun_InteractiveLoopObject": (3, 10),
    "_Py_FatalErrorFunc": (3, 9),
    "_Py_FatalErrorFormat": (3, 9),
    "handle_signals": None,
    "handle_weakrefs": None,
    "handle_callback": None,
    "handle_weakref_callbacks": None,
    "slot_tp_finalize": None,
    "_PyErr_CheckSignals": None,
    "_PyErr_CheckSignalsTstate": (3, 9),
}
"""Names that not every version has, and the first that does; None for one that the compiler usually inlines."""

FILES = {
    "_base.py": "concurrent/futures/_base.py",
    "thread.py": "concurrent/futures/thread.py",
    "queues.py": "multiprocessing/queues.py",
    "pool.py": "multiprocessing/pool.py",
    "process.py": "concurrent/futures/process.py",
    "<frozen importlib._bootstrap>": "importlib/_bootstrap.py",
}


_POOLS = (
    pools.FUTURES,
    pools.QUEUE_FEEDER,
    pools.MULTIPROCESSING,
    pools.EXECUTOR_MANAGER,
    pools.PROCESS_WORKER,
)


def library(abi: PythonAbi) -> Path:
    """Lib/ of an installed Python of that version."""
    found = [each / "lib" / f"python{abi.text}" for each in pythons.prefixes(abi.text)]
    if not found:
        pythons.lacking(abi.text, f"no Python {abi.text} on this machine (pyenv install {abi.text})")
    return found[-1]


def source(abi: PythonAbi, file: str) -> str:
    return (library(abi) / FILES.get(file, file)).read_text(encoding="utf-8")


def functions(text: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
def test_functions_of_the_standard_library(abi: PythonAbi) -> None:
    """Each file has some of the functions that are assumed of it; which ones differs."""
    assumed: dict[str, set[str]] = {}
    for file, function in (*assumed_names.WAITING_FUNCTIONS, *(call for pool in _POOLS for call in pool.python)):
        assumed.setdefault(file, set()).add(function)
    for file, names in assumed.items():
        there = functions(source(abi, file))
        assert names & there, (file, names)
        if file != "threading.py":
            assert names - there <= {"_lock_unlock_module", "wait_result_broken_or_wakeup"}, file
    threads = functions(source(abi, assumed_names.THREADING_FILE))
    assert {assumed_names.CONDITION_WAIT, assumed_names.SHUTDOWN} <= threads
    assert assumed_names.JOB_RUN in functions(source(abi, assumed_names.FUTURES_FILE))


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
def test_attributes_of_the_standard_library(abi: PythonAbi) -> None:
    threading = source(abi, assumed_names.THREADING_FILE)
    for name in (
        assumed_names.THREAD_NAME,
        assumed_names.THREAD_IDENT,
        assumed_names.CONDITION_LOCK,
        assumed_names.RLOCK_OWNER,
    ):
        assert re.search(rf"self\.{name}\b", threading), name
    assert re.search(rf"^{assumed_names.ACTIVE_THREADS} = \{{\}}", threading, re.MULTILINE)
    assert re.search(rf"^\s+{assumed_names.CONDITION_WAITER} = ", threading, re.MULTILINE)
    assert re.search(rf"self\.{assumed_names.JOB_FUTURE}\b", source(abi, assumed_names.FUTURES_FILE))
    assert re.search(rf"self\.{assumed_names.MODULE_LOCK_OWNER}\b", source(abi, "importlib/_bootstrap.py"))
    assert re.search(rf"self\.{assumed_names.PROCESS_POPEN}\b", source(abi, "multiprocessing/process.py"))
    assert re.search(rf"self\.{assumed_names.POPEN_PID}\b", source(abi, "multiprocessing/popen_fork.py"))
    modules = ("threading.py", "queue.py", "_base.py", "importlib/_bootstrap.py", "pool.py")
    everything = "".join(source(abi, each) for each in modules)
    for kind, attributes in assumed_names.OBJECT_KINDS:
        for attribute in attributes:
            assert re.search(rf"self\.{attribute}\b", everything), (kind, attribute)


C_FUNCTIONS = (
    "TAKES_GIL",
    "OFFERS_GIL",
    "WAITS_FOR_LOCK",
    "READS_PROMPT",
    "RUNS_SIGNAL_HANDLERS",
    "RUNS_FINALIZERS",
    "RUNS_WEAKREF_CALLBACKS",
    "FATAL_ERROR",
)


@pytest.mark.parametrize("abi", SUPPORTED, ids=lambda abi: abi.text)
def test_native_functions(abi: PythonAbi) -> None:
    prefix = library(abi).parents[1]
    shared = prefix / "lib" / f"libpython{abi.text}.so.1.0"
    try:
        index = SymbolIndex(ElfImage.open(str(shared if shared.exists() else prefix / "bin" / f"python{abi.text}")))
    except SymbolFileError as error:
        pytest.skip(str(error))
    if not index.complete:
        pytest.skip("that Python is stripped")
    groups = [EVALUATES, *(getattr(assumed_names, group) for group in C_FUNCTIONS)]
    for name in (name for group in groups for name in group):
        since = SINCE.get(name, (3, 8))
        if since is not None:
            assert bool(index.lookup(name)) == (abi.version >= since), name
