"""What was found in a large library is kept for the next look at the same file, and only for that."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.formats import symbol_cache
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.live.dispatch_places import cached_functions

WANTED, UNWANTED = ("qsort", "bsearch"), "strtol"
NOBODY = 65534
MAPPED = """
import mmap, os, sys
file = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)
print("there", flush=True)
sys.stdin.read()
"""


@contextmanager
def session_of(*command: str, user: int | None = None) -> Iterator[Session]:
    """Of a process that has libc mapped, and nothing to do once it has printed a line."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user) as process:
        stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        stdin.write(b"\n")
        stdin.flush()
        stdout.readline()
        target = RunningProcess(process.pid)
        yield Session(target)
        target.close()
        process.kill()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with session_of("cat") as session:
        yield session


def is_wanted(function: Function) -> bool:
    return UNWANTED not in function.names


class Search:
    """Finds places in a process's libc, each time it is asked to; a later one reads the cache anew."""

    def __init__(self, session: Session) -> None:
        symbol_cache.text_cache.cache_clear()
        self.session = session
        self.times = 0

    def places(self) -> Iterator[int]:
        self.times += 1
        for name in (*WANTED, UNWANTED, *WANTED):
            address: Any = self.session.symbolizer.address_of(name)
            yield address + 1

    def found(self, what: str, is_wanted: Callable[[Function], bool] = is_wanted) -> list[str]:
        module: Any = self.session.modules.named("libc.so.6")
        functions = cached_functions(self.session.symbolizer, module, what, self.places, is_wanted)
        return [next(name for name in (*WANTED, UNWANTED) if name in each.names) for each in functions]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "gdbext" / "callers"
    symbol_cache.text_cache.cache_clear()


@pytest.mark.parametrize(("is_wanted", "found"), [(is_wanted, [*WANTED]), (lambda _: False, [])])
def test_a_second_look_needs_no_search(session: Session, cache: Path, is_wanted: Any, found: list[str]) -> None:
    """Nor where there are none."""
    for what, times in (("callers", 1), ("callers", 0), ("other callers", 1)):
        search = Search(session)
        assert search.found(what, is_wanted) == found
        assert search.times == times
    assert cache.exists()


def test_what_is_damaged_is_searched_again(session: Session, cache: Path) -> None:
    Search(session).found("callers")
    text = bytearray(cache.read_bytes())
    text[text.index(b"\t") + 1] ^= 1
    cache.write_bytes(bytes(text))
    again = Search(session)
    assert again.found("callers") == [*WANTED]
    assert again.times == 1


def test_a_copy_with_the_same_build_id_has_answers_of_its_own(session: Session, cache: Path, tmp_path: Path) -> None:
    """Of one in which others stand at these places, the real library gets none."""
    libc: Any = session.modules.named("libc.so.6")
    copy = tmp_path / "copy.so"
    shutil.copyfile(libc.path, copy)
    with session_of("/usr/bin/python3", "-c", MAPPED, str(copy)) as other:
        module: Any = other.modules.named("copy.so")
        assert module.build_id == libc.build_id
        places = [module.base + libc.vaddr(address) for address in Search(session).places()]
        kept = cached_functions(other.symbolizer, module, "callers", lambda: places, lambda each: not is_wanted(each))
        assert UNWANTED in kept[0].names
        assert cache.exists()
    assert Search(session).found("callers") == [*WANTED]


@pytest.mark.skipif(os.getuid() != 0, reason="only root looks at the processes of others")
def test_root_keeps_nothing_that_is_found_by_another_user_s_memory(cache: Path) -> None:
    with session_of("/usr/bin/cat", user=NOBODY) as session:
        for _ in range(2):
            search = Search(session)
            assert search.found("callers") == [*WANTED]
            assert search.times == 1
    assert not cache.exists()
