"""Pool: the thread pools whose workers are told apart from the threads of the program."""

from __future__ import annotations

from enum import Enum

from gdbext.model.record import Record


class PoolTraits(Record):
    """What distinguishes a pool."""

    workers: str = ""
    """Its workers, where they may be missing: "no …", "only 3 …"."""
    advice_when_missing: str = ""


class Pool(Enum):
    """A pool of threads; the value is its name."""

    traits: PoolTraits

    OPENMP = (
        "OpenMP",
        PoolTraits(
            "OpenMP worker threads",
            "Or call torch.set_num_threads(1) before the fork (or set OMP_NUM_THREADS=1), so that no pool is needed.",
        ),
    )
    AUTOGRAD = "autograd", PoolTraits("autograd engine threads")
    C10 = "c10 thread pool", PoolTraits("thread of the c10 thread pool")
    PTHREADPOOL = "pthreadpool", PoolTraits("thread of the pthreadpool")
    OPENBLAS = "OpenBLAS", PoolTraits()
    GLOO_LOOP = "gloo event loop", PoolTraits()
    GLOO_QUEUE = "gloo work queue", PoolTraits()
    STORE = "c10d store", PoolTraits()
    NCCL = "NCCL watchdog", PoolTraits()
    RPC = "RPC", PoolTraits()
    FUTURES = "concurrent.futures", PoolTraits()
    QUEUE_FEEDER = "multiprocessing queue feeder", PoolTraits()
    MULTIPROCESSING = "multiprocessing.Pool", PoolTraits()
    EXECUTOR_MANAGER = "ProcessPoolExecutor manager", PoolTraits()
    PROCESS_WORKER = "ProcessPoolExecutor", PoolTraits()
    LOADER_WORKER = "DataLoader", PoolTraits()
    PIN_MEMORY = "DataLoader pin memory", PoolTraits()
    TQDM = "tqdm monitor", PoolTraits()

    def __new__(cls, value: str, traits: PoolTraits) -> Pool:
        """The member with its name as value."""
        member = object.__new__(cls)
        member._value_ = value
        member.traits = traits
        return member


class MissingWorkers(Record):
    """Workers of a pool that a thread waits for, and that this process does not have."""

    pool: Pool
    present: int = 0
    """How many of them it has."""
    forked: bool = False
    """Something shows that the process was forked, which threads do not survive."""

    @property
    def sentence(self) -> str:
        """``this process has no OpenMP worker threads: they do not survive fork``."""
        count = f"only {self.present}" if self.present else "no"
        reason = "they do not survive fork" if self.forked else "why, is not known"
        return f"this process has {count} {self.pool.traits.workers}: {reason}"
