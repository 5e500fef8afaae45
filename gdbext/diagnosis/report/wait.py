"""Wait: what one thread waits for, and who has it.

OwnerCertainty: how that is known.

CollectiveWait: what exactly a thread waits for that waits for other ranks.

DeviceWait: the call of CUDA's runtime or driver in which a thread waits for a device.

WaitEdge: one thread waits for another.
"""

from __future__ import annotations

from gdbext.diagnosis.report.wait_kind import Naming, WaitKind
from gdbext.engine.record import Enum, Record
from gdbext.engine.vocabulary import Certainty, json_member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from gdbext.diagnosis.report.wait_kind import LostThread, SelfWait
    from gdbext.diagnosis.waits.pool_table import MissingWorkers
    from gdbext.engine.targets.base_target import KernelSide
    from gdbext.engine.targets.system.peer import ChildProcess, Peer
    from gdbext.engine.vocabulary import Count, Hexadecimal, Inline, Internal, Sparse

    Owner = Union["OwnerThread", "VanishedThread", "ParentsThread"]
    """The owner of a resource."""


class CollectiveWait(Record):
    """A collective, a send or recv, or an operation of the store through which ranks meet."""

    op: str
    """``all_reduce``, ``recv``; of a store the function that waits: ``c10d::TCPStore::wait``."""
    seq: int | None = None
    """The operation's number in its group, None where nothing numbers it."""
    group: str = ""
    """Its process group: the description, else the name."""
    enqueued: int | None = None
    completed: int | None = None
    """The group's last numbers in this process."""
    peer: Count | None = None
    """The other end of a send or recv: its rank in the job."""
    is_store: bool = False
    key: str = ""
    """The key of the store, "" where it is not known."""
    server: str = ""
    """The address of the store: ``127.0.0.1:29500``."""
    tag: int | None = None
    """The tag of a send or recv, None where it is not known."""
    on_device: bool = False
    """It waits for a device, which is not past this operation; what else is to run there, nobody knows."""
    also_in: str = ""
    """Other threads of this process that wait in operations of the same group: each rank must issue them in one order,
    which two threads do not keep."""
    from_any: bool = False
    """A recv that takes what any other rank of the group sends."""
    rank: int | None = None
    size: int | None = None
    """The rank of the process and the number of ranks, where it is about to meet the others at the store."""

    @property
    def phrase(self) -> str:
        """``waits in #18 all_reduce (enqueued 18, completed 17)``."""
        if self.is_store and self.size is not None:
            if self.rank:
                return f"tries to reach the store of rank 0 at {self.server}, as rank {self.rank} of {self.size}"
            return f"waits until all {self.size} ranks have come to its store at {self.server}, as rank 0 ({self.op})"
        if self.is_store:
            key = f"the key '{self.key}'" if self.key else "a key"
            return f"waits for {key} of the store{f' at {self.server}' if self.server else ''} ({self.op})"
        doing = "waits for the device, which is not past" if self.on_device else "waits in"
        if self.peer is not None:
            tag = f" (tag {self.tag})" if self.tag else ""
            return f"{doing} {self.op} {'from' if self.op == 'recv' else 'to'} rank {self.peer}{tag}"
        if self.from_any:
            return f"{doing} {self.op} from any rank{f' (tag {self.tag})' if self.tag else ''}"
        number = f"#{self.seq} " if self.seq is not None else ""
        counts = (("enqueued", self.enqueued), ("completed", self.completed))
        known = ", ".join(f"{name} {count}" for name, count in counts if count is not None)
        also = f", in a group that {self.also_in} uses at the same time" if self.also_in else ""
        return f"{doing} {number}{self.op}" + (f" ({known})" if known else "") + also


class DeviceWork(Enum):
    """The work of the device that ends a call; the value is the word of the JSON report."""

    STREAM = "stream"
    EVENT = "event"
    DEVICE = "device"
    """Everything that was launched on the device."""
    COPY = "copy"
    MEMORY = "memory"
    """The driver gives or takes memory, which may wait for all that runs."""
    LAUNCH = "launch"
    """Work is put into a stream, which waits where the stream's queue is full."""
    GRAPH = "graph"
    SETUP = "setup"
    """The driver, a context or a module is loaded."""
    UNKNOWN = "unknown"


class DeviceWait(Record):
    """Facts of a call in which a thread waits for a device. What the device does is not known: work is said to
    be launched, never to run."""

    call: str
    """``cudaStreamSynchronize``; "" where the driver's function has no name."""
    work: DeviceWork
    driver_call: str = ""
    """The driver's function below the runtime's, ``cuStreamSynchronize``, where it is on the stack."""
    caller: str = ""
    """The library whose code made the call: ``libtorch_cuda.so``."""
    purpose: str = ""
    """The reason why PyTorch makes the call, by its functions on the stack; "" where they do not tell."""
    nccl_call: str = ""
    """The function of NCCL inside of which the call is made: it was entered, and has not returned."""
    polls: bool = False
    """The thread runs: it asks the device again and again, as the driver does by default."""
    stream: Hexadecimal | None = None
    """The cudaStream_t, 0 for the default stream; None where it is not known."""
    stream_id: int | None = None
    """PyTorch's number of the stream (torch.cuda.Stream.stream_id)."""
    event: Hexadecimal | None = None
    """The cudaEvent_t that is waited for; None where it is not known."""
    device: int | None = None
    certainty: Certainty = Certainty.UNKNOWN
    """The certainty of the stream or event."""
    holds_gil: bool = False
    """The thread has the GIL during the call, as the interpreter records it."""
    host_functions: tuple[int, ...] = ()
    """Threads of the driver that run functions of the program (cudaLaunchHostFunc) meanwhile: what was launched behind
    such a function waits for it."""

    @property
    def object(self) -> str:
        """The stream or event in words: ``the default stream``, ``stream 35 of cuda:0``, ``event 0x7f00``."""
        if self.event is not None:
            return f"event {self.event:#x}"
        if self.stream is None:
            return ""
        of_device = f" of cuda:{self.device}" if self.device is not None else ""
        if self.stream in _SPECIAL_STREAMS:
            return _SPECIAL_STREAMS[self.stream] + of_device
        number = f"{self.stream_id}" if self.stream_id is not None else f"{self.stream:#x}"
        return f"stream {number}{of_device}"

    @property
    def phrase(self) -> str:
        """``waits for the device (cudaStreamSynchronize of stream 35 of cuda:0, in ncclAllReduce)``."""
        call = self.call or "a call of the driver without a name"
        of_object = f" of {self.object}" if self.object else ""
        on_device = f" on cuda:{self.device}" if self.device is not None and self.stream is None else ""
        text = call + of_object + on_device
        inside = f", in {self.nccl_call}" if self.nccl_call else ""
        purpose = f": {self.purpose}" if self.purpose else ""
        return f"waits for the device ({text}{inside}){purpose}"


_SPECIAL_STREAMS = {0: "the default stream", 1: "the legacy default stream", 2: "the per-thread default stream"}
"""Values of a cudaStream_t that are no pointers: 0, cudaStreamLegacy, cudaStreamPerThread (cuda_runtime_api.h)."""


class Resource(Record):
    """Something a thread can wait for or hold. ``address`` is that of the lock, guard, semaphore, … or 0."""

    kind: WaitKind
    address: Hexadecimal
    name: str = ""
    """The name, for people only: what code needs to know stands in fields of its own."""
    variable: Internal[str] = ""
    """The variable by which the program's code has it: ``self.stats_lock``."""

    @property
    def phrase(self) -> str:
        """The resource with name and address: ``the mutex 0x7f00 (config_lock)``."""
        traits, name = self.kind.traits, self.name or self.kind.traits.unnamed
        if traits.naming is Naming.OF:
            return f"{traits.noun} of {name}" if name else traits.noun
        if traits.naming is Naming.GUARDED:
            return f"{traits.noun} {name} (guard {self.address:#x})"
        if traits.naming is Naming.ALONE and self.name:
            return self.name
        if traits.naming is Naming.IN_BRACKETS and self.name:
            return f"{traits.noun} ({self.name})"
        at = f" {self.address:#x}" if self.address else ""
        named = ": ".join(filter(None, (self.name, self.variable)))
        return f"{traits.noun}{at}{f' ({named})' if named else ''}"


class OwnerThread(Record):
    """A thread of this process."""

    tid: int

    @json_member(after="tid")
    def state(self) -> str:
        """It lives."""
        return "alive"


class VanishedThread(Record):
    """A thread that is recorded as the owner, and that is none of this process."""

    tid: int
    """The id that the lock records, in the process's own namespace; 0 where only the ident is recorded."""
    ident: Sparse[Hexadecimal | None] = None
    """The pthread_t that Python recorded; nothing translates it into an id any more."""

    @json_member(after="ident")
    def state(self) -> str:
        """It is gone."""
        return "gone"

    @property
    def phrase(self) -> str:
        """``thread 77``, or ``the thread with the ident 0x7f00`` where only that is recorded."""
        return f"thread {self.tid}" if self.ident is None else f"the thread with the ident {self.ident:#x}"


class ParentsThread(Record):
    """A thread of the parent process, which nobody can name here: the fork left it behind."""

    tid: int = 0
    """The number in its place."""

    @json_member(after="tid")
    def state(self) -> str:
        """It is gone."""
        return "gone"

    @property
    def phrase(self) -> str:
        """The owner in words: ``a thread of the parent process``."""
        return "a thread of the parent process"


class OwnerCertainty(Enum):
    """The way in which the owner of a resource is known. The value is the word of the JSON report."""

    RECORDED = "recorded"
    """The resource itself, or what belongs to it, says whose it is."""
    INFERRED = "inferred"
    """Concluded from something else: a frame of another thread."""
    UNKNOWN = "unknown"

    @property
    def is_proven(self) -> bool:
        """The owner may be named without a reservation."""
        return self is OwnerCertainty.RECORDED


class Refused(Enum):
    """A thing that the system, or a peer, has refused."""

    SPACE = "space"
    """Room on a file system, or in the quota of its user."""
    DESCRIPTORS = "descriptors"
    TASKS = "tasks"
    """One more thread, or one more process."""
    MEMORY = "memory"
    PEER = "peer"
    """The connection to a peer, on this machine or another."""


class Wait(Record):
    """The wait of a thread. ``certainty`` is that of the owner."""

    resource: Inline[Resource]
    owner: Owner | None = None
    certainty: OwnerCertainty = OwnerCertainty.UNKNOWN
    timed: bool = False
    """The wait ends by itself after a timeout."""
    evidence: tuple[str, ...] = ()
    collective: Sparse[CollectiveWait | None] = None
    """The operation of other ranks that is waited for, where that is known."""
    device: Sparse[DeviceWait | None] = None
    """The call in which a device is waited for."""
    peer: Sparse[Peer | None] = None
    """The other end, where it is known."""
    missing_workers: Sparse[MissingWorkers | None] = None
    """The threads that would end this wait and do not exist in this process, where that is known."""
    lost: Sparse[LostThread | None] = None
    """The thread that should end this wait and is not there, where that is known."""
    taken_at: Sparse[str] = ""
    """The line where the owner took the lock, ``train.py:8 (step)``; "" where that cannot be known."""
    looks_for: Sparse[str] = ""
    """The object that a thread which sleeps looks at between two sleeps; for people."""
    repeated_at: Sparse[str] = ""
    """The line of the loop that begins this timed wait again and again, ``train.py:8 (step)``; "" where that is not
    known, or the loop does nothing else."""
    lost_signal: Sparse[bool] = False
    """The condition variable's own words say that a signal went to nobody, while this thread sleeps."""
    handling: Sparse[str] = ""
    """The exception that the thread handles meanwhile, where it sleeps or waits for other ranks; for people."""
    others: Internal[tuple[Owner, ...]] = ()
    """Further owners, where all of them must let go (readers of a rwlock, team mates before a barrier)."""
    mutex: Internal[Resource | None] = None
    """The mutex that goes with a condition variable."""
    being_released: Internal[bool] = False
    """The resource is free or was just handed on: the thread is about to be woken, nobody holds it up."""
    external: Internal[bool] = False
    """Another process may end it: the object is in memory that both have."""
    set_by_handlers: Internal[bool] = False
    """Programs set such an object in signal handlers while their main thread waits for it."""
    self_wait: Internal[SelfWait | None] = None
    """The reason why a thread waits for what it holds itself, where other code interrupted its own."""
    children: Internal[tuple[ChildProcess, ...]] = ()
    """Child processes that may end it: the child that is waited for, those at the other end of a pipe."""
    expects: Internal[tuple[int, ...]] = ()
    """Ids of threads that have the object at hand and so may end the wait; no proof that one of them will."""
    looks_outside: Internal[bool] = False
    """True if that object is a file."""
    seconds: Internal[float | None] = None
    """Seconds that a sleep takes from now on, None where that is not known."""
    meets_others: Internal[bool] = False
    """It looks whether other machines of its job have come."""
    refused: Internal[Refused | None] = None
    """The thing that it could not have, where it sleeps before it tries again, by that exception."""
    once_refused: Internal[Refused | None] = None
    """The thing that it could not have at an earlier turn of the loop in which it sleeps; it may have it by now."""
    caught: Internal[str] = ""
    """The exception that the loop in which it sleeps has caught at an earlier turn; for people."""
    aside: Internal[str] = ""
    """A clause on a loop that waits for what nobody knows: processes that have ended; for people."""
    question: Internal[str] = ""
    """The program's question that waits for somebody to type, where it is asked and how; for people."""
    kernel: Internal[KernelSide | None] = None
    """The kernel's word, where no lock of the process may end the wait."""

    @property
    def kind(self) -> WaitKind:
        """The kind of what is waited for."""
        return self.resource.kind

    @property
    def address(self) -> int:
        """Address of the lock, guard, semaphore, …; 0 where it is not known."""
        return self.resource.address

    @property
    def name(self) -> str:
        """The name of the resource, for people."""
        return self.resource.name

    @property
    def owners(self) -> tuple[Owner, ...]:
        """The known owners of the resource."""
        return ((self.owner,) if self.owner else ()) + self.others

    @property
    def owner_tids(self) -> tuple[int, ...]:
        """The ids of the owners that are threads of this process."""
        return tuple(owner.tid for owner in self.owners if isinstance(owner, OwnerThread))

    @property
    def gone_owner(self) -> VanishedThread | ParentsThread | None:
        """The first owner that is no thread of this process."""
        return next((owner for owner in self.owners if not isinstance(owner, OwnerThread)), None)

    @property
    def phrase(self) -> str:
        """The wait in words: ``waits for the GIL``, ``sleeps``, ``waits in read on fd 5 (pipe:[77])``."""
        traits, resource = self.kind.traits, self.resource
        if self.collective:
            handling = f", while it handles {self.handling}" if self.handling else ""
            return self.collective.phrase + handling
        if self.device:
            return self.device.phrase
        if traits.naming is Naming.ALONE:
            text = traits.doing.format(resource.name or traits.unnamed)
            handling = f", while it handles {self.handling}" if self.handling else ""
            if self.looks_for:
                return f"{text} and looks again and again at {self.looks_for}{handling}"
            caught = f", which has caught {self.caught}" if self.caught else ""
            again = f"sleeps again and again in the loop at {self.repeated_at}{caught}{self.aside}"
            return f"{again if self.repeated_at and traits.may_poll else text}{handling}"
        text = traits.doing.format(resource.phrase)
        text += f", while it handles {self.handling}" if self.handling else ""
        return f"{text} (with mutex {self.mutex.address:#x})" if self.mutex else text

    @property
    def polls(self) -> bool:
        """It is one of the short sleeps between looks at what the thread really waits for."""
        return self.kind.traits.may_poll and bool(self.repeated_at or self.looks_for)

    @property
    def wakes_by_itself(self) -> bool:
        """A timed wait that begins again when its time is over, as that for the GIL does every 5 ms."""
        return self.timed and not self.kind.traits.timeout_ends_it

    @property
    def ends_by_itself(self) -> bool:
        """A timed wait that gives up when its time is over."""
        return self.timed and self.kind.traits.timeout_ends_it


class WaitEdge(Record):
    """Thread ``tid`` waits for something that thread ``held_by`` holds, or owes it."""

    tid: int
    held_by: int
    wait: Internal[Wait]

    @json_member(after="tid")
    def waits_for(self) -> Resource:
        """What it waits for."""
        return self.wait.resource
