"""Cores as people have them: compressed by each program, cut short, in systemd's store, on a full disk."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gdbext.engine.targets import core_sources
from gdbext.errors import BadCore
from gdbext.hosts import opening
from support.fakes.core_maker import Core, Load, prstatus
from support.programs.work import lines_run

BASE = 0x10000
ZEROS = 8 << 20


@pytest.fixture
def core() -> bytes:
    memory = b"the beginning".ljust(ZEROS, b"\0") + b"the end".ljust(4096, b"\0")
    return bytes(Core([Load(BASE, memory)], notes=prstatus(7)).build())


def packed(folder: Path, data: bytes, how: str) -> Path:
    path = folder / f"core.{how}"
    if how in ("gz", "xz"):
        path.write_bytes(gzip.compress(data, 1) if how == "gz" else lzma.compress(data, preset=0))
        return path
    program = {"zst": "zstd", "lz4": "lz4"}[how]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    path.write_bytes(subprocess.run([program, "-q", "-c"], input=data, capture_output=True, check=True).stdout)
    return path


def unpacked(folder: Path, data: bytes, how: str = "gz") -> os.stat_result:
    name = core_sources.unpack_core(str(packed(folder, data, how)))
    found = Path(name).stat()
    core_sources.close_unpacked(name)
    return found


@pytest.mark.parametrize("how", ["zst", "lz4", "gz", "xz"])
def test_a_compressed_core_is_a_core(tmp_path: Path, core: bytes, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = packed(tmp_path, core, how)
    target = opening.open_core(str(path))
    assert target.memory.read(BASE, 13) == b"the beginning"
    assert target.memory.read(BASE + ZEROS, 7) == b"the end"
    assert [thread.tid for thread in target.memory.threads()] == [7]
    assert target.origin.files_known_at() == path.stat().st_mtime
    assert list(tmp_path.iterdir()) == [path]  # nothing is left, not even while it is open
    target.close()


@pytest.mark.parametrize("how", ["zst", "gz"])
def test_one_that_was_cut_short_is_told(tmp_path: Path, how: str) -> None:
    core = bytes(Core([Load(BASE, os.urandom(1 << 20))], notes=prstatus(7)).build())
    path = packed(tmp_path, core, how)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadCore, match="cannot be unpacked"):
        opening.open_core(str(path))


def test_systemds_store(tmp_path: Path) -> None:
    names = "python3.1000.0123456789abcdef.77.1700000000000000.zst", "a.b.0.00ff.78.1800000000000000.lz4"
    for name in (*names, "python3.0.00ff.77.1750000000000000", "x"):
        (tmp_path / f"core.{name}").touch()
    (tmp_path / "other").touch()
    store = str(tmp_path)
    assert core_sources.stored_core("systemd", store) == f"{store}/core.a.b.0.00ff.78.1800000000000000.lz4"
    assert core_sources.stored_core("coredumpctl:77", store) == f"{store}/core.python3.0.00ff.77.1750000000000000"
    assert core_sources.stored_core("core", store) == "core"
    with pytest.raises(BadCore, match="no core of process 5") as caught:
        core_sources.stored_core("coredumpctl:5", store)
    assert "77, 78" in caught.value.why
    with pytest.raises(BadCore, match="systemd's store"):
        core_sources.stored_core("systemd", f"{store}/none")


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_what_lies_behind_a_core_is_not_unpacked(tmp_path: Path, core: bytes, how: str) -> None:
    found = unpacked(tmp_path, core + bytes(20 << 20), how)
    assert len(core) <= found.st_size < len(core) + (2 << 20)
    assert found.st_blocks * 512 < len(core) // 4, "it has holes"


def claiming(core: bytes, offset: int, value: int, size: int = 8) -> bytes:
    return core[:offset] + value.to_bytes(size, "little") + core[offset + size :]


def test_what_is_no_core_or_claims_more_than_fits_is_not_unpacked(tmp_path: Path, core: bytes) -> None:
    """Megabytes of zeros stand for gigabytes: to unpack them takes more lines of Python."""
    segment_size, headers_at = 64 + 32 + 56, 32  # p_filesz of the second segment, e_phoff
    for data, reason in (
        (b"", "holds no core"),
        (claiming(core, segment_size, 1 << 60), "no room to unpack"),
        (claiming(core, headers_at, 1 << 60), "before the end of its program headers"),
    ):
        path = packed(tmp_path, data + bytes(20 << 20), "gz")

        def refuse() -> None:
            with pytest.raises(BadCore, match=reason):  # noqa: B023
                core_sources.unpack_core(str(path))  # noqa: B023

        refuse()
        assert lines_run(refuse) < 800


def test_the_end_of_a_core_with_very_many_segments_is_that_of_its_section(tmp_path: Path, core: bytes) -> None:
    """fs/binfmt_elf.c, fill_extnum_info: e_shoff is the end of the data, and the number of segments stands there."""
    many = claiming(claiming(core, 56, 0xFFFF, 2), 40, len(core))
    many = claiming(claiming(many, 58, 64, 2), 60, 1, 2) + bytes(64)
    found = unpacked(tmp_path, many + bytes(20 << 20))
    assert len(many) <= found.st_size < len(many) + (2 << 20)
