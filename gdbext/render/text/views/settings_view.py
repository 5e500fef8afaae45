"""``dispatch-info --settings`` as text: what was changed, then what is as PyTorch has it, then what is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gdbext.model.report import Report
from gdbext.model.sections.settings_section import DEFAULT, Setting, SettingsSection, SettingValue
from gdbext.render.text.style import Style, escape

_NOT_SET = ("tid", "name", "unknown")
"""Of what is said of a thread, that which it has not set for itself."""


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
    threads = [each for setting in section.settings for each in _threads(setting)]
    settings = [each for each in section.settings if not _threads(each)]
    usual = [each for each in settings if each.value is not None and not each.is_changed]
    changed = [_changed(each, width) for each in settings if each.is_changed]
    unknown = [f"{each.name:{width}}  {escape(each.unknown)}" for each in settings if each.value is None]
    yield "Set in this process", [*changed, *_thread_lines(threads, width)]
    yield "As PyTorch has it", [f"{each.name:{width}}  {shown(each.value)}" for each in usual]
    yield "Not known", [*unknown, *_unknown_of_threads(threads, width)]
    variables = [f"{escape(name)}={escape(value)}" for name, value in section.environment.items()]
    yield "In the environment, as the process was started", variables


def _threads(setting: Setting) -> list[Mapping[str, SettingValue]]:
    """What threads have set for themselves; none of any other setting."""
    entries = setting.value if setting.name == "threads" and isinstance(setting.value, tuple) else ()
    return [each for each in entries if isinstance(each, Mapping)]


def _thread_lines(threads: Sequence[Mapping[str, SettingValue]], width: int) -> Iterator[str]:
    for thread in threads:
        own = {name: value for name, value in thread.items() if name not in _NOT_SET}
        if own:
            label = f"thread {thread['tid']}"
            yield f"{label:{width}}  {shown(thread['name'])}: {shown(own)}"


def _unknown_of_threads(threads: Sequence[Mapping[str, SettingValue]], width: int) -> Iterator[str]:
    """One line for all threads of which the same is not known."""
    labels: dict[SettingValue, list[str]] = {}
    for thread in threads:
        for reason in _reasons(thread):
            labels.setdefault(reason, []).append(f"thread {thread['tid']}" if "tid" in thread else "threads")
    for reason, (label, *others) in labels.items():
        where = f"{label} and {len(others)} more" if others else label
        yield f"{where:{width}}  {shown(reason)}"


def _reasons(thread: Mapping[str, SettingValue]) -> Iterable[SettingValue]:
    reasons = thread.get("unknown")
    return reasons if isinstance(reasons, tuple) else ()


def _changed(setting: Setting, width: int) -> str:
    if isinstance(setting.default, (Mapping, tuple)):
        return f"{setting.name:{width}}  {shown(_differing(setting.value, setting.default))}"
    default = "else the libraries choose" if setting.default == DEFAULT else f"default {setting.default}"
    return f"{setting.name:{width}}  {shown(setting.value)}  ({default})"


def _differing(value: SettingValue, default: SettingValue) -> SettingValue:
    """Of a table, the entries that are not as they were."""
    if not isinstance(value, Mapping) or not isinstance(default, Mapping):
        return value
    return {key: each for key, each in value.items() if key not in default or default[key] != each}


def shown(value: SettingValue) -> str:
    """On one line: ``cuda.conv=tf32, cuda.rnn=tf32``; what is inside of something else in brackets."""
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(key))}={_inner(each)}" for key, each in value.items()) or "nothing"
    if isinstance(value, tuple):
        return "; ".join(map(_inner, value)) or "none"
    return escape(str(value))


def _inner(value: SettingValue) -> str:
    return f"[{shown(value)}]" if isinstance(value, (Mapping, tuple)) else shown(value)
