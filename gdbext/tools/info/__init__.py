"""The tools dispatch-info (torch, Python, libc, layouts; settings; memory) and measure (layouts from PyTorch's
headers).

An inspection measures by itself if it can; ``measure`` is for containers, and for machines without a compiler.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.diagnosis.reporting import dispatcher_errors, make_report
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.layouts import store
from gdbext.engine.terminal import shown_json
from gdbext.errors import UsageError
from gdbext.tools.info import held_memory, info_report, settings_view
from gdbext.tools.info.held_memory import read_memory
from gdbext.tools.info.info_report import read_target_info
from gdbext.tools.info.settings_report import read_settings
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program
from gdbext.torch.measure import measurement
from gdbext.torch.state.setting_sources import SettingsSection

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.render import Style
    from gdbext.tools.program import Dispatch


class InfoTool(Tool):
    """The command ``dispatch-info`` as a tool."""

    name = "dispatch-info"
    summary = "Show what was found of torch, Python and layouts, and what could not be read."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        settings_help = (
            "show PyTorch settings instead: determinism, precision, generators, threads, allocators, "
            "torch.compile, and what each thread has set for itself"
        )
        parser.add_argument("--settings", action="store_true", help=settings_help)
        memory_help = (
            "show instead the memory of the tensors that Python knows: storages and bytes by dtype, the largest "
            "by the name of a module's parameter, and the counts of CUDA's caching allocator"
        )
        parser.add_argument("--memory", action="store_true", help=memory_help)
        script_help = "with --settings: write a Python script that applies the same settings"
        parser.add_argument("--reproduce", metavar="FILE", help=script_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Collect the facts; each may be unknown. Raises NotTorch for settings without torch."""
        if args.settings:
            session, settings = session.read_consistently(lambda session: read_settings(session, args.reproduce))
            if args.reproduce:
                settings_view.write(args.reproduce, settings)
            return make_report(self, session, args, sections=(settings,))
        if args.reproduce:
            raise UsageError("--reproduce goes with --settings", help="dispatch-info --settings --reproduce FILE")
        if args.memory:
            session, memory = session.read_consistently(read_memory)
            return make_report(self, session, args, sections=(memory,))
        session, info = session.read_consistently(read_target_info)
        return make_report(self, session, args, errors=dispatcher_errors(session), sections=(info,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the one section of the report."""
        if report.find_section(held_memory.MemorySection):
            return held_memory.render(report, style)
        if report.find_section(SettingsSection):
            return settings_view.render(report, style)
        return info_report.render(report, style)


_MEASURE_EPILOG = """\
DIR is the folder of the installed package, the one that holds include/ and lib/:

  python3 -c 'import torch; print(torch.__path__[0])'

It needs g++ and pyelftools, takes half a minute, and starts no PyTorch. The file is written into the folder that your
own looks read, under the build-id of libtorch_cpu.so; it may be copied into that folder on another machine.
"""


class MeasureProgram(Program):
    """The program ``scripts/dispatch measure`` as a tool."""

    name = "measure"
    common = ("--json",)
    summary = "Measure the structures of an installed PyTorch that is not known, from its headers."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _MEASURE_EPILOG
        parser.add_argument("torch", metavar="DIR", type=Path, help="the installed torch package")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Measure, and store the layout for later inspections. Raises LayoutError, UsageError."""
        args = self.parse(argv)
        library = args.torch.resolve() / "lib" / store.TORCH_LIBRARY
        build_id = build_id_of_file(library) if library.is_file() else None
        if not build_id:
            raise UsageError(f"{library} is no library of PyTorch", help="dispatch measure --help")
        layout = measurement.measure_torch(str(library), build_id)
        path = store.path_of_measured(build_id)
        if args.json:
            return Outcome(0, shown_json(json.dumps({"id": layout.id, "file": path})) + "\n")
        return Outcome(0, f"Measured {layout.id}.\nLooks at it will use {path}\n")
