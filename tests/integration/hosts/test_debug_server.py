"""The page in torch.distributed.debug's server, over HTTP: the real server, of a rank that hangs."""

from __future__ import annotations

import html
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.programs.harness import ROOT, run

pytestmark = pytest.mark.torch

RANK = """
import json, os, sys, threading, time, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
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
from torch.distributed.debug._store import tcpstore_client
def status(address, data=None):
    try:
        return urllib.request.urlopen(address, data, timeout=100).status
    except urllib.error.HTTPError as error:
        return error.code
def ask_as_another_user():
    reads, writes = os.pipe()
    if os.fork() == 0:
        try:
            os.setresuid(65533, 65533, 65533)
            os.write(writes, urllib.request.urlopen(f"http://127.0.0.1:{port}/gdbext", timeout=100).read())
        finally:
            os._exit(0)
    os.close(writes)
    return open(reads).read()
def ask():
    try:
        answer()
    finally:
        stop_debug_server()
        os._exit(0)
def answer():
    get = lambda _: urllib.request.urlopen(f"http://127.0.0.1:{port}/gdbext", timeout=100).read().decode()
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=100).read()
            break
        except OSError:
            os.sched_yield()
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(get, range(8)))
    worker = tcpstore_client().get("rank0").decode() + "/handler/gdbext_diagnosis"
    print(json.dumps({
        "pages": pages, "refused": ask_as_another_user() if os.geteuid() == 0 else "",
        "without": status(worker, b""), "wrong": status(worker + "?gdbext_token=" + 32 * "0", b""),
        "token": debug_server.token(),
    }), flush=True)
threading.Thread(target=ask).start()
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""


def test_the_page_has_the_diagnosis_of_the_rank_and_of_the_job(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.debug._debug_handlers")
    (tmp_path / "rank.py").write_text(RANK)
    outcome = run([sys.executable, tmp_path / "rank.py", str(ROOT)])
    said = json.loads(outcome.stdout.splitlines()[-1])
    page = said["pages"][0]
    assert set(said["pages"]) == {page}, "one look is shared"
    assert (said["without"], said["wrong"], len(said["token"])) == (403, 403, 32)
    assert said["token"] not in page
    assert ("ssh -L" in said["refused"]) == (os.geteuid() == 0)
    assert "Rank 0" not in said["refused"]
    words = (
        '<a href="/gdbext">gdbext</a>',
        "Rank 0: http",
        "which it seems to hold itself",
        "seen on the server's machine",
    )
    assert [each for each in words if each not in html.unescape(page)] == []
    assert "there is no command" not in page


def test_one_looks_at_a_time() -> None:
    pytest.importorskip("torch.distributed.debug._store")
    from gdbext.hosts.debug_server import SharedAnswer

    looks: list[int] = []
    all_asked = threading.Barrier(32)

    def look() -> str:
        looks.append(1)
        all_asked.wait(30)
        return str(len(looks))

    shared = SharedAnswer(look)
    with ThreadPoolExecutor(32) as pool:
        answers = [pool.submit(shared.get)]
        answers += [pool.submit(lambda: (all_asked.wait(30), shared.get())[1]) for _ in range(31)]
        assert {each.result() for each in answers} == {"1"}
    assert looks == [1]
