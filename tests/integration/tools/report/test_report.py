"""scripts/dispatch report: what is in the bundle, and that --scrub leaves nothing of the program in it."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

from gdbext.engine.targets.recording import container
from support.programs.harness import DISPATCH, ROOT, ready, run

PROGRAM = """
import threading
def secret_function(secret_argument="hunter2-in-a-value"):
    secret_local = "hunter3"
    print("there", flush=True)
    threading.Event().wait()
exec(compile("def secret_text(call): call()", "<secret-text>", "exec"))
exec(compile("def secret_library(call): secret_text(call)", "/opt/lib/python3.11/secret_module.py", "exec"))
threading.current_thread().name = "secret-thread"
threading.Thread(target=secret_library, args=(secret_function,), name="secret-worker").start()
"""


def bundle(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {Path(each.name).name: archive.extractfile(each).read() for each in archive.getmembers()}


def test_a_bundle_and_one_that_is_scrubbed(tmp_path: Path) -> None:
    script = tmp_path / "lib" / "python_secret" / "secret_program.py"
    script.parent.mkdir(parents=True)
    script.write_text(PROGRAM)
    environment = {"SECRET_PLACE": "hunter4", "PATH": "/usr/bin"}
    with ready([sys.executable, script, "--token=hunter5"], env=environment) as process:
        report = [DISPATCH, "report", "-p", str(process.pid), "--output"]
        whole, scrubbed = run([*report, tmp_path / "whole.tar.gz"]), run([*report, tmp_path / "less.tar.gz", "--scrub"])
    assert whole.status == scrubbed.status == 0, (whole, scrubbed)
    files = bundle(tmp_path / "whole.tar.gz")
    assert set(files) == {"recording.rec", "verdict.txt", "verdict.json", "threads.json", "info.txt", "page.html"}
    assert all(name in whole.stdout for name in files)
    assert b"secret_function" in files["verdict.txt"]
    files["contents"] = container.unwrap(files["recording.rec"])
    assert b"secret_program.py --token=*******" in files["page.html"]
    assert [name for name, data in files.items() if b"hunter5" in data or b"hunter4" in data] == []
    (tmp_path / "again.rec").write_bytes(files["recording.rec"])
    assert "secret_function" in run([DISPATCH, "-r", tmp_path / "again.rec"]).stdout
    kept = bundle(tmp_path / "less.tar.gz")
    assert set(kept) == {"verdict.json", "threads.json"}
    text = b"".join(kept.values()).decode()
    assert [word for word in ("secret", "hunter", str(tmp_path), "SECRET_PLACE") if word in text] == []
    assert json.loads(kept["verdict.json"])["verdict"]["kind"] == json.loads(files["verdict.json"])["verdict"]["kind"]
    assert "threading.py" in text  # of libraries all is kept
    assert "it contains: " in scrubbed.stdout
    assert list(tmp_path.glob(".gdbext*")) == []


def test_the_completions_complete() -> None:
    script = ROOT / "share" / "bash-completion" / "completions" / "gdbext"

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=(gdbext {' '.join(map(repr, words))}); COMP_CWORD={len(words)}"
        code = f"source {script}; {line}; _gdbext; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return run(["bash", "-c", code]).stdout.split()

    assert completed("dispatch-k") == ["dispatch-keyset"]
    assert "--hung-after" in completed("watch", "--hu")
    assert completed("-p", "1", "bt", "--nat") == ["--native"]
    assert completed("--debugger", "l") == ["lldb"]
    assert "1" in completed("-p", "1")


def test_a_debugger_for_what_needs_none_is_told() -> None:
    outcome = run([DISPATCH, "ranks", "--node", "--debugger=lldb"])
    assert (outcome.status, "takes no --debugger" in outcome.stderr) == (2, True), outcome
