"""A server, its engine and the engine's two workers, as inference servers have them: who asks the server is told what
is wrong in the tree below it.

``server_trees.py FAULT MEMBER``. FAULT: ``none``, ``stopped``, ``deadlock`` or ``killed``; MEMBER: ``engine``,
``worker0`` or ``worker1``. The server waits in epoll for sockets of clients and of the engine; the engine polls the
pipes of its workers; a healthy worker reads from its pipe.
"""

import os
import select
import signal
import socket
import sys
import threading
import time

import truth

FAULT, MEMBER = sys.argv[1:3]
FOLDER = os.path.dirname(truth.path() or "/tmp/") + "/"


def tell(name):
    with open(f"{FOLDER}{name}.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{FOLDER}{name}.tmp", f"{FOLDER}{name}.pid")


def told(name):
    path = f"{FOLDER}{name}.pid"
    truth.until(lambda: os.path.exists(path))
    with open(path) as file:
        return int(file.read())


def deadlock():
    """Two threads take two locks in opposite order."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(one, other):
        with one:
            both.wait()
            with other:
                pass

    truth.start(take, args=(first, second))
    time.sleep(0)
    take(second, first)


def misbehave(name):
    truth._die_with_parent()
    tell(name)
    if name != MEMBER or FAULT == "none":
        return
    if FAULT == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "deadlock":
        deadlock()


def work(name, requests, answers):
    misbehave(name)
    while True:
        os.write(answers, os.read(requests, 1))


def run_engine(server):
    poll = select.poll()
    poll.register(server, select.POLLIN)
    for name in ("worker0", "worker1"):
        requests, to_worker = os.pipe()
        from_worker, answers = os.pipe()
        if not os.fork():
            os.close(to_worker)
            os.close(from_worker)
            work(name, requests, answers)
        poll.register(from_worker, select.POLLIN)
    for name in ("worker0", "worker1"):
        told(name)  # they die with the engine
    misbehave("engine")
    while True:
        poll.poll()


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def announce():
    pids = {name: told(name) for name in ("engine", "worker0", "worker1")}
    wanted = {"stopped": "T", "killed": "Z"}.get(FAULT, "S")
    truth.until(lambda: state_of(pids[MEMBER]) == wanted)
    if FAULT == "deadlock":
        truth.until(lambda: len(os.listdir(f"/proc/{pids[MEMBER]}/task")) == 2)
        for tid in os.listdir(f"/proc/{pids[MEMBER]}/task"):
            truth.until(lambda path=f"/proc/{pids[MEMBER]}/task/{tid}/syscall": open(path).read().startswith("202 "))
    truth.note(pids=pids)
    truth.ready()


truth.thread("main", "any")
to_engine, to_server = socket.socketpair()
if not os.fork():
    run_engine(to_server)
listener = socket.create_server(("127.0.0.1", 0))
epoll = select.epoll()
for each in (listener, to_engine):
    epoll.register(each, select.EPOLLIN)
truth.start(announce).join()
while True:
    epoll.poll()
