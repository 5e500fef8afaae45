"""The report of ``dispatch-info --settings``: how PyTorch was set in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Union

from gdbext.engine.record import Record
from gdbext.engine.vocabulary import Section

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
    """The bytes that torch.get_rng_state() gives; None where they are not known."""
    main_tid: int | None = None
    """The thread whose own settings the script sets; those of others are comments in it."""

    def document(self, why: bool) -> dict[str, Any]:  # noqa: ARG002 - the same with evidence
        """Name to value; null for what is not known."""
        return {setting.name: _plain(setting.value) for setting in self.settings}


def _plain(value: SettingValue) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
