"""``dispatch-info --settings`` as text: what was changed, then what is as PyTorch has it, then what is unknown."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.settings_section import DEFAULT, Setting, SettingsSection
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """A line a setting, in blocks."""
    section = report.section(SettingsSection)
    width = max((len(setting.name) for setting in section.settings), default=0)
    yielded = False
    for heading, lines in _blocks(section, width):
        if lines:
            yield from [""] * yielded
            yield style(heading, "bold")
            yield from (f"  {line}" for line in lines)
            yielded = True
    if section.script is not None:
        yield ""
        yield f"Python that sets this again: {escape(section.script)}"


def _blocks(section: SettingsSection, width: int) -> Iterator[tuple[str, list[str]]]:
    settings = section.settings
    usual = [each for each in settings if each.value is not None and not each.is_changed]
    unknown = [each for each in settings if each.value is None]
    yield "Set in this process", [_changed(each, width) for each in settings if each.is_changed]
    yield "As PyTorch has it", [f"{each.name:{width}}  {each.value}" for each in usual]
    yield "Not known", [f"{each.name:{width}}  {escape(each.unknown)}" for each in unknown]
    variables = [f"{escape(name)}={escape(value)}" for name, value in section.environment.items()]
    yield "In the environment, as the process was started", variables


def _changed(setting: Setting, width: int) -> str:
    default = "else the libraries choose" if setting.default == DEFAULT else f"default {setting.default}"
    return f"{setting.name:{width}}  {setting.value}  ({default})"
