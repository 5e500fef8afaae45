"""The recipes of docs/schedulers.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from support.programs.harness import PATIENCE, ROOT, executable, some

PAGE = (ROOT / "docs" / "schedulers.md").read_text()


def test_the_batch_script_explains_on_the_signal_and_gives_the_jobs_status(tmp_path: Path) -> None:
    """Slurm's part is made up: srun and dispatch are programs that note what they were called with."""
    script = some(re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL))
    (tmp_path / "batch").write_text(script.group(1))
    for name, code in {
        "srun": 'echo started >"$0.said"; while [ ! -e "$0.end" ]; do sleep 0.05; done; exit 7',
        "dispatch": 'echo "$@"; touch "${0%dispatch}srun.end"',
    }.items():
        executable(tmp_path / name, f"#!/bin/sh\n{code}\n")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    code = "bash batch & until [ -e srun.said ]; do sleep 0.05; done; kill -USR1 $!; wait $!"
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, env=environment, check=False, timeout=PATIENCE)
    assert done.returncode == 7
    assert (tmp_path / "hangs" / "77.txt").read_text() == "ranks --slurm 77 --html hangs/77.html\n"
