"""``dispatch-ring``: which threads put into the ring and which take from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gdbext import Mode, Section, Tool, make_report
from gdbext_example.ring_knowledge import runs

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from gdbext import Report, Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.render import Style


@dataclass(frozen=True)
class RingSection(Section):
    """Ids of the threads."""

    name: ClassVar[str] = "ring"
    putting: tuple[int, ...]
    serving: tuple[int, ...]


class RingTool(Tool):
    """``dispatch-ring``."""

    name = "dispatch-ring"
    summary = "Show who puts into the ring and who takes from it."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """One option."""
        parser.add_argument("--servers", action="store_true", help="only the threads that take")

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Look at all threads."""
        threads = session.threads.all().threads
        putting = () if args.servers else tuple(each.tid for each in threads if runs(each, "put"))
        serving = tuple(each.tid for each in threads if runs(each, "serve"))
        return make_report(self, session, args, sections=(RingSection(putting, serving),))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """Two lines."""
        section = report.section(RingSection)
        yield f"putting: {', '.join(map(str, section.putting)) or 'nobody'}"
        yield f"serving: {', '.join(map(str, section.serving)) or 'nobody'}"
