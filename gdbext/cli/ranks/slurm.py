"""Ranks of a job of Slurm's: one more step of that job, with a task on each of its machines."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from gdbext.cli.ranks.frames import answers as answers_of
from gdbext.cli.ranks.frames import machines_of
from gdbext.cli.ranks.remote_answer import answer
from gdbext.jobs.merge import Rows, merge, rows
from gdbext.model.job.rank_report import Unreached

_PATIENCE = 10.0
"""Seconds for scontrol, which asks nobody."""


def command(job: str, script: str) -> list[str]:
    """Beside what runs there, whatever it has reserved; standard input goes to all tasks. Without a terminal for the
    tasks, as ``--unbuffered`` would make one."""
    number = job.partition(".")[0]
    return ["srun", "--overlap", f"--jobid={number}", "--ntasks-per-node=1", "--input=all", "sh", "-c", script]


def answers(output: bytes, silent: str) -> Rows:
    """The rows of all machines in what srun wrote. ``silent`` is why there is no answer of the others."""
    found = rows()
    answered = answers_of(output)
    for node, text in sorted(answered.items()):
        here = rows(unreached=[Unreached(node, f"its answer was cut short; {silent}")]) if text is None else None
        found = merge(found, here or answer(node, text or b"", 0))
    if not answered:
        return rows(unreached=[Unreached("srun", silent)])
    missing = [node for node in _names(machines_of(output)) if node not in answered]
    return merge(found, rows(unreached=[Unreached(node, silent) for node in missing]))


def _names(nodes: str) -> Sequence[str]:
    """The machines in Slurm's notation (``node[1-3,7]``), each by its name."""
    if not nodes:
        return []
    try:
        words = ["scontrol", "show", "hostnames", nodes]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()
