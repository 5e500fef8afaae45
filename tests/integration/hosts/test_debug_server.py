"""The page in torch.distributed.debug's server, over HTTP: the real server, of a rank that hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.programs.harness import ROOT, run

pytestmark = pytest.mark.torch

RANK = """
import os, sys, threading, time, urllib.request
sys.path.append(sys.argv[1])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
import socket, torch.distributed as dist
with socket.socket() as free, socket.socket() as other:
    free.bind(("127.0.0.1", 0)); other.bind(("127.0.0.1", 0))
    os.environ["MASTER_PORT"], port = str(free.getsockname()[1]), other.getsockname()[1]
dist.init_process_group("gloo")
from torch.distributed.debug import start_debug_server, stop_debug_server
from torch.distributed.debug._debug_handlers import default_handlers
from gdbext.hosts import debug_server
debug_server.register()
start_debug_server(port=port, handlers=[*default_handlers(), debug_server.DiagnosisHandler()], fetch_timeout=60)
def ask():
    for _ in range(200):
        try:
            print(urllib.request.urlopen(f"http://127.0.0.1:{port}/gdbext", timeout=100).read().decode(), flush=True)
            break
        except OSError:
            time.sleep(0.2)
    stop_debug_server()
    os._exit(0)
threading.Thread(target=ask).start()
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""


def test_the_page_has_the_diagnosis_of_the_rank_and_of_the_job(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.debug._debug_handlers")
    (tmp_path / "rank.py").write_text(RANK)
    outcome = run([sys.executable, tmp_path / "rank.py", str(ROOT)])
    page = outcome.stdout
    assert '<a href="/gdbext">gdbext</a>' in page
    assert "Rank 0: http" in page
    assert "which it seems to hold itself" in page
    assert "seen on the server&#x27;s machine" in page or "seen on the server's machine" in page
    assert "there is no command" not in page
