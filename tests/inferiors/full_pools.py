"""full-pools: tasks of loops, and jobs of pools that wait for each other or for the pool. Argument: the scenario.

Each notes the words that the verdict's sentence must have, and must not have.
"""

import asyncio
import concurrent.futures
import sys
import threading
import time

import truth

never = threading.Event()
begun = threading.Semaphore(0)


def line_of(function, offset):
    return f"{function.__name__} (full_pools.py:{function.__code__.co_firstlineno + offset})"


def tells(*says, never=()):
    truth.thread("main", waits=None)
    truth.note(says=list(says), never=list(never))


def waits(*says, **more):
    tells(*says, **more)
    truth.ready()


# Tasks of asyncio


class Library:
    """A framework whose tasks all have the same outermost function."""

    def __init__(self, handler):
        self.handler = handler

    async def serve(self, *arguments):
        await self.handler(*arguments)


async def fetch(event):
    await event.wait()


async def store(queue):
    await queue.put(1)


async def tasks_alike():
    event, full = asyncio.Event(), asyncio.Queue(1)
    full.put_nowait(0)
    tasks = [asyncio.ensure_future(Library(store).serve(full)) for _ in range(3)]
    tasks += [asyncio.ensure_future(Library(fetch).serve(event)) for _ in range(20)]
    await asyncio.sleep(0)
    waits(
        f"20 × {line_of(fetch, 1)}: each waits for the event ",
        f"3 × {line_of(store, 1)}: each waits for the queue ",
        never=["Library.serve"],
    )
    await asyncio.gather(*tasks)


async def produce(queue):
    raise ValueError("bad record")


async def consume(queue):
    await queue.get()


async def ticks():
    while True:
        await asyncio.sleep(1000)


async def task_failed():
    queue = asyncio.Queue()
    failed = asyncio.ensure_future(produce(queue))
    handled = asyncio.ensure_future(produce(queue))
    other = asyncio.ensure_future(ticks())
    await asyncio.wait([failed, handled])
    handled.exception()
    failed.set_name("producer")
    handled.set_name("handled")
    waits(
        f"{line_of(consume, 1)[:-1]}",
        "the task producer failed with ValueError('bad record'), raised in produce (full_pools.py:",
        "its exception was never retrieved",
        never=["the task handled"],
    )
    await asyncio.gather(consume(queue), other)
    print(failed)


# Pools


def job():
    begun.release()
    never.wait()


def executor_full():
    pool = concurrent.futures.ThreadPoolExecutor(3)
    jobs = [pool.submit(job) for _ in range(8)]
    for _ in range(3):
        begun.acquire()
    waits("All 3 worker threads of ThreadPoolExecutor are taken: 3 × " + line_of(job, 2) + ", each waits for ",
          "; 5 jobs wait for one")
    jobs[-1].result()


def rests():
    begun.release()
    time.sleep(truth.FOREVER)


def executor_busy():
    """A healthy program: each job ends by itself."""
    pool = concurrent.futures.ThreadPoolExecutor(2)
    jobs = [pool.submit(rests) for _ in range(6)]
    for _ in range(2):
        begun.acquire()
    waits(never=["no thread was found", "stuck"])
    jobs[0].result()


async def in_threads(function, count, *says, **more):
    """Run the function in ``count`` of anyio's threads, and tell when 40 have begun."""
    import anyio
    import anyio.to_thread

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(anyio.to_thread.run_sync, function)
        while begun._value < 40:
            await anyio.sleep(0.01)
        waits(*says, **more)


async def anyio_taken():
    await in_threads(
        job,
        50,
        "All 40 worker threads of anyio's limiter are taken: 40 × " + line_of(job, 2) + ", each waits for ",
        "; 10 tasks wait for one",
        "40 × job (full_pools.py:",
        never=["run_sync ("],
    )


def step():
    pass


async def more():
    import anyio.to_thread

    begun.release()
    await anyio.to_thread.run_sync(step)


def report():
    import anyio.from_thread

    anyio.from_thread.run(more)


async def anyio_itself():
    await in_threads(
        report,
        45,
        "All 40 worker threads of anyio's limiter are taken: 40 × " + line_of(report, 3),
        ", each waits for a task that waits for one of these threads; 45 tasks wait for one.",
    )


async def anyio_limited():
    """Not for ever: the cancel scope around the task group ends it."""
    import anyio

    with anyio.move_on_after(truth.FOREVER):
        await in_threads(report, 45, "All 40 worker threads of anyio's limiter are taken: 40 × " + line_of(report, 3))


def executor_of_loop():
    """Jobs of asyncio's executor wait for coroutines of the loop, which wait for jobs of the same executor."""

    async def more(loop):
        begun.release()
        await loop.run_in_executor(None, step)

    def report(loop):
        asyncio.run_coroutine_threadsafe(more(loop), loop).result()

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(2))
        jobs = [loop.run_in_executor(None, report, loop) for _ in range(2)]
        while begun._value < 2:
            await asyncio.sleep(0.01)
        waits("All 2 worker threads of ThreadPoolExecutor are taken: 2 × ",
              "report (full_pools.py:",
              ", each waits for a task that waits for one of these threads", "; 2 jobs wait for one")
        await asyncio.gather(*jobs)

    asyncio.run(main())


def grpc_itself():
    import grpc

    def call(request, context):
        with grpc.insecure_channel(target) as channel:
            return channel.unary_unary("/test.Test/Step")(b"step")

    def answer_step(request, context):
        return b"done"

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    methods = {"Call": call, "Step": answer_step}
    handlers = {name: grpc.unary_unary_rpc_method_handler(each) for name, each in methods.items()}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Test", handlers)])
    target = f"localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    channel = grpc.insecure_channel(target)
    answer = channel.unary_unary("/test.Test/Call").future(b"call")
    pool = server._state.thread_pool
    truth.until(lambda: pool._work_queue.qsize())
    waits("The only thread of gRPC's server is taken: ", "call (full_pools.py:",
          f"calls {target}, where this process itself listens; 1 job waits for it.")
    answer.result()


name = sys.argv[1].replace("-", "_")
program = globals()[name]
if asyncio.iscoroutinefunction(program):
    asyncio.run(program())
else:
    program()
