"""Answers of many machines in one stream: whole lines in any order, and what becomes of a stream that is cut."""

from __future__ import annotations

import random

import pytest

from gdbext.tools.ranks import slurm
from gdbext.tools.ranks.slurm import framed, framed_answers, machines_of

ANSWERS = {f"node{number}": random.Random(number).randbytes(5000 * number) for number in range(3)}


def mixed() -> list[bytes]:
    """The lines of all machines, in an order of chance."""
    lines = [line for node, answer in ANSWERS.items() for line in framed(node, answer)]
    random.Random(1).shuffle(lines)
    return lines


def test_lines_are_short_enough_for_slurm() -> None:
    assert max(map(len, mixed())) < 1024


def test_answers_come_back_whole_in_whatever_order() -> None:
    stream = b"a login message\n" + b"".join(mixed()) + b"slurmstepd: error: something\n"
    assert framed_answers(stream) == ANSWERS


def test_a_cut_stream_costs_the_machines_that_it_cuts() -> None:
    lines = list(framed("node1", ANSWERS["node1"]))
    assert framed_answers(b"".join(lines[:-1])) == {"node1": None}
    assert framed_answers(b"".join(lines)[:-30]) == {"node1": None}


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\0" * 100,
        b"gdbext n 0/1 ====",
        b"gdbext n 1/1 eA==",
        b"gdbext n 0/9999999 eA==",
        b"gdbext n 0/1 eJwDAAAAAAE",
    ],
)
def test_what_is_no_answer(stream: bytes) -> None:
    assert set(framed_answers(stream).values()) <= {None}


def test_machines_that_were_asked() -> None:
    assert machines_of(b"hello\ngdbext-of n[1-3]\ngdbext-of n[1-3]\n") == "n[1-3]"
    assert machines_of(b"x gdbext-of n\n") == ""


def test_silent_machines_of_a_job_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_names", lambda nodes: {"n[1-3]": ["n1", "n2", "n3"]}[nodes])
    nobody = b'{"schema": "gdbext/1", "errors": [{"what": "there is no rank on this machine", "help": ""}]}'
    cut = next(framed("n2", random.Random(1).randbytes(2000)))
    stream = b"gdbext-of n[1-3]\n" + b"".join(framed("n1", nobody)) + cut
    found = {each.where: each.reason for each in slurm.answers(stream, "no answer within 90 s").unreached}
    assert found == {
        "n1": "there is no rank on this machine",
        "n2": "its answer was cut short; no answer within 90 s",
        "n3": "no answer within 90 s",
    }
    assert {each.where for each in slurm.answers(b"", "srun: error").unreached} == {"srun"}
