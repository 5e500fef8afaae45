"""ELF headers of real files are what pyelftools reads."""

from __future__ import annotations

import pytest
from elftools.elf.elffile import ELFFile

from gdbext.engine.formats.elf import ElfImage
from support.fakes.fake_target import OwnProcess
from support.installed.machine import torch_library


@pytest.mark.torch
def test_headers_of_everything_that_this_process_has_mapped() -> None:
    """Among others python itself, libc and libstdc++."""
    found = {mapping.path for mapping in OwnProcess().maps() if "x" in mapping.permissions and mapping.path[:1] == "/"}
    assert len(found) > 5
    for path in [*found, torch_library("libc10.so")]:
        compare_headers(path)


def compare_headers(path: str) -> None:
    image = ElfImage.open(path)
    with open(path, "rb") as stream:
        oracle = ELFFile(stream)
        assert image.entry == oracle.header.e_entry
        assert image.machine == 62
        wanted = [segment.header for segment in oracle.iter_segments()]
        assert [(s.flags, s.offset, s.vaddr, s.filesz, s.memsz) for s in image.segments] == [
            (h.p_flags, h.p_offset, h.p_vaddr, h.p_filesz, h.p_memsz) for h in wanted
        ]
        frames = [h for h in wanted if h.p_type == "PT_GNU_EH_FRAME"]
        found = [image.eh_frame_hdr.vaddr] if image.eh_frame_hdr else []
        assert found == [h.p_vaddr for h in frames]
        assert (image.tls is not None) == any(h.p_type == "PT_TLS" for h in wanted)
        sections = list(oracle.iter_sections())
        assert [(s.name, s.address, s.offset, s.size, s.link) for s in image.section_list] == [
            (s.name, s.header.sh_addr, s.header.sh_offset, s.header.sh_size, s.header.sh_link) for s in sections
        ]
        note = oracle.get_section_by_name(".note.gnu.build-id")
        assert image.build_id == (next(note.iter_notes())["n_desc"] if note else None)
        dynamic = oracle.get_section_by_name(".dynamic")
        if dynamic is not None:
            for tag in dynamic.iter_tags("DT_STRTAB"):
                assert image.dynamic[5] == tag.entry.d_val
