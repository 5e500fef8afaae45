"""torchrun's agents of two nodes, of which one waits at the exit barrier for the other, whose worker still runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import harness
from support.source import contract_schema

pytestmark = pytest.mark.torch

WORKER = """
import os, sys, time
with open(sys.argv[1] + os.environ["RANK"] + ".tmp", "w") as out:
    out.write(f"{os.getppid()} {os.getpid()}")
os.rename(sys.argv[1] + os.environ["RANK"] + ".tmp", sys.argv[1] + os.environ["RANK"])
time.sleep(1e6 * (os.environ["RANK"] == "1"))
"""


def test_an_agent_that_waits_for_the_other_node_s(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    words += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job7"]
    script = [str(tmp_path / "worker.py"), f"{tmp_path}/agent"]
    agents = [subprocess.Popen([*words, *script], start_new_session=True) for _ in range(2)]
    try:
        paths = [tmp_path / f"agent{rank}" for rank in range(2)]
        harness.wait_until(lambda: all(path.exists() for path in paths), "both workers run")
        pids = [int(path.read_text().split()[0]) for path in paths]
        assert sorted(pids) == sorted(agent.pid for agent in agents)

        def waits() -> bool:
            document = harness.run([harness.DISPATCH, "-p", str(pids[0]), "--json"]).document
            contract_schema.check(document)
            return "the agents of the other nodes (exit barrier)" in document["verdict"]["summary"]

        harness.wait_until(waits, "the first agent waits for the other one")
        text = harness.run([harness.DISPATCH, "-p", str(pids[0])]).stdout
        assert "A rank has not" not in text
        assert "Look at the workers of the other nodes" in text
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
        for path in paths:  # torchrun's workers are in sessions of their own
            with contextlib.suppress(OSError):
                os.kill(int(path.read_text().split()[1]), signal.SIGKILL)
