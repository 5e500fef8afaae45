"""Settings as Python that sets them again (``dispatch-info --settings --reproduce FILE``)."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.errors import UsageError
from gdbext.model.sections.settings_section import DEFAULT, Setting, SettingsSection
from gdbext.torch.state.setting_sources import SETTINGS, Kind


def script(section: SettingsSection) -> str:
    """The whole program; what is not known is a comment."""
    return "\n".join(_lines(section)) + "\n"


def _lines(section: SettingsSection) -> Iterator[str]:
    yield "# The settings of a process, read by dispatch-info --settings. Run it before anything else."
    if section.environment:
        yield "import os"
        yield ""
        yield f"os.environ.update({dict(section.environment)!r})  # before torch is imported"
    yield ""
    yield "import torch"
    yield ""
    known = {setting.name: setting for setting in section.settings}
    for source in SETTINGS:
        if source.statement:
            yield _statement(source.statement, source.kind, known[source.name], known)


def _statement(template: str, kind: Kind, setting: Setting, known: dict[str, Setting]) -> str:
    if setting.value is None:
        return f"# {setting.name} is not known: {setting.unknown}"
    if kind is Kind.THREADS and setting.value == DEFAULT:
        return f"# {setting.name}: nobody set it"
    values = {name: each.default if each.value is None else each.value for name, each in known.items()}
    return template.format_map(values)


def write(path: str, section: SettingsSection) -> None:
    """Write the program to ``path``. Raises UsageError."""
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(script(section))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", help="name another --reproduce FILE") from error
