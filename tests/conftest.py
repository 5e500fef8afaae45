"""Fixtures: real processes to look at, live and as cores, through gdb and without any debugger."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.programs.harness import Inferior, Pool, started
from support.programs.ways import WAYS, Look

if TYPE_CHECKING:
    from support.recorded.recordings import Replay

# thousands of Pythons are started here, each of which would compile what it imports
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_PLUGINS = ("alone", "dispositions", "garbage", "groups", "markers", "tiers")
pytest_plugins = [f"support.plugins.{name}" for name in _PLUGINS]
pytest.register_assert_rewrite("support.recorded.scenario_checks")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests neither read nor fill the user's cache folder. All workers of a run share one. The caches of built
    helpers and LLDB's own index of torch, which takes longer than two attaches, stay from run to run."""
    from support.installed import lldbs

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    (folder / "gdbext").mkdir(parents=True, exist_ok=True)
    own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    os.environ.setdefault("GDBEXT_TEST_CACHE", str(Path(own) / "gdbext-tests"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        with contextlib.suppress(FileExistsError):  # another worker was first
            (folder / "gdbext" / "lldb").symlink_to(lldbs.kept_index(), target_is_directory=True)
        yield


@pytest.fixture(scope="session")
def inferior_pool() -> Iterator[Pool]:
    """All inferiors of this run."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def inferior(inferior_pool: Pool) -> Iterator[Callable[..., Inferior]]:
    """``inferior("meta-mm", python="debian")``: a hung program, shared between tests.

    After the test each one used must be alive, untraced and not stopped.
    """
    used: list[Inferior] = []

    def get(name: str, *args: str, **options: Any) -> Inferior:
        found = inferior_pool.get(name, *args, **options)
        used.append(found)
        return found

    yield get
    try:
        for one in used:
            one.assert_undisturbed()
            one.pause()
    except BaseException:
        for one in used:
            inferior_pool.discard(one)
        raise


@pytest.fixture(scope="module")
def small_calls() -> Iterator[Inferior]:
    """A program that goes on calling; ``truth["turns"]``: a file with how far it has come."""
    with started("small_calls") as running:
        yield running


@pytest.fixture
def replay() -> Callable[[str], Replay]:
    """``replay("gil-mutex").document("dispatch-bt", "--all")``: a recorded program, looked at in milliseconds."""
    from support.recorded.recordings import Replay

    return Replay


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write expected texts and documents anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(way))
def look(request: pytest.FixtureRequest) -> Look:
    """Every way to look: ``look(inferior("meta-mm"), "dispatch-bt")``."""
    return Look(*request.param)


@pytest.fixture(params=[way for way in WAYS if "none" in way], ids=lambda way: "-".join(way))
def plain_look(request: pytest.FixtureRequest) -> Look:
    """The ways without a debugger: what gdb adds, the contract of targets has."""
    return Look(*request.param)
