"""NCCL's RAS as a second witness: a made-up server speaks its protocol (NCCL: src/ras/client_support.cc)."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gdbext.errors import UsageError
from gdbext.tools import ranks, table
from gdbext.tools.ranks import ask_ras, ranks_views
from gdbext.tools.ranks.job_judge import judge
from gdbext.tools.ranks.job_report import RasAnswer, document, rows
from support.programs.harness import PATIENCE
from support.recorded import jobs
from support.source import contract_schema

HEAD = """Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
OK = HEAD + "    0         8         4         1         4        32   RUNNING      OK\n"
MISMATCH = f"""{OK}    1         1         4         8        32        32   RUNNING  MISMATCH

#1-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
"""
OURS = (os.geteuid(),)
STRANGER = 65533
ANSWERS = {b"client protocol 2": b"SERVER PROTOCOL 2\n", b"timeout 5": b"OK\n"}


def speak(client: socket.socket, said: list[bytes], status: str | None, greeting: bytes | None = None) -> None:
    """``status``: None for no answer to that; ``greeting``: the answer to the first command instead."""
    with client, client.makefile("rb") as lines:
        for line in lines:
            said.append(line.strip().lower())
            client.sendall(greeting if greeting is not None else ANSWERS.get(said[-1], b""))
            if said[-1] == b"verbose status" and status is not None:
                client.sendall(status.encode())
                return


@contextmanager
def server(status: str | None = None, greeting: bytes | None = None) -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the commands that it got."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: speak(listener.accept()[0], said, status, greeting), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", said
    thread.join(1)


def shown(answer: RasAnswer) -> str:
    report = judge(jobs.recorded_rows("nccl"))
    text = ranks_views.render(report._replace(ras=answer))
    assert text.startswith(ranks_views.render(report)), "the verdict is ours"
    return text[len(ranks_views.render(report)) :]


def test_its_report_stands_beside_ours_and_ok_is_no_proof() -> None:
    with server(MISMATCH) as (address, said):
        found = ask_ras(address, OURS)
    assert said == [b"client protocol 2", b"timeout 5", b"verbose status"]
    assert (found.problem, found.says_ok) == ("", False)
    assert found.lines == tuple(line for line in MISMATCH.splitlines() if line)
    text = shown(found)
    head = f"NCCL's RAS at {address} (a process of user {os.geteuid()})"
    assert f"{head}: a second opinion, not used for the verdict" in text
    assert "    Communicator ranks have different collective operation counts" in text
    assert "It says OK" not in text
    with server(OK) as (address, _):
        found = ask_ras(address, OURS)
    assert found.says_ok
    assert "It reports OK for all communicators, as it also does if" in shown(found)
    made = document(judge(jobs.recorded_rows("nccl"))._replace(ras=found))
    contract_schema.check(json.loads(json.dumps(made)))
    assert made["ras"]["user"] == os.geteuid()
    assert not RasAnswer("x", tuple(HEAD.splitlines())).says_ok, "it has no communicator"


@pytest.mark.parametrize(
    ("greeting", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\n", "the process that listens there is not NCCL's RAS"),
        (None, "timed out"),
        (b"", "timed out"),
    ],
)
def test_a_server_that_says_something_else_or_nothing(greeting: bytes | None, problem: str) -> None:
    with server(None, greeting) as (address, _):
        found = ask_ras(address, OURS, 0.3 if problem == "timed out" else PATIENCE)
    assert (found.problem, found.lines) == (problem, ())
    assert f"no answer: {problem}" in shown(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="answers as another user")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
def test_a_process_of_another_user_does_not_speak_for_the_job(host: str) -> None:
    """The kernel says who accepted the connection, even where root has made the listener."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as listener:
        address = f"{'localhost' if host == '::' else f'[{host}]'}:{listener.getsockname()[1]}"
        child = os.fork()
        if child == 0:
            os.setresuid(STRANGER, STRANGER, STRANGER)
            try:
                for _ in range(2):
                    speak(listener.accept()[0], [], OK)
            finally:
                os._exit(0)
        listener.close()
        found = ask_ras(address, OURS)
        assert (found.lines, found.user) == ((), STRANGER)
        assert found.problem.startswith("a process of another user answers there")
        assert f"a process of user {STRANGER}" in shown(found)
        assert ask_ras(address, (STRANGER,)).says_ok, "the job is that user's"
        os.waitpid(child, 0)


def test_nobody_listens_or_the_answer_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_RAS_BYTES", 1000)
    with server("x" * 200_000) as (address, _):
        assert ask_ras(address, OURS).problem == "it did not finish in time"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert "refused" in ask_ras(address, OURS).problem
    assert ask_ras("127.0.0.1:no-port", OURS).problem
    assert ask_ras("", OURS).problem


def test_the_environment_of_a_process_sends_us_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks as root does not connect to where a user's environment says."""
    own = lambda pid, _: f"NCCL_RAS_ADDR=10.0.0.{pid}:28028\0".encode()  # noqa: E731
    monkeypatch.setattr(ranks.supervision, "read_proc_file", own)
    program = table.tool_of(table.program("ranks"))
    options = program.parser().parse_args(["-p", "7", "--ras"])
    found = ranks._ras(options, ())
    assert found is not None
    assert found.problem == "NCCL_RAS_ADDR names another machine: confirm with --ras 10.0.0.7:28028"
    with server(OK) as (address, _):
        monkeypatch.setattr(ranks.supervision, "read_proc_file", lambda *_: f"NCCL_RAS_ADDR={address}".encode())
        lines = tuple(line for line in OK.splitlines() if line)
        assert ranks._ras(options, ()) == RasAnswer(address, lines, user=os.geteuid())
    assert ranks._ras(program.parser().parse_args(["-p", "7"]), ()) is None, "only if it is wanted"
    assert "ras" not in document(judge(rows()))
    with pytest.raises(UsageError):
        program.main(["--reports", "x.json", "--ras"], None, False)  # type: ignore[arg-type]
