"""nested-pool: every worker of a thread pool waits for a job that waits for a worker.

Source: https://github.com/PrefectHQ/prefect/issues/14194. Argument: the number of workers.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import truth

WORKERS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="flow")
meet = threading.Barrier(WORKERS + 1)


def flow(number):
    truth.thread(f"flow-{number}", waits="futex", waits_for="condvar", holds="condvar")
    meet.wait()
    return pool.submit(int).result()


futures = [pool.submit(flow, number) for number in range(WORKERS)]
meet.wait()
truth.thread("main", waits="futex")
cycle = [f"flow-{number}" for number in range(WORKERS)]
truth.note(verdict="deadlock" if WORKERS > 1 else "self-deadlock", cycle=cycle, names=["flow_0"])
truth.ready()
[future.result() for future in futures]
