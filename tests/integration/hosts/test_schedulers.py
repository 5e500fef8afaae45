"""The recipes of docs/schedulers.md: the container's root file system, its Containerfile, and the batch script."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.installed import debian_root
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
        asked = [*debug_command()[-3:-1], str(process.pid), "--json"]
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


def debug_command() -> list[str]:
    """The page's command on a process of the other container."""
    return shlex.split(re.findall(r"^kubectl debug POD .*$", PAGE, re.MULTILINE)[-1])


class Pods(BaseHTTPRequestHandler):
    """As much of an API server as kubectl debug asks for: one pod, whose ephemeral containers are kept."""

    PREFIX = "/api/v1/namespaces/default/pods/"
    KINDS: ClassVar[dict[str, Any]] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": []},
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [
                {"name": name, "namespaced": True, "kind": "Pod", "verbs": ["get", "patch"]}
                for name in ("pods", "pods/ephemeralcontainers")
            ],
        },
        f"{PREFIX}POD": {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "POD", "namespace": "default", "uid": "1"},
            "spec": {"containers": [{"name": "CONTAINER", "image": "theirs"}]},
            "status": {"phase": "Running"},
        },
    }
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._answer(self.KINDS.get(self.path.partition("?")[0], {"kind": "Status", "code": 404}))

    def do_PATCH(self) -> None:
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.extend(patch["spec"]["ephemeralContainers"])
        pod = self.KINDS[f"{self.PREFIX}POD"]
        self._answer({**pod, "spec": {**pod["spec"], **patch["spec"]}})

    def _answer(self, document: dict[str, Any]) -> None:
        text = json.dumps(document).encode()
        self.send_response(document.get("code", 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_kubectl_asks_for_the_container_that_the_page_means(tmp_path: Path) -> None:
    """The page's command, by kubectl itself: a word behind ``--`` takes the place of the image's program."""
    if shutil.which("kubectl") is None or "--custom" not in run(["kubectl", "debug", "--help"]).stdout:
        pytest.skip("no kubectl of 1.30 or later")
    Pods.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Pods) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        words = [word for word in debug_command() if word != "-it"]
        (tmp_path / "config").write_text("")
        outcome = run(
            [*words[:2], "--server", f"http://127.0.0.1:{server.server_port}", *words[2:]],
            cwd=ROOT,
            env={"KUBECONFIG": str(tmp_path / "config"), "HOME": str(tmp_path)},
        )
        server.shutdown()
        thread.join()
    assert outcome.status == 0, outcome
    (container,) = Pods.asked
    assert container["command"] == ["dispatch", "-p", "1"]
    assert container["targetContainerName"] == "CONTAINER"
    assert container["securityContext"] == {
        "runAsUser": 0,
        "capabilities": {"add": ["SYS_PTRACE"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


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
