"""A process with a root of its own, as in a container, whose torch is no build that a layout was measured on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.layouts import store
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.tools import table
from support.programs import harness, native_build
from support.programs.harness import Inferior

pytestmark = [pytest.mark.torch]

_ENTER = 'mount --rbind / "$0" && mount --bind "$1" "$0$2" && shift 2 && exec chroot "$0" "$@"'
"""Root, folder of packages, where it is to be inside; then the program."""


@pytest.fixture(scope="module")
def contained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inferior]:
    """meta-mm, whose packages are in a folder that is empty as seen from here."""
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-Urm"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    root, inside = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("inside")
    packages = native_build.torch_folder().parent
    command = [*unshare, "sh", "-c", _ENTER, str(root), str(packages), str(inside)]
    python = getattr(sys, "_base_executable", sys.executable)
    with harness.started("meta-mm", python=python, env={"PYTHONPATH": str(inside)}, command=command) as inferior:
        assert not list(inside.iterdir()), "the program alone sees them"
        yield inferior


def test_keysets_of_another_build(contained: Inferior, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is read beside its library, through its own root; the layout of that release is probed."""
    known = store.index()
    monkeypatch.setattr(store, "index", lambda _folder=store.DATA: {**known, "build_ids": {}})
    with ProcTarget(contained.pid) as target:
        session = Session(target)
        assert session.modules.named(store.TORCH_LIBRARY) is not None
        assert session.layout.match == "probed"
        document = json.loads(table.execute("dispatch-bt", ["--json"], lambda: session).output)
    found = {(call["op"], call["keyset"]["bits"]) for call in document["threads"][0]["dispatch"]}
    for call in contained.truth["calls"]:
        assert (call["op"], call["bits"]) in found
