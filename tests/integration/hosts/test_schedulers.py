"""The recipes of docs/schedulers.md: the container's root file system, its Containerfile, and the batch script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs.harness import ROOT, run

CONTAINERS = ROOT / "share" / "containers"
PAGE = (ROOT / "docs" / "schedulers.md").read_text()
HANGS = """
import threading
def waits():
    lock = threading.Lock()
    lock.acquire()
    print("there", flush=True)
    lock.acquire()
waits()
"""
ENTER = """
set -e
for folder in usr bin lib lib64 etc; do
  [ -L /$folder ] && cp -P /$folder "$1" || { mkdir -p "$1/$folder"; mount --rbind -o ro /$folder "$1/$folder"; }
done
mkdir -p "$1/proc" "$1/tmp" "$1/dev"
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
exec chroot "$1" /opt/gdbext/scripts/dispatch -p "$2" --json
"""


def copied(line: str, root: Path) -> None:
    """Do what a COPY of the Containerfile does."""
    source, place = line.split()[1:]
    (root / place[1:]).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", ROOT / source, root / place[1:]], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may enter another root")
def test_the_container_explains_a_process_of_another_root(tmp_path: Path) -> None:
    """As an ephemeral container does: the same processes, another root, in which the program's files are not."""
    script = tmp_path / "program" / "hangs.py"
    script.parent.mkdir()
    script.write_text(HANGS)
    root = tmp_path / "root"
    root.mkdir()
    for line in (CONTAINERS / "Containerfile").read_text().splitlines():
        if line.startswith("COPY "):
            copied(line, root)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        outcome = run(["unshare", "--mount", "sh", "-c", ENTER, "sh", root, process.pid])
        process.kill()
    document = outcome.document
    assert document["verdict"]["kind"] == "self-deadlock", outcome
    assert document["threads"][0]["python_frames"][0]["file"] == str(script)
    assert (root / "usr").is_symlink() or not any((root / "usr").iterdir())  # the mounts were the container's own


def test_the_container_is_made_of_debians_packages() -> None:
    text = (CONTAINERS / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("FROM debian:")
    assert {line.split()[0] for line in lines} == {"FROM", "RUN", "COPY", "ENTRYPOINT"}
    assert not re.search(r"pip|curl|wget|http", text)
    for line in lines:
        if line.startswith("COPY "):
            assert (ROOT / line.split()[1]).exists()
    context = json.loads((CONTAINERS / "profile.json").read_text())["securityContext"]
    assert context["capabilities"] == {"add": ["SYS_PTRACE"]}


def test_the_batch_script_explains_on_the_signal_and_gives_the_jobs_status(tmp_path: Path) -> None:
    """Slurm's part is made up: srun and dispatch are programs that note what they were called with."""
    script = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert script is not None
    (tmp_path / "batch").write_text(script.group(1))
    for name, code in {
        "srun": 'echo started >"$0.said"; while [ ! -e "$0.end" ]; do sleep 0.05; done; exit 7',
        "dispatch": 'echo "$@"; touch "${0%dispatch}srun.end"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    code = "bash batch & until [ -e srun.said ]; do sleep 0.05; done; kill -USR1 $!; wait $!"
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, env=environment, check=False, timeout=60)
    assert done.returncode == 7
    assert (tmp_path / "hangs" / "77.txt").read_text() == "ranks --slurm 77 --html hangs/77.html\n"
