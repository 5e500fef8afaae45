"""``dispatch-info --settings`` as text: what was changed, then what is as PyTorch has it, then what is unknown."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.settings_section import DEFAULT, Setting, SettingsSection
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """A line a setting."""
    section = report.section(SettingsSection)
    settings = section.settings
    width = max((len(setting.name) for setting in settings), default=0)
    changed = [setting for setting in settings if setting.is_changed]
    yield style("Set in this process" if changed else "Nothing is set to anything but PyTorch's default", "bold")
    for setting in changed:
        usual = "else the libraries choose" if setting.default == DEFAULT else f"default {setting.default}"
        yield f"  {setting.name:{width}}  {setting.value}  ({usual})"
    yield ""
    yield style("As PyTorch has it", "bold")
    for setting in settings:
        if setting.value is not None and not setting.is_changed:
            yield f"  {setting.name:{width}}  {setting.value}"
    yield from _unknown([setting for setting in settings if setting.value is None], width, style)
    if section.environment:
        yield ""
        yield style("In the environment, as the process was started", "bold")
        for name, value in section.environment.items():
            yield f"  {escape(name)}={escape(value)}"
    if section.script is not None:
        yield ""
        yield f"Python that sets this again: {escape(section.script)}"


def _unknown(settings: list[Setting], width: int, style: Style) -> Iterator[str]:
    if settings:
        yield ""
        yield style("Not known", "bold")
    for setting in settings:
        yield f"  {setting.name:{width}}  {escape(setting.unknown)}"
