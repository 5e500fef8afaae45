"""CPython's own C functions that are recognised by name on native stacks.

Compared with the symbol tables of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1 and 3.13.0; a name has every version unless
noted. Static functions (take_gil, drop_gil) have no name in a stripped Python, so whoever looks for them
has another way, too.
"""

from __future__ import annotations

from gdbext.cpython.abi.versions import SUPPORTED

EVALUATES = tuple(dict.fromkeys(name for abi in SUPPORTED for name in abi.evaluation_functions))
"""Functions that run Python code (Python/ceval.c)."""

TAKES_GIL = (
    "take_gil",
    "PyEval_RestoreThread",
    "PyEval_AcquireThread",
    "PyEval_AcquireLock",
    "_PyEval_AcquireLock",  # 3.12 and later
    "PyGILState_Ensure",
    "PyThreadState_Swap",
    "Py_NewInterpreterFromConfig",  # 3.12 and later
)
"""Wait for the global interpreter lock (Python/ceval_gil.c, pystate.c, pylifecycle.c)."""

OFFERS_GIL = (
    "drop_gil",
    "eval_frame_handle_pending",  # up to 3.11, where the compiler does not inline it
    "_Py_HandlePending",  # 3.12 and later
)
"""Give the lock to a thread that asked for it, and take it again (Python/ceval_gil.c)."""

WAITS_FOR_LOCK = (
    "PyThread_acquire_lock_timed",
    "PyThread_acquire_lock",
    "_PyMutex_LockTimed",  # 3.13 and later
    "_PyParkingLot_Park",  # 3.13 and later
    "_PySemaphore_Wait",  # 3.13 and later
)
"""Sleep until a lock object is free (Python/thread_pthread.h, lock.c, parking_lot.c)."""

READS_PROMPT = (
    "PyOS_Readline",
    "PyOS_StdioReadline",
    "PyRun_InteractiveLoopFlags",
    "PyRun_InteractiveOneFlags",
    "PyRun_InteractiveOneObject",
    "_PyRun_InteractiveLoopObject",  # 3.10 and later
)
"""Wait for a line that a person types at the interpreter's prompt (Parser/myreadline.c, Python/pythonrun.c)."""

RUNS_SIGNAL_HANDLERS = ("_PyErr_CheckSignalsTstate", "PyErr_CheckSignals", "handle_signals", "_PyErr_CheckSignals")
"""Functions that call Python's handlers of signals, between two instructions of the main thread, or in a blocking
call."""
RUNS_FINALIZERS = ("PyObject_CallFinalizer", "PyObject_CallFinalizerFromDealloc", "slot_tp_finalize")
RUNS_WEAKREF_CALLBACKS = ("PyObject_ClearWeakRefs", "handle_weakrefs", "handle_callback", "handle_weakref_callbacks")
"""Functions that call Python code in the middle of other code (Modules/signalmodule.c, Objects/object.c,
Objects/weakrefobject.c, Python/gc.c)."""
FATAL_ERROR = (
    "Py_FatalError",
    "_Py_FatalErrorFunc",  # 3.9 and later
    "_Py_FatalErrorFormat",  # 3.9 and later
)
"""End the process with a message (Python/pylifecycle.c)."""
