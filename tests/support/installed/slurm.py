"""Slurm's own daemons on the loopback, without authentication: a cluster of this one machine, for one test.

Configuration, state and logs are in a folder of the test; nothing of an installed cluster is read.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.installed.machine import PLACES
from support.installed.sshd import free_ports
from support.programs.harness import PATIENCE, HarnessError, wait_until

_CONFIGURATION = """\
ClusterName=gdbext
SlurmctldHost={host}(127.0.0.1)
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=10 State=UP
SlurmctldPort={controller}
SlurmdPort={node}
CommunicationParameters=NoAddrCache,NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=1
"""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """The environment in which srun reaches the cluster. Its jobs end with it."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    configuration = folder / "slurm.conf"
    controller, node = free_ports(2)
    host = socket.gethostname().partition(".")[0]
    values = {"host": host, "folder": folder, "user": getpass.getuser(), "controller": controller, "node": node}
    configuration.write_text(_CONFIGURATION.format(**values))
    environment = {**os.environ, "SLURM_CONF": str(configuration), "PATH": PLACES}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for words in (["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            with (folder / f"{words[0]}.output").open("wb") as output:
                options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                daemons.append(subprocess.Popen(words, env=environment, **options))
        _wait_until(lambda: "idle" in _said(["sinfo", "-h", "-o", "%T"], environment), folder)
        yield environment
    finally:
        _said(["scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}"], environment)
        _said(["scancel", f"--user={getpass.getuser()}"], environment)
        try:
            _wait_until(lambda: not _said(["squeue", "-h"], environment).strip(), folder)
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait()


def _said(words: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stdout


def _wait_until(condition: Callable[[], bool], folder: Path) -> None:
    try:
        wait_until(condition, "Slurm comes to that state")
    except HarnessError as error:
        logs = [path.read_text()[-1000:] for path in sorted(folder.glob("slurm*.*")) if path.suffix != ".conf"]
        raise TimeoutError("\n".join([str(error), *logs])) from error
