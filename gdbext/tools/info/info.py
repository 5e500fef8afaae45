"""``dispatch-info``: what was found of torch, Python, libc and layouts, and what could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.reporting import dispatcher_errors, make_report
from gdbext.diagnosis.tool import Mode, Tool
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from gdbext.diagnosis.report.report import Report
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.render.style import Style


class InfoTool(Tool):
    """The command ``dispatch-info`` as a tool."""

    name = "dispatch-info"
    summary = "Show what was found of torch, Python and layouts, and what could not be read."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options of this tool."""
        parser.add_argument(
            "--settings",
            action="store_true",
            help="show instead how PyTorch is set: determinism, precision, generators, threads, allocators, "
            "torch.compile, and what each thread has set for itself",
        )
        parser.add_argument(
            "--memory",
            action="store_true",
            help="show instead the memory of the tensors that Python knows: storages and bytes by dtype, the largest "
            "by the name of a module's parameter, and the counts of CUDA's caching allocator",
        )
        parser.add_argument(
            "--reproduce", metavar="FILE", help="with --settings: write a Python script that applies the same settings"
        )

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Collect the facts; everything here is allowed to be unknown. Raises NotTorch for settings without torch."""
        if args.settings:
            return self._settings(session, args)
        if args.reproduce:
            raise UsageError("--reproduce goes with --settings", help="dispatch-info --settings --reproduce FILE")
        if args.memory:
            from gdbext.tools.info.held_memory import read_memory

            session, memory = session.settled(read_memory)
            return make_report(self, session, args, sections=(memory,))
        from gdbext.tools.info.info_report import read_target_info

        session, info = session.settled(read_target_info)
        return make_report(self, session, args, errors=dispatcher_errors(session), sections=(info,))

    def _settings(self, session: Session, args: Namespace) -> Report:
        from gdbext.tools.info.settings_report import read_settings

        session, section = session.settled(lambda each: read_settings(each, args.reproduce))
        if args.reproduce:
            from gdbext.tools.info import settings_view

            settings_view.write(args.reproduce, section)
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text: it has one section, of one of three kinds."""
        from gdbext.tools.info import cuda_allocator, held_memory, info_report, settings_view
        from gdbext.torch.state.setting_sources import SettingsSection

        if report.find_section(cuda_allocator.MemorySection) is not None:
            return held_memory.render(report, style)
        if report.find_section(SettingsSection) is not None:
            return settings_view.render(report, style)
        return info_report.render(report, style)
