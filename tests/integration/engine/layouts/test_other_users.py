"""Root looks at processes of uid nobody: of their files nothing is compiled or run but by uid nobody itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.engine.layouts import store
from gdbext.engine.layouts.store import AS_ME, PERMISSION
from gdbext.engine.targets.rooted_paths import Rights
from gdbext.errors import LayoutError
from gdbext.torch.measure import measurement
from gdbext.torch.measure.measurement import package_to_measure
from gdbext.torch.measure.pack import write
from support.programs import native_build
from support.programs.harness import ROOT, run, some
from support.programs.hostile_torch import NOBODY, HostileTorch, hostile_torch, why_not

pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def hostile() -> Iterator[HostileTorch]:
    with hostile_torch(native_build.torch_folder()) as found:
        yield found


def test_headers_beside_a_link_to_the_genuine_libraries(hostile: HostileTorch, tmp_path: Path) -> None:
    """A constructor in one of them once ran as root."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GDBEXT_PYTHON": sys.executable}
    with hostile.process(hostile.link_lib()) as pid:
        command = [ROOT / "scripts/dispatch", "-p", str(pid), "--debugger", "none", "dispatch-info"]
        run(command, timeout=300, env=environment)
    assert not hostile.witness.exists(), hostile.witness.read_text()
    assert "is not the library that the process has mapped" in refusal(hostile.package / "lib2")


def refusal(folder: Path, pid: int | None = None) -> str:
    with pytest.raises(LayoutError) as caught:
        package_to_measure(str(folder / store.TORCH_LIBRARY), pid)
    return caught.value.what


def test_what_is_compiled_is_so_by_its_own_user(hostile: HostileTorch) -> None:
    """As root the compiler would show what it was made to include."""
    secret = hostile.folder.with_name(f"{hostile.folder.name}-secret")
    with hostile.process(library := hostile.own_lib()) as pid, secret.open("x") as file:
        secret.chmod(0o600)
        file.write("#error 5up3r53cr37\n")
        file.flush()
        hostile.include_file(secret)
        try:
            with pytest.raises(LayoutError) as caught:
                measurement.measure_torch(str(library), "00" * 20, pid)
        finally:
            secret.unlink()
    assert "Permission denied" in caught.value.what
    assert "5up3r" not in str(caught.value)
    assert not [left for left in Path("/tmp").glob("gdbext-layout-*") if left.stat().st_uid == NOBODY]


def test_what_another_user_measured_is_for_that_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "layout_cache", lambda: tmp_path)
    layout = next(Path(store.DATA).glob("torch-2.13.0+cpu*.json"))
    build_id = store.load(layout).build_ids[store.TORCH_LIBRARY]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/index.json").write_text('{"build_ids": {}, "torch": {}}')
    write(store.read_layout(layout, whole=True), Path(store.path_of_measured(build_id, NOBODY)))
    found = some(store.measured_by(NOBODY, build_id))
    assert found.match == "generated"
    assert store.measured_by(12345, build_id) is None
    assert store.by_build_id(build_id, tmp_path / "empty") is None


def test_whose_files_are_measured_with_whose_rights(hostile: HostileTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can say whose a core is: its files must be ours or root's. Those of a process are its user's or root's."""
    library = hostile.own_lib()
    with hostile.process(library) as pid:
        assert package_to_measure(str(library), pid) == (hostile.package, Rights(NOBODY, NOBODY, ()))
        with monkeypatch.context() as asked:
            asked.setenv(PERMISSION, AS_ME)
            assert package_to_measure(str(library), pid) == (hostile.package, None)
        assert refusal(library.parent).startswith(f"{hostile.folder} belongs to another user")
        os.chown(hostile.package / "include", 12345, 12345)
        assert refusal(library.parent, pid).startswith(f"{hostile.package}/include belongs to another user")


def test_who_gave_up_root_s_rights_has_no_way_back() -> None:
    code = """
import os, resource
from gdbext.torch.measure import measurement
from gdbext.engine.targets.rooted_paths import Rights
os.environ["CPATH"] = "/somewhere"
measurement.take_rights(Rights(65534, 65534, ()), "/tmp/folder")
assert os.getresuid() == os.getresgid() == (65534,) * 3 and os.getgroups() == []
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert all(int(status[name], 16) == 0 for name in ("CapPrm", "CapEff", "CapAmb")), status
assert int(status["NoNewPrivs"]) == 1
assert set(os.environ) == {"PATH", "LC_ALL", "TMPDIR", "HOME"}, os.environ
for name in ("AS", "CPU", "FSIZE", "NPROC", "NOFILE", "CORE"):
    assert resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] != resource.RLIM_INFINITY, name
for forbidden in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: open("/proc/1/environ").read()):
    try:
        forbidden()
    except PermissionError:
        continue
    raise AssertionError("had back")
"""
    outcome = run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)})
    assert outcome.status == 0, outcome
