"""Cores written by the kernel and by gcore, read by CoreTarget and by pyelftools."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from gdbext.engine.targets.core_target import CoreTarget
from support.programs import plain_program

pytestmark = [pytest.mark.compiler, pytest.mark.gdb]


@pytest.fixture(scope="module", params=["kernel", "gcore"])
def real_core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    program = plain_program.build(folder)
    if request.param == "kernel":
        return plain_program.kernel_core(program, folder)[0]
    with plain_program.running(program, "3") as plain:
        return plain_program.take_gcore(plain.pid, folder / "gcore.core")


def test_equal_to_pyelftools(real_core: Path) -> None:
    target = CoreTarget(str(real_core))
    with real_core.open("rb") as stream:
        elf = ELFFile(stream)
        notes = [entry for part in elf.iter_segments("PT_NOTE") for entry in part.iter_notes()]
        tids = [struct.unpack_from("<i", n["n_descdata"], 32)[0] for n in notes if n["n_type"] == "NT_PRSTATUS"]
        rips = [struct.unpack_from("<27Q", n["n_descdata"], 112)[16] for n in notes if n["n_type"] == "NT_PRSTATUS"]
        assert sorted(zip(tids, rips)) == [(t.tid, t.registers()["rip"]) for t in target.threads()]
        (mapped,) = [n["n_desc"] for n in notes if n["n_type"] == "NT_FILE"]
        expected = set(_mapped_by_pyelftools(mapped))
        ours = [m for m in target.maps() if m.path.startswith("/")]
        assert {(m.path, m.start, m.offset) for m in ours} >= {(p, s, o) for p, s, _, o in expected}
        assert sum(m.end - m.start for m in ours) == sum(end - start for _, start, end, _ in expected)
        for part in elf.iter_segments("PT_LOAD"):
            size = min(part["p_filesz"], 1 << 16)
            stream.seek(part["p_offset"])
            assert target.read(part["p_vaddr"], size) == stream.read(size)


def _mapped_by_pyelftools(mapped: Any) -> Any:
    for entry, name in zip(mapped["Elf_Nt_File_Entry"], mapped["filename"]):
        yield os.fsdecode(name), entry["vm_start"], entry["vm_end"], entry["page_offset"] * mapped["page_size"]
