#!/usr/bin/env python3
"""Records the scenarios of the tests anew: starts each program, records it, and checks that its replay says the same.

    .venv/bin/python scripts/record_scenarios.py [NAME …]

Needs torch, a compiler and, for some, other Pythons. A recording shows paths, so the programs, their Pythons and torch
are started from links in a neutral folder, with a minimal environment; what still shows the places of this machine is
refused. Scenarios of another release of torch are recorded when they are named, by the Python of an environment that
has that release (scripts/lib/installed_torch.py makes it).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from gdbext.diagnosis.session import Session  # noqa: E402
from gdbext.engine.targets.base_target import Target  # noqa: E402
from gdbext.engine.targets.core_target import CoreTarget  # noqa: E402
from gdbext.engine.targets.live.proc_target import ProcTarget  # noqa: E402
from gdbext.engine.targets.recording import container, recorder, recording_reader  # noqa: E402
from gdbext.engine.targets.recording.recorder import RecordingTarget  # noqa: E402
from gdbext.engine.targets.recording.replay_target import ReplayTarget  # noqa: E402
from gdbext.tools import (  # noqa: E402
    running,
)
from support.installed import pythons  # noqa: E402
from support.programs import harness, native_build  # noqa: E402
from support.programs.harness import Inferior  # noqa: E402
from support.recorded import recordings  # noqa: E402
from support.recorded.scenarios import RECORDED, Scenario  # noqa: E402

PLACE = Path("/tmp/gdbext-scenarios")
COMMANDS = (
    recordings.COMMAND,
    ("dispatch-bt", "--all", "--native"),
    ("all-threads", "--stacks"),
    ("dispatch-tls",),
    ("dispatch-info",),
)
MORE = {
    "meta-mm": (
        ("dispatch-bt", "--all", "--why"),
        ("dispatch-op", "mm"),
        ("dispatch-lookup", "aten::mm", "Meta,AutogradMeta"),
        ("dispatch-keyset", "Meta,AutogradMeta"),
    )
}
"""Further commands for some: what reads the names of all operators makes a recording twice as large."""
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": str(PLACE / "home"),
    "LANG": "C.UTF-8",
    "TMPDIR": str(PLACE / "run"),
    "XDG_CACHE_HOME": str(PLACE / "cache"),
    "GDBEXT_TEST_CACHE": str(PLACE / "native"),
}


class Neutral:
    """The neutral folder, with links to what the programs need."""

    def __init__(self) -> None:
        values = [value for name, value in os.environ.items() if name not in ENVIRONMENT]
        places = [str(ROOT), sys.prefix, sys.base_prefix, str(Path.home())]
        self._forbidden = [*places, *(text for text in (*values, socket.gethostname()) if len(text) > 8)]
        self._pythons: dict[str, str] = {}
        for version in {*pythons.SUPPORTED, *pythons.NEWER, *(each.python for each in RECORDED)} - {"venv", "debian"}:
            pythons.prefixes(version)  # kept: $PYENV_ROOT is not there any more when they are asked for
        shutil.rmtree(PLACE, ignore_errors=True)
        for name in ("home", "run", "cache", "native"):
            (PLACE / name).mkdir(parents=True)
        shutil.copytree(ROOT / "tests" / "inferiors", PLACE / "inferiors", ignore=shutil.ignore_patterns("__pycache__"))
        self._packages = PLACE / "site-packages"
        _link(Path(sysconfig.get_path("purelib")), self._packages)

    def enter(self) -> None:
        """From here on the harness starts everything in there."""
        os.environ.clear()
        os.environ.update(ENVIRONMENT)
        os.chdir(PLACE)
        harness.INFERIORS = PLACE / "inferiors"
        harness.interpreter = self.interpreter
        native_build.SOURCES = PLACE / "inferiors" / "native"
        native_build.torch_folder = lambda: self._packages / "torch"

    def interpreter(self, name: str) -> tuple[str, dict[str, str]]:
        """As harness.interpreter, by links."""
        if name == "debian":
            return "/usr/bin/python3", {"PYTHONPATH": str(self._packages)}
        version = "{}.{}".format(*sys.version_info[:2]) if name == "venv" else name
        if version not in self._pythons:
            self._pythons[version] = self._linked(Path(pythons.need(version)).resolve(), version)
        prefix = Path(self._pythons[version]).parents[1]
        extra = {"LD_LIBRARY_PATH": str(prefix / "lib")}
        if name == "venv":
            extra["PYTHONPATH"] = str(self._packages)
        return self._pythons[version], extra

    def _linked(self, executable: Path, version: str) -> str:
        prefix, place = PLACE / f"python-{version}", executable.parents[2]
        self._forbidden.append(str(place))
        _link(executable.parents[1] / "lib", prefix / "lib", "site-packages", "*.a", "test", "pkgconfig")
        (prefix / "bin").mkdir()
        _without_place(executable, prefix / "bin" / executable.name, place)
        for library in (prefix / "lib").rglob("*.so*"):
            if not library.is_symlink():
                _without_place(executable.parents[1] / library.relative_to(prefix), library, place)
        return str(prefix / "bin" / executable.name)

    def betrayals(self, data: bytes) -> Iterator[str]:
        """What a recording shows of this machine, and must not."""
        contents = container.unwrap(data)
        for text in self._forbidden:
            at = contents.find(text.encode())
            if at >= 0:
                yield f"{text} ({contents[max(0, at - 40) : at + 80]!r})"


def _link(source: Path, target: Path, *left_out: str) -> None:
    ignored = shutil.ignore_patterns("__pycache__", *left_out)  # compiled files name the folder they were made in
    shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy, ignore=ignored)


def _without_place(source: Path, target: Path, place: Path) -> None:
    """A copy that does not name ``place``, the folder that Python was installed in (RUNPATH, PREFIX), of the same
    length; without the last part, which may also be the version's text."""
    named = str(place).encode()
    target.unlink(missing_ok=True)
    target.write_bytes(source.read_bytes().replace(named, b"/usr/local".ljust(len(named), b"/")))
    shutil.copymode(source, target)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def main(argv: Sequence[str]) -> int:
    """Record the scenarios that are named, or all; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="as in tests/recordings (default: all)")
    wanted = parser.parse_args(argv).names
    unknown = set(wanted) - set(map(str, RECORDED))
    if unknown:
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}; there are: {', '.join(map(str, RECORDED))}")
    neutral = Neutral()
    chosen = [each for each in RECORDED if str(each) in wanted or not (wanted or each.torch)]
    neutral.enter()
    failed = []
    for scenario in chosen:
        problem = record(scenario, neutral)
        print(f"{scenario}: {problem or _sizes(scenario)}", flush=True)
        failed += [scenario] if problem else []
    shutil.rmtree(PLACE, ignore_errors=True)
    return 1 if failed else 0


def record(scenario: Scenario, neutral: Neutral) -> str:
    """Make the files of one scenario; says why not, "" when it was done."""
    commands = (*COMMANDS, *MORE.get(str(scenario), ()))
    with harness.started(scenario.name, *scenario.args, python=scenario.python) as inferior:
        target = RecordingTarget(_target(inferior, scenario))
        try:
            reports = _reports(target, commands)
            data = recorder.encode(target.recording(" ".join(recordings.COMMAND)), container.SMALL)
        finally:
            target.close()
        truth = inferior.truth
    replay = ReplayTarget(recording_reader.decode(data))
    again = _reports(replay, commands)
    if again != reports or replay.origin.missing_from_recording():
        return f"the replay differs: {replay.origin.missing_from_recording()}"
    betrayals = list(neutral.betrayals(data))
    if betrayals:
        return f"the recording shows {betrayals}"
    kept = {"verdict": scenario.verdict, "truth": truth, "document": reports[0][0]}
    recordings.FOLDER.mkdir(exist_ok=True)
    (recordings.FOLDER / f"{scenario}.rec").write_bytes(data)
    recordings.write(str(scenario), kept)
    return ""


def _target(inferior: Inferior, scenario: Scenario) -> Target:
    if scenario.only == "core":
        return CoreTarget(str(inferior.core()))
    return ProcTarget(inferior.pid)


def _reports(target: Target, commands: Sequence[Sequence[str]]) -> list[tuple[dict[str, Any], str]]:
    """Document and text of all commands, the documents without what only a replay says."""
    session = Session(target)
    found = []
    for command, *words in commands:
        text = running.execute(command, words, lambda: session).output
        document = json.loads(running.execute(command, [*words, "--json"], lambda: session).output)
        (document["target"] or {}).pop("recording", None)
        found.append((document, text))
    return found


def _sizes(scenario: Scenario) -> str:
    sizes = [(recordings.FOLDER / f"{scenario}{suffix}").stat().st_size for suffix in (".rec", ".json")]
    return "recorded, {} kB, and {} kB of truth".format(*(size // 1000 for size in sizes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
