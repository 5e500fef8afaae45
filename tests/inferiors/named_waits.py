"""named_waits: main threads in functions that say what is waited for. Argument: the scenario. Each notes words that the
verdict's sentence must have and must not have."""

import os
import socket
import sys

import truth


def waits(*says, never=()):
    truth.thread("main", waits=None)
    truth.note(says=list(says), never=list(never))
    truth.ready()


def silent_port():
    """A TCP port at which this process listens, and never answers."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]


def never_ending_answers():
    """The URL of a server, a child process, whose answers begin and do not end."""
    listener, port = silent_port()
    if os.fork() == 0:
        connections = []
        while True:
            connection, _ = listener.accept()
            connection.recv(9999)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nhello")
            connections.append(connection)
    listener.close()
    return f"http://127.0.0.1:{port}/"


def zmq_receive():
    import zmq

    listener, port = silent_port()
    context = zmq.Context()
    other, wanted = context.socket(zmq.PULL), context.socket(zmq.PULL)
    other.connect("ipc:///tmp/another-endpoint")
    wanted.connect(f"tcp://127.0.0.1:{port}")
    says = f"a message for the ZeroMQ socket of tcp://127.0.0.1:{port}"
    waits(says, "until a peer sends", never=["another-endpoint"])
    wanted.recv()
    listener.close()


def zmq_end():
    import zmq

    listener, port = silent_port()
    context = zmq.Context()
    sender = context.socket(zmq.PUSH)
    sender.connect(f"tcp://127.0.0.1:{port}")
    sender.send(b"x")
    sender.close()
    waits("the end of a ZeroMQ context", "unsent messages")
    context.term()
    listener.close()


UNCLOSED = "2 of 2 connections are used by responses that were neither read to their end nor closed"
NOT_LOST = ["exited", "no thread is in"]


def urllib3_pool():
    import urllib3

    url, held = never_ending_answers(), []
    pool = urllib3.PoolManager(maxsize=2, block=True)
    for _ in range(2):
        held.append(pool.request("GET", url, preload_content=False))
    waits("a connection of its pool for 127.0.0.1", UNCLOSED, never=NOT_LOST)
    pool.request("GET", url, preload_content=False)


def httpx_pool():
    import httpx

    url, held = never_ending_answers(), []
    client = httpx.Client(limits=httpx.Limits(max_connections=2), timeout=None)
    for _ in range(2):
        held.append(client.send(client.build_request("GET", url), stream=True))
    waits("a connection of its pool", UNCLOSED, never=NOT_LOST)
    client.send(client.build_request("GET", url), stream=True)


def manager():
    import multiprocessing

    serving = multiprocessing.get_context("fork").Manager()
    lock = serving.Lock()
    lock.acquire()
    waits("an answer of the manager's process to acquire() of its Lock", str(serving._process.pid))
    lock.acquire()


def yielding():
    import threading

    event = threading.Event()
    waits("yields the CPU in a loop that polls event", never=["sleeps"])
    while not event.is_set():
        os.sched_yield()


def rayon():
    import time

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).encode_batch(["a"] * 5000)
    waits("sleeps", never=["deadlock", "unidentified"])
    time.sleep(truth.FOREVER)


globals()[sys.argv[1]]()
