"""others-end: another process, or nobody, is at the other end, and does nothing that would help.

Arguments, and what they are made after:
"asyncio": nobody reads what the child writes (https://github.com/bytedance/SandboxFusion/issues/53);
"fifo": nobody opens the other end (https://github.com/mosquito/aiofile/issues/17);
"sockets": both ends send, and neither receives (https://github.com/bitcoin/bitcoin/pull/27981).
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time

import truth


def asynchronous():
    async def main():
        words = [sys.executable, "-c", "print('x' * 1_000_000)"]
        child = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        truth.note(names=[f"waits for the end of process {child.pid}", "waits to write"])
        ready()
        await child.wait()

    asyncio.run(main())


def fifo():
    os.mkfifo("batches")
    truth.note(names=["openat of", "/batches"])
    ready()
    open("batches", "rb")


def sockets():
    here, there = socket.socketpair()
    child = os.fork()
    (there if child else here).close()
    truth.note(names=["sendto on", "bytes unread", f"held by {child}"])
    if child:
        ready()
    (here if child else there).sendall(bytes(10_000_000))


def ready():
    """Says so when the main thread has come to its wait."""
    truth.thread("main", waits=None)
    truth.note(verdict="waiting-external")
    threading.Thread(target=lambda: (time.sleep(1), truth.ready()), daemon=True).start()


{"asyncio": asynchronous, "fifo": fifo, "sockets": sockets}[sys.argv[1]]()
