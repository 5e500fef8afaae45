"""One thread in each system call that a stop may end early; a line on standard input lets them all end as they should.

Prints what each call returned, and errno: 0, or EINTR where somebody stopped the thread.
"""

import ctypes
import errno
import json
import os
import signal
import socket
import struct
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
SIZE = 1 << 20
RELEASES = []
SEMAPHORES = []
RESULTS = {}


def call(name, function, *arguments):
    def run():
        ctypes.set_errno(0)
        result = function(*arguments)
        RESULTS[name] = [result, errno.errorcode.get(ctypes.get_errno(), "")]

    thread = threading.Thread(target=run, name=name)
    thread.start()
    return thread


def drained(descriptor):
    def drain():
        left = SIZE
        while left:
            left -= len(os.read(descriptor, left))

    return drain


def begin():
    data = ctypes.create_string_buffer(SIZE)
    reader, writer = os.pipe()
    RELEASES.append(drained(reader))
    yield call("write", libc.write, writer, data, SIZE)

    ours, theirs = socket.socketpair()
    theirs.send(b"part")
    RELEASES.append(lambda: theirs.send(b"rest"))
    yield call("recv MSG_WAITALL", libc.recv, ours.detach(), ctypes.create_string_buffer(8), 8, socket.MSG_WAITALL)

    watched, signaller = os.pipe()
    epoll = libc.epoll_create1(0)
    event = struct.pack("<IQ", 1, 0)
    libc.epoll_ctl(epoll, 1, watched, event)
    RELEASES.append(lambda: os.write(signaller, b"x"))
    yield call("epoll_wait", libc.epoll_wait, epoll, ctypes.create_string_buffer(64), 1, 600_000)

    wanted = ctypes.create_string_buffer(struct.pack("<Q", 1 << (signal.SIGUSR1 - 1)) + bytes(120))
    RELEASES.append(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    yield call("sigtimedwait", libc.sigtimedwait, wanted, None, ctypes.create_string_buffer(struct.pack("ll", 600, 0)))

    semaphore = libc.semget(0, 1, 0o600)
    RELEASES.append(lambda: libc.semop(semaphore, ctypes.create_string_buffer(struct.pack("<HhH", 0, 1, 0)), 1))
    yield call("semop", libc.semop, semaphore, ctypes.create_string_buffer(struct.pack("<HhH", 0, -1, 0)), 1)
    SEMAPHORES.append(semaphore)


threads = list(begin())
print(json.dumps({"threads": {thread.name: thread.native_id for thread in threads}}), flush=True)
sys.stdin.readline()
for release in RELEASES:
    threading.Thread(target=release, daemon=True).start()  # what a call cut short never writes is waited for in vain
for thread in threads:
    thread.join()
for semaphore in SEMAPHORES:
    libc.semctl(semaphore, 0, 0)  # IPC_RMID: who waits for one that is removed is told so
print(json.dumps(RESULTS), flush=True)
