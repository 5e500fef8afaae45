"""The recipes of docs/schedulers.md: the container's root file system, its Containerfile, and the batch script."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import debian_root
from support.programs.harness import ROOT, run

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
mount --rbind -o ro "$1" "$2"
mount -t tmpfs tmpfs "$2/opt"
mount -t tmpfs tmpfs "$2/usr/local/bin"
cp -r "$3/." "$2"
mount --rbind /proc "$2/proc"
mount --rbind /dev "$2/dev"
shift 3
exec chroot "$ROOT" "$@"
"""


def made(line: str, root: Path) -> None:
    """Do what a COPY or a RUN of the Containerfile does to ``root``, but for the packages."""
    if line.startswith("COPY "):
        source, place = line.split()[1:]
        (root / place[1:]).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", ROOT / source, root / place[1:]], check=True)
    elif line.startswith("RUN ln -s "):
        source, place = line.split()[3:]
        (root / place[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / place[1:]).symlink_to(source)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may enter another root")
def test_the_container_explains_a_process_of_another_root(tmp_path: Path) -> None:
    """As an ephemeral container does: the same processes, another root, made of Debian's packages alone, in which the
    program's files are not. With the page's own command."""
    try:
        debian = debian_root.root()
    except OSError as error:
        pytest.skip(str(error))
    script = tmp_path / "program" / "hangs.py"
    script.parent.mkdir()
    script.write_text(HANGS)
    ours, root = tmp_path / "ours", tmp_path / "root"
    root.mkdir()
    for line in debian_root.CONTAINERFILE.read_text().splitlines():
        made(line, ours)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        command = shlex.split(re.findall(r"^kubectl debug POD .*$", PAGE, re.MULTILINE)[-1])
        asked = [*command[-3:-1], str(process.pid), "--json"]
        enter: list[str | Path] = ["unshare", "--mount", "sh", "-c", ENTER, "sh", debian, root, ours]
        outcome = run([*enter, *asked], env={"ROOT": str(root)})
        process.kill()
    gdb = run([*enter, "gdb", "--batch", "-ex", "python import elftools, pygments"], env={"ROOT": str(root)})
    assert (gdb.status, gdb.stderr) == (0, ""), gdb
    document = outcome.document
    assert document["verdict"]["kind"] == "self-deadlock", outcome
    assert document["threads"][0]["python_frames"][0]["file"] == str(script)
    assert not any(root.iterdir()), "the mounts were the container's own"
    assert not (debian / "opt/gdbext").exists()


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
