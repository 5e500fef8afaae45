"""A layout that lacks a type or a member, and a torch with a root of its own that is no build which was measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.layouts import store
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.tools import running
from gdbext.tools.operators.op import OperatorReporter
from gdbext.torch.values.containers import optional_shape
from support.programs import harness, native_build
from support.programs.harness import Inferior, Start

pytestmark = [pytest.mark.torch]

SHIPPED = Path(store.DATA) / "torch-2.13.0+cpu-cxx11.json"
Change = Callable[[dict[str, Any]], None]
Reading = Callable[..., Session]


@pytest.fixture
def reading(inferior: Start, tmp_path: Path) -> Iterator[Reading]:
    """A session on a live process, with the shipped layout as ``change`` leaves it; it ends the previous one."""
    with ExitStack() as opened:

        def read(change: Change = lambda _: None) -> Session:
            document = store.read_layout(SHIPPED, whole=True)
            change(document)
            path = tmp_path / "torch.json"
            path.write_text(json.dumps(document))
            opened.close()
            return Session(opened.enter_context(ProcTarget(inferior("idle").pid)), store.load(path))

        yield read


def reports(session: Session, pattern: str) -> tuple[list[tuple[Any, ...]], list[str]]:
    found = OperatorReporter(session.tables, None).report_all(session.dispatcher.find(pattern))
    rest = []
    for one in found:
        registrations = [(each.key, each.kernel, each.debug) for each in one.registrations or ()]
        rest.append((one.op, one.overload, one.debug, one.table, registrations))
    return rest, [one.schema or "" for one in found]


@pytest.mark.parametrize(
    "lost", ["c10::AliasInfo", "std::optional<c10::IValue>", "c10::RRefType", "c10::FunctionSchema"]
)
def test_what_a_schema_lacks_is_a_question_mark_in_it(reading: Reading, lost: str) -> None:
    whole, texts = reports(reading(), "*mean*")
    rest, poorer = reports(reading(lambda document: document["structs"].pop(lost)), "*mean*")
    assert len(texts) > 10
    if lost == "c10::FunctionSchema":
        assert [one[3] for one in rest] == [one[3] for one in whole]
        assert set(poorer) == {""}
        return
    assert rest == whole
    for before, after in zip(texts, poorer):
        assert after.partition("(")[0] == before.partition("(")[0]
        assert after == before or "?" in after
    assert (poorer == texts) == (lost == "c10::RRefType"), "no such argument is there"


def test_an_older_optional_and_a_flag_that_is_called_otherwise(reading: Reading) -> None:
    """c10::optional, before torch 2.1, has its flag in front; torch 2.0 misspells multithreading_enabled_."""

    def older(document: dict[str, Any]) -> None:
        flag = {"offset": 0, "size": 1, "type": "bool"}
        fields = {"init_": flag, "storage_": {"offset": 4, "size": 4, "type": "int"}}
        document["structs"]["c10::optional<int>"] = {"size": 8, "fields": fields}
        flags = document["structs"]["c10::AutogradState"]["fields"]
        flags["mulithreading_enabled_"] = flags.pop("multithreading_enabled_")
        del flags["view_replay_enabled_"]

    def flags_of(session: Session) -> tuple[bool | None, ...]:
        pointer = session.memory.architecture.thread_pointer(session.target.memory.threads()[0].registers())
        state = session.dispatch_states.read(pointer)
        assert state.problems == ()
        assert state.autograd is not None
        return state.autograd.grad_mode, state.autograd.multithreading, state.autograd.view_replay

    assert flags_of(reading()) == (True, True, False)
    session = reading(older)
    assert flags_of(session) == (True, True, None)
    assert optional_shape(session.layout, "int") == (4, 0)
    assert optional_shape(session.layout, "c10::IValue") == (0, 16)


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
        document = json.loads(running.execute("dispatch-bt", ["--json"], lambda: session).output)
    found = {(call["op"], call["keyset"]["bits"]) for call in document["threads"][0]["dispatch"]}
    for call in contained.truth["calls"]:
        assert (call["op"], call["bits"]) in found
