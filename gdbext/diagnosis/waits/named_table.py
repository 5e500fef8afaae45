"""Waits that a function on the stack names better than the kernel does, as data: what is waited for, and until when.
Other packages add rows by the entry point ``gdbext.named_waits`` (docs/library.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.waits.function_tag import FunctionIndex, Functions, c_functions

if TYPE_CHECKING:
    from collections.abc import Iterable

_NOTHING = Functions()


class NativeText(NamedTuple):
    """A std::string of a native object that a variable of Python belongs to, found by what it looks like."""

    class_name: str
    """The class of the variable, or of one of its base classes, without its module: ``Socket``."""
    library: str
    """The beginning of the library with the native object's virtual functions: ``libzmq``."""
    pattern: str
    """A regular expression that the whole text matches."""
    has_several: bool = False
    """The function waits for several objects."""


class NamedWait(NamedTuple):
    """A function in which threads wait for one thing only, whatever they sleep in. In ``facts``, ``{self.pool.size}``
    is the value of a variable of the function, or of an attribute (a number or a text), and ``{self.items#}`` the
    number of elements; facts of which a part cannot be read are left out."""

    what: str
    """What is waited for: ``a connection of the pool``."""
    until: str
    """The event that ends the wait: ``a peer sends one``."""
    python: tuple[tuple[str, str], ...] = ()
    """(end of the path, function) of functions in Python, which must be the innermost ones of their package."""
    native: Functions = _NOTHING
    """Native functions, for libraries that have no Python in between."""
    facts: str = ""
    """A clause after ``what``: ``, of which {self._max} are in use``."""
    facts_of: tuple[str, ...] = ()
    """The callers whose variables ``facts`` names, whichever is on the stack; () for the function itself."""
    native_text: NativeText | None = None
    """A text for the place of ``{}`` in ``what``."""
    through: tuple[str, ...] = ()
    """Other packages whose functions this one may wait in: ``anyio``."""
    users: tuple[str, ...] = ()
    """Folders of the packages that use it: if no other thread is in one of them, ``unused`` is true."""
    unused: str = ""
    """A clause after the facts: nobody in this process is about to end the wait."""
    polls: bool = False
    """The function runs while it waits: it polls."""
    by_children: bool = False
    """Child processes end the wait."""
    innermost: bool = False
    """The function must be the innermost one in Python: what it calls may wait for something else."""
    advice: tuple[str, ...] = ()


_UNCLOSED = " by responses that were neither read to their end nor closed"
_CLOSE_RESPONSES = (
    "Read each response to its end or close it (with client.stream(…) as response:, response.close()), or raise the "
    "pool's limit; a timeout for the pool turns this hang into an exception.",
)
_ZMQ_SOCKET = NativeText("Socket", "libzmq", r"(?:tcp|ipc|inproc|pgm|epgm|vmci|udp|ws|wss)://[!-~]{1,200}")
_ZMQ_PEER = (
    "Check the process at that endpoint: ZeroMQ reports no error when a peer is gone or was never there. Set RCVTIMEO "
    "or SNDTIMEO, or poll with a timeout.",
)

ROWS: tuple[NamedWait, ...] = (
    NamedWait(
        "a message for the ZeroMQ socket{}",
        "a peer sends one",
        native=c_functions("zmq_msg_recv zmq_recv zmq_recvmsg zmq_recviov"),
        native_text=_ZMQ_SOCKET,
        advice=_ZMQ_PEER,
    ),
    NamedWait(
        "room for a message in the ZeroMQ socket{}",
        "a peer is connected and takes some",
        native=c_functions("zmq_msg_send zmq_send zmq_send_const zmq_sendmsg zmq_sendiov"),
        native_text=_ZMQ_SOCKET,
        advice=_ZMQ_PEER,
    ),
    NamedWait(
        "an event of the polled ZeroMQ sockets{}",
        "one of them has a message, or room for one",
        native=c_functions("zmq_poll zmq_ppoll zmq_poller_wait zmq_poller_wait_all"),
        native_text=_ZMQ_SOCKET._replace(has_several=True),
        advice=_ZMQ_PEER,
    ),
    NamedWait(
        "the end of a ZeroMQ context",
        "all of its sockets are closed and a peer has taken their unsent messages",
        native=c_functions("zmq_ctx_term zmq_term zmq_ctx_destroy"),
        advice=(
            "Close each socket with linger=0 (socket.close(linger=0), context.destroy(linger=0)) to give up messages "
            "that nobody takes: the default, -1, keeps them for ever.",
        ),
    ),
    NamedWait(
        "a connection of its pool",
        "one is given back",
        python=tuple(
            (f"/{package}/{folder}/connection_pool.py", "wait_for_connection")
            for package in ("httpcore", "httpcore2")
            for folder in ("_sync", "_async")
        ),
        facts=": {self._connections#} of {self._max_connections} connections are used",
        facts_of=("handle_request", "handle_async_request"),
        through=("anyio", "trio"),
        users=("/httpcore", "/httpx"),
        unused=_UNCLOSED,
        advice=_CLOSE_RESPONSES,
    ),
    NamedWait(
        "a connection of its pool",
        "one is given back",
        python=(("/urllib3/connectionpool.py", "_get_conn"),),
        facts=" for {self.host}: {self.pool.maxsize} of {self.pool.maxsize} connections are used",
        users=("/urllib3", "/requests"),
        unused=_UNCLOSED,
        advice=_CLOSE_RESPONSES,
    ),
    NamedWait(
        "a connection of its pool",
        "one is given back",
        python=(("/aiohttp/connector.py", "_wait_for_available_connection"),),
        facts=": {self._acquired#} of {self._limit} connections are used",
        users=("/aiohttp",),
        advice=_CLOSE_RESPONSES,
    ),
    NamedWait(
        "an answer of the manager's process",
        "its thread for this connection has run the call",
        python=(("/multiprocessing/managers.py", "_callmethod"),),
        facts=" to {methodname}() of its {self._token.typeid}",
        advice=(
            "In the manager's process, a thread with the name of this process runs the call, and waits there: a lock "
            "may have been taken by a client that is gone.",
        ),
    ),
    NamedWait(
        "the agents of the other nodes (exit barrier)",
        "the workers of each node have ended",
        python=(("/torch/distributed/elastic/agent/server/api.py", "_exit_barrier"),),
        facts=", at most {self._exit_barrier_timeout} s",
        advice=(
            "The workers of this node have ended. Look at the workers of the other nodes: one still runs or hangs, or "
            "its agent was killed.",
        ),
    ),
    NamedWait(
        "its workers",
        "one of them ends",
        python=(("/torch/distributed/elastic/agent/server/api.py", "_invoke_run"),),
        facts=", of which it looks after {self._worker_group.spec.local_world_size}",
        by_children=True,
        innermost=True,
        advice=(
            "The agent only looks after its workers: examine them with the same command, or with: dispatch ranks.",
        ),
    ),
    NamedWait(
        "a message in the ring of shared memory",
        "its writer has written one",
        python=(("/device_communicators/shm_broadcast.py", "acquire_read"),),
        facts=" {self.buffer.shared_memory._name}",
        polls=True,
        advice=("Examine the writer: fuser lists the processes that have the file below /dev/shm.",),
    ),
    NamedWait(
        "room in the ring of shared memory",
        "each of its readers has read the oldest message",
        python=(("/device_communicators/shm_broadcast.py", "acquire_write"),),
        facts=" {self.buffer.shared_memory._name}",
        polls=True,
        advice=("Examine the readers: fuser lists the processes that have the file below /dev/shm.",),
    ),
)
"""Sources: ZeroMQ include/zmq.h, 4.3.5; httpcore _sync/connection_pool.py, 1.0.9; urllib3 connectionpool.py, 2.8;
aiohttp connector.py, 3.14; CPython Lib/multiprocessing/managers.py, 3.8 to 3.15; torch
distributed/elastic/agent/server/api.py, 2.13; vllm/distributed/device_communicators/shm_broadcast.py, 0.6 to 0.11."""


class NamedWaits:
    """Finds the row of a function, in Python or native."""

    def __init__(self, rows: Iterable[NamedWait] = ROWS) -> None:
        self._by_call: dict[tuple[str, str], list[tuple[str, NamedWait]]] = {}
        native = []
        for row in rows:
            for path, function in row.python:
                self._by_call.setdefault((path.rpartition("/")[2], function), []).append((path, row))
            native += [(row, row.native)] if row.native != _NOTHING else []
        self.rows_of = FunctionIndex(native).tags_of
        """The rows of a native function, given all its names (mangled)."""

    def row_of(self, file: str, function: str) -> NamedWait | None:
        """The row of a Python function; ``file``: its path."""
        rows = self._by_call.get((file.rpartition("/")[2], function.rpartition(".")[2]), ())
        return next((row for path, row in rows if file.endswith(path)), None)
