"""The report of ``dispatch-values`` when its run is over: as JSON, as text, and a safetensors file for each launch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Ending, Report
from gdbext.engine.formats import whole_file
from gdbext.engine.formats.whole_file import WholeFile, cannot_write
from gdbext.engine.vocabulary import Section, counted
from gdbext.errors import GdbextError, TargetError
from gdbext.render import Style, escape
from gdbext.tools.tensor import tensor_files
from gdbext.tools.tensor.tensor_files import entries_of
from gdbext.tools.values.launch import KernelLaunch

if TYPE_CHECKING:
    from gdbext.tools.tensor.tensor_report import TensorReporter


@dataclass(frozen=True)
class ValuesSection(Section):
    """The number of calls that were seen, why it ended, and where files went."""

    name: ClassVar[str] = "values"
    mode: str
    count: int
    ending: Ending
    notes: tuple[str, ...] = ()
    folder: str | None = None
    files: int = 0


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then the notes."""
    values = report.section(ValuesSection)
    where = f", {counted(values.files, 'file')} in {escape(values.folder)}" if values.folder is not None else ""
    ended = escape(values.ending.text or "as requested")
    yield style(f"{values.count} call{'s' if values.count != 1 else ''} seen{where}; ended: {ended}", "bold")
    yield from (f"  note: {escape(note)}" for note in values.notes)


class ValueFiles:
    """Writes ``DIR/<before_launch|after_launch>_<op>_<N>.safetensors``, one tensor for each argument or result."""

    def __init__(self, folder: str, max_bytes: int, show: Callable[[str], None]) -> None:
        """``max_bytes``: larger tensors are left out; ``show`` prints a line for each file. Raises TargetError."""
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        self._show = show
        self.count = 0
        try:
            os.close(whole_file.open_folder(folder, make=True))
        except OSError as error:
            raise TargetError(
                f"cannot create the folder {folder}: {error.strerror}",
                why="its parent folder is not writable, or a file has that name",
                help="choose another --dir",
            ) from error
        try:  # whether files can be created there must be clear before the process runs
            WholeFile(f"{self._folder}/try").discard()
        except OSError as error:
            raise cannot_write(str(self._folder), error) from error

    def launch(self, launch: KernelLaunch, reporter: TensorReporter) -> bool:
        """Write one file. Raises TargetError."""
        entries, left_out = [], []
        for tensor in (tensor for value in launch.values for tensor in value.tensors):
            try:
                for entry in list(entries_of(reporter, tensor.address, tensor.name)):
                    if self._max_bytes and entry.size > self._max_bytes:
                        left_out.append(f"{entry.name} ({entry.size} bytes)")
                    else:
                        entries.append(entry)
            except GdbextError as error:
                left_out.append(f"{tensor.name} ({error.what})")
        name = re.sub(r"[^\w-]", "_", launch.qualified)  # aten__add_Tensor of aten::add.Tensor
        path = self._folder / f"{launch.moment}_{name}_{launch.call}.safetensors"
        scalars = {value.name: value.text for value in launch.values if value.text and not value.tensors}
        tensor_files.write(str(path), entries, {"op": launch.qualified, "kernel": launch.kernel, **scalars})
        self.count += 1
        self._show(f"{path}" + (f", without {', '.join(left_out)}" if left_out else ""))
        return False
