"""``dispatch-values save``: a safetensors file for each launch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError, TargetError
from gdbext.formats import safetensors_file
from gdbext.formats.whole_file import cannot_write
from gdbext.inspection.tensors.tensor_saving import entries_of
from gdbext.model.dispatch.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.inspection.tensors.tensor_report import TensorReporter


class ValueFiles:
    """Writes ``DIR/<before_launch|after_launch>_<op>_<N>.safetensors``, one tensor for each argument or result."""

    def __init__(self, folder: str, max_bytes: int, show: Callable[[str], None]) -> None:
        """``max_bytes``: tensors larger than that are left out; ``show`` tells about each file. Raises TargetError."""
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        self._show = show
        self.count = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TargetError(
                f"cannot make the folder {folder}: {error.strerror}",
                why="its parent folder cannot be written to, or a file has that name",
                help="name another --dir",
            ) from error
        self._check_folder()

    def _check_folder(self) -> None:
        """Files can be made there: better known before the process runs."""
        import tempfile

        try:
            with tempfile.TemporaryFile(dir=self._folder):
                return
        except OSError as error:
            raise cannot_write(str(self._folder), error) from error

    def launch(self, launch: Launch, reporter: TensorReporter) -> bool:
        """Write one file. Raises TargetError."""
        entries, left_out = [], []
        for tensor in (tensor for value in launch.values for tensor in value.tensors):
            try:
                found = list(entries_of(reporter, tensor.address, tensor.name))
            except GdbextError as error:
                left_out.append(f"{tensor.name} ({error.what})")
                continue
            kept = [entry for entry in found if not self._max_bytes or entry.size <= self._max_bytes]
            left_out += [f"{entry.name} ({entry.size} bytes)" for entry in found if entry not in kept]
            entries += kept
        path = self._folder / f"{launch.when}_{file_name(launch.qualified)}_{launch.call}.safetensors"
        scalars = {value.name: value.text for value in launch.values if value.text and not value.tensors}
        safetensors_file.write(str(path), entries, {"op": launch.qualified, "kernel": launch.kernel, **scalars})
        self.count += 1
        self._show(f"{path}" + (f", without {', '.join(left_out)}" if left_out else ""))
        return False


def file_name(operator: str) -> str:
    """``aten__add_Tensor`` of ``aten::add.Tensor``: ``:`` and ``.`` become ``_``."""
    return re.sub(r"[^\w-]", "_", operator)
