"""Names in CPython that are assumed: its own C functions, and files, functions and attributes of its standard library.

C functions are recognized by name on native stacks; they are in every version (3.8 to 3.13, compared with the symbol
tables) unless noted. Static functions (take_gil, drop_gil) have no name in a stripped Python, so callers do not rely on
them alone.
"""

from __future__ import annotations

import re
from enum import Enum

EVAL_FUNCTIONS = ("_PyEval_EvalFrameDefault",)
"""Run Python code (Python/ceval.c); the compiler may add a suffix such as ".cold"."""
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
RUNS_FINALIZERS = ("PyObject_CallFinalizer", "PyObject_CallFinalizerFromDealloc", "slot_tp_finalize")
RUNS_WEAKREF_CALLBACKS = ("PyObject_ClearWeakRefs", "handle_weakrefs", "handle_callback", "handle_weakref_callbacks")
"""Functions that call Python code in the middle of other code: handlers of signals, finalizers and callbacks of weak
references (Modules/signalmodule.c, Objects/object.c, Objects/weakrefobject.c, Python/gc.c)."""
FATAL_ERROR = (
    "Py_FatalError",
    "_Py_FatalErrorFunc",  # 3.9 and later
    "_Py_FatalErrorFormat",  # 3.9 and later
    "_Py_FatalRefcountErrorFunc",  # 3.11 and later
)
"""End the process with a message (Python/pylifecycle.c)."""


class Waitable(Enum):
    """A kind of object that a thread can wait for. The value is its name in evidence."""

    LOCK = "lock"
    RLOCK = "rlock"
    CONDITION = "condition"
    EVENT = "event"
    SEMAPHORE = "semaphore"
    BARRIER = "barrier"
    QUEUE = "queue"
    SIMPLE_QUEUE = "simplequeue"
    FUTURE = "future"
    POOL_RESULT = "multiprocessing.pool's result"
    THREAD = "thread"
    IMPORT = "import"  # the lock of a module that another thread imports
    SHUTDOWN = "shutdown"  # no object: the interpreter waits for its threads to end

    @property
    def is_future(self) -> bool:
        """True if the object is a future of concurrent.futures."""
        return self is Waitable.FUTURE


NO_THREAD = "can't start new thread"
"""The text of a RuntimeError for want of another thread (Modules/_threadmodule.c, 3.8 to 3.15)."""
THREADING = "threading"  # the module that knows the threads made by Python
ACTIVE_THREADS = "_active"  # its dict of running threads: threading.get_ident() to Thread
DANGLING_THREADS = "_dangling"  # its WeakSet of all Thread objects, also of exited and of unstarted threads
DANGLING_PROCESSES = ("multiprocessing.process", "_dangling")  # (module, attribute): likewise of processes
THREAD_STARTED = "_started"  # attribute of a Thread with the Event that its own first statements set
THREAD_TARGET = "_target"  # attribute of a Thread with the function that it runs; Thread.run deletes it at its end
GENERATOR_MANAGERS = frozenset({"_GeneratorContextManager", "_AsyncGeneratorContextManager"})
"""Classes of the context managers that contextlib's ``contextmanager`` makes (Lib/contextlib.py, 3.8 to 3.15)."""
MANAGED_GENERATOR = "gen"  # their attribute with the generator, suspended while the body of the ``with`` runs
EXIT_STACKS, STACKED_EXITS = frozenset({"ExitStack", "AsyncExitStack"}), "_exit_callbacks"
EVENT_FLAG = "_flag"  # attribute of an Event that says whether it is set
THREAD_NAME = "_name"  # attribute of a Thread behind its ``name``
THREAD_IDENT = "_ident"  # attribute of a Thread with its get_ident()

THREAD_DAEMON = "_daemonic"  # attribute of a Thread: the interpreter exits without joining it
THREAD_NATIVE_ID = "_native_id"  # attribute of a Thread with the tid that it had when it started
THREADING_FILE = "threading.py"
CONDITION_WAIT = "wait"  # threading.Condition.wait: gives up the condition's lock while it waits
CONDITION_LOCK = "_lock"  # attribute of a Condition with its lock
CONDITION_WAITERS = "_waiters"  # attribute of a Condition with its waiters
CONDITION_WAITER = "waiter"  # the local variable of Condition.wait with the lock that it sleeps on
SHUTDOWN = "_shutdown"  # threading._shutdown: the interpreter waits for its threads to end
RLOCK_OWNER = "_owner"  # attribute of threading._RLock, the RLock written in Python, with its owner's get_ident()

MODULE_LOCK_OWNER = "owner"  # attribute of importlib._bootstrap._ModuleLock with its owner's get_ident()

FUTURES_FILE = "concurrent/futures/thread.py"
JOB_RUN = "run"  # _WorkItem.run: a worker of a ThreadPoolExecutor runs a job
FUTURE_CLASS, FUTURE_ERROR = "Future", "_exception"
FUTURE_CALLBACKS = "_done_callbacks"  # attribute of a Future with the list of its done-callbacks
JOB_FUTURE = "future"  # attribute of a _WorkItem with the Future of its result
EXECUTOR_THREADS = "_threads"  # attribute of ThreadPoolExecutor with the set of its workers, kept until shutdown()
EXECUTOR_QUEUE = "_work_queue"  # attribute of ThreadPoolExecutor with the queue of its jobs


def _calls(functions_by_file: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((file, name) for file, names in functions_by_file.items() for name in names.split())


WAITING_FUNCTIONS = _calls(
    {
        "threading.py": "wait wait_for _wait acquire __enter__ _acquire_restore join _wait_for_tstate_lock _shutdown",
        "queue.py": "get put join",
        "_base.py": "result exception",
        "pool.py": "wait get next",
        "<frozen importlib._bootstrap>": "acquire __enter__ _lock_unlock_module",
    }
)
"""(file, function) of frames that only wait."""

POOL_RESULT_ATTRIBUTES = ("_pool", "_job", "_cache")
"""Attributes of multiprocessing.pool's ApplyResult, MapResult and IMapIterator."""

OBJECT_KINDS = (
    (Waitable.THREAD, ("_target", "_ident")),
    (Waitable.IMPORT, ("wakeup", "owner", "waiters", "name")),
    (Waitable.BARRIER, ("_parties", "_cond")),
    (Waitable.EVENT, ("_flag", "_cond")),
    (Waitable.SEMAPHORE, ("_value", "_cond")),
    (Waitable.FUTURE, ("_condition", "_waiters")),
    (Waitable.POOL_RESULT, POOL_RESULT_ATTRIBUTES),
    (Waitable.CONDITION, ("_waiters", "_lock")),
    (Waitable.QUEUE, ("unfinished_tasks", "not_empty")),
    (Waitable.RLOCK, ("_block", "_owner", "_count")),
)
"""Kind of object by attributes that it must have, the first that fits: several classes have a method of the same
name."""

COUNTS = {Waitable.BARRIER: ("_count", "_parties"), Waitable.QUEUE: ("unfinished_tasks", "maxsize")}
"""Attributes with numbers: threads that have arrived at a Barrier, and that must; unfinished tasks of a Queue, and how
many items it takes."""
QUEUE_JOIN, QUEUE_PUT = "join", "put"  # methods of a Queue that wait until all tasks are done, or until there is room

WAITING_FILES = frozenset({"threading.py", "queue.py", "connection.py", "selectors.py", "queues.py", "synchronize.py"})
"""Files whose functions, called by a pool's worker, only wait for work."""

WORKING_CALLS = _calls(
    {"connection.py": "_send", "synchronize.py": "__enter__ acquire", "queue.py": "put", "queues.py": "put"}
)
"""(file, function) in which a pool's worker does not idle: it delivers, or waits for a semaphore between processes."""
PROCESS_POPEN = "_popen"  # attribute of multiprocessing.process.BaseProcess with what was started
PROCESS_PARENT = "_parent_pid"  # an attribute of every multiprocessing.process.BaseProcess
POPEN_SENTINEL = "sentinel"  # attribute of multiprocessing's Popen: an fd, at its end when the process exits
POPEN_PID = "pid"  # attribute of multiprocessing.popen_fork.Popen and of subprocess.Popen
POPEN_WAITS = (("multiprocessing/popen_fork.py", "wait"), ("multiprocessing/popen_forkserver.py", "poll"))
"""(file, function) that waits with a time limit for the process of ``self``, a Popen, by polling its sentinel."""
POPEN_ARGUMENTS = "args"  # attribute of subprocess.Popen with the command
PATH_TYPES = frozenset({"PosixPath", "PurePosixPath", "Path", "PurePath"})
"""Types of pathlib, whose instances have slots and no dict."""

POOL_PROCESSES = "_pool"
"""The attribute of multiprocessing.pool.Pool with its list of worker processes, and of its results with the pool."""
POOL_RESULTS = "_cache"  # attribute of multiprocessing.pool.Pool with its dict of results that are not there yet
POOL_REPLACER = ("_worker_handler", "replaces workers that have exited")
NEEDED_POOL_HELPERS = (("_task_handler", "hands out the jobs"), ("_result_handler", "collects the results"))
POOL_HELPERS = (*NEEDED_POOL_HELPERS, POOL_REPLACER)
"""Attributes of multiprocessing.pool.Pool with threads of the process that made it, and what these do for a result."""
EXECUTOR_MANAGER_CALL = ("process.py", "wait_result_broken_or_wakeup")
"""The method of concurrent.futures.process._ExecutorManagerThread in which it waits (3.9 and later)."""
OLD_EXECUTOR_MANAGER = "_queue_management_worker"
"""The function of that thread in 3.8, with the attributes of later versions as local variables."""
EXECUTOR_MANAGER = "_executor_manager_thread"  # attribute of ProcessPoolExecutor (3.9), and of loky's executors
EXECUTOR_ITEMS = "pending_work_items"  # its dict of _WorkItem by number, each with the ``future`` of its result
EXECUTOR_PROCESSES = "processes"  # its dict of worker processes by pid

_LIBRARY = re.compile(r"/lib(?:64)?/python3(?:\.\d+t?|\d*\.zip)?/")
"""The folder of Python's own library, and the beginning of that of installed packages (sysconfig, posix_prefix): a
program may well lie in a folder lib/python_tools."""
_PACKAGES = ("/site-packages/", "/dist-packages/")


def is_below_library(file: str) -> bool:
    """True for a source file of Python's own library, or of a package installed below it."""
    return "/lib" in file and bool(_LIBRARY.search(file))


def is_of_program(file: str) -> bool:
    """True for a source file of a program or package, False for one of Python's own library."""
    return not is_below_library(file) or any(folder in file for folder in _PACKAGES)


def package_of(file: str) -> str:
    """The folder of the installed package that ``file`` is in, "" for any other file."""
    for folder in _PACKAGES:
        root, separator, inside = file.partition(folder)
        if separator:
            return f"{root}{separator}{inside.partition('/')[0]}"
    return ""


GREENLET_HUBS = ("/gevent/", "/eventlet/")
"""Parts of the paths of the libraries whose hubs switch to greenlets. greenlet alone is also loaded by others, as
SQLAlchemy, which switches by asyncio."""
