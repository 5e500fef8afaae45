"""What ``dispatch-info --settings`` reports: how PyTorch was set in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Union

from gdbext.model.record import Record
from gdbext.model.sections.section import Section

SettingValue = Union[bool, int, float, str, None, tuple["SettingValue", ...], Mapping[str, "SettingValue"]]
DEFAULT = "default"
"""The value where nobody has set one, and the libraries below choose."""
NOT_SHOWN = "(not shown)"
"""The value of an option that is set to an object of another kind."""


class Setting(Record):
    """``value`` is None where it is not known, and ``unknown`` says why then. ``default`` is PyTorch's own, None where
    there is none or it depends on the machine."""

    name: str
    value: SettingValue
    default: SettingValue = None
    unknown: str = ""

    @property
    def is_changed(self) -> bool:
        """Somebody set it to something else than PyTorch's default."""
        return self.value is not None and self.default is not None and self.value != self.default


@dataclass(frozen=True)
class SettingsSection(Section):
    """``script`` is the file with Python that sets them again, where one was asked for."""

    name: ClassVar[str] = "settings"
    settings: tuple[Setting, ...]
    environment: Mapping[str, str]
    """Variables that PyTorch and the libraries below it read when they begin."""
    script: str | None = None
    cpu_state: bytes | None = None
    """What torch.get_rng_state() gives; None where it is not known."""
    main_tid: int | None = None
    """The thread whose own settings the script sets; those of others are comments in it."""
