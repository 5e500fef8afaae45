"""never-done: the main thread waits until all of something are done, and one never is.

Arguments, and what they are made after:
"queue": a worker took tasks and did not call task_done() (https://github.com/dbt-labs/dbt-core/issues/5602);
"barrier": a thread died on its way (https://github.com/Quansight-Labs/free-threaded-compatibility/issues/133);
"futures": concurrent.futures.wait() of two, one of which hangs (https://github.com/python/cpython/issues/92001);
"executor": asyncio.run() waits for a job of its executor (https://github.com/jaredrhod/backtalk/issues/24).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import sys
import threading

import truth


def tasks():
    work = queue.Queue()
    threading.Thread(target=lambda: [work.get() for _ in range(3)], name="worker", daemon=True).start()
    work.put(1)
    work.put(2)
    ready("blocked", "2 tasks without task_done()")
    work.join()


def barrier():
    start = threading.Barrier(3)
    threading.Thread(target=start.wait, name="first", daemon=True).start()
    ready("blocked", "2 of 3 threads have come")
    start.wait()


def futures():
    pool = concurrent.futures.ThreadPoolExecutor(2)
    jobs = [pool.submit(int), pool.submit(queue.Queue().get)]
    ready("blocked", "concurrent.futures.Future", "still to come from", "queue")
    concurrent.futures.wait(jobs)


def executor():
    async def main():
        asyncio.get_running_loop().run_in_executor(None, queue.Queue().get)
        await asyncio.sleep(0.1)
        ready("waiting-external", "the end of the default executor's jobs")

    asyncio.run(main())


def ready(verdict, *names):
    """Says so when the main thread has come to its wait."""
    truth.thread("main", waits=None)
    truth.note(verdict=verdict, names=names)
    timer = threading.Timer(1, truth.ready)
    timer.daemon = True
    timer.start()


{"queue": tasks, "barrier": barrier, "futures": futures, "executor": executor}[sys.argv[1]]()
