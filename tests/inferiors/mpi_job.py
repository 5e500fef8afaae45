"""mpi_job SCENARIO FOLDER: one rank of a job of MPI that hangs (mpi4py); the launcher is mpiexec of MPICH or Open MPI.

Each rank writes FOLDER/RANK.json with its pid, job and part of the hang before it goes into it.
"""

import json
import os
import sys
import time

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
LARGE = bytearray(1 << 24)


def tell(**truth):
    """Write the truth; the file is there as a whole."""
    path = os.path.join(sys.argv[2], f"{RANK}.json")
    with open(path + ".tmp", "w") as out:
        json.dump({"pid": os.getpid(), "rank": RANK, **truth}, out)
    os.rename(path + ".tmp", path)


def both_send():
    tell(op="send", peer=1 - RANK, tag=7 + RANK)
    WORLD.Send(LARGE, dest=1 - RANK, tag=7 + RANK)


def both_receive():
    tell(op="recv", peer=1 - RANK, tag=7)
    WORLD.Recv(LARGE, source=1 - RANK, tag=7)


def late_barrier():
    tell(op="" if RANK == 1 else "barrier")
    time.sleep(1e6) if RANK == 1 else WORLD.Barrier()


def late_in_group():
    """Ranks 1 and 2 are a communicator of their own, in which rank 2 is rank 1 and late."""
    group = WORLD.Split(RANK > 0)
    tell(op="recv" if RANK == 1 else "", peer=2, tag=3)
    if RANK == 1:
        group.Recv(LARGE, source=1, tag=3)
    time.sleep(1e6)


def from_any():
    tell(op="recv" if RANK == 0 else "", tag=5)
    WORLD.Recv(LARGE, source=MPI.ANY_SOURCE, tag=5) if RANK == 0 else time.sleep(1e6)


def waits_for_request():
    tell(op="wait" if RANK == 0 else "", tag=5)
    WORLD.Irecv(LARGE, source=1, tag=5).Wait() if RANK == 0 else time.sleep(1e6)


def crossed():
    tell(op="bcast" if RANK else "allreduce")
    WORLD.Bcast(LARGE, root=0) if RANK else WORLD.allreduce(1)


def pickled():
    """Small letters of mpi4py: a probe is waited for before the message is received."""
    tell(op="mprobe" if RANK == 0 else "", peer=1, tag=4)
    WORLD.recv(source=1, tag=4) if RANK == 0 else time.sleep(1e6)


def moving():
    tell(op="")
    while True:
        WORLD.Barrier()
        time.sleep(0.01)


def exchanging():
    """It runs: both ranks spend most of their time in MPI_Send, at the same time."""
    tell(op="")
    received = bytearray(len(LARGE))
    while True:
        request = WORLD.Irecv(received, source=1 - RANK, tag=7)
        WORLD.Send(LARGE, dest=1 - RANK, tag=7)
        request.Wait()


def stepping():
    """It runs: rank 0 is in a barrier nearly always, where rank 1 comes once in 0.3 s."""
    tell(op="")
    while True:
        time.sleep(0.3 * RANK)
        WORLD.Barrier()


globals()[sys.argv[1]]()
time.sleep(1e6)
