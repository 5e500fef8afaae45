"""``dispatch-info --settings`` as text: what was changed, then what is as PyTorch has it, then what is unknown.

Settings as Python that sets them again (``dispatch-info --settings --reproduce FILE``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite

from gdbext.diagnosis.report import Report
from gdbext.engine.formats import whole_file
from gdbext.engine.numbers import number
from gdbext.errors import TargetError, UsageError
from gdbext.render import Style, escape
from gdbext.torch.state.setting_sources import (
    DEFAULT,
    NOT_SHOWN,
    SETTINGS,
    Setting,
    SettingSource,
    SettingsSection,
    SettingValue,
)

_NOT_SET = ("tid", "name", "unknown")
"""The words for what a thread has not set for itself."""


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
    if section.script:
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
    """Lines on what threads have set for themselves; none of any other setting."""
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
    default = "by default the libraries choose" if setting.default == DEFAULT else f"default {setting.default}"
    return f"{setting.name:{width}}  {shown(setting.value)}  ({default})"


def _differing(value: SettingValue, default: SettingValue) -> SettingValue:
    """The entries of a table that are not as they were."""
    if not isinstance(value, Mapping) or not isinstance(default, Mapping):
        return value
    return {key: each for key, each in value.items() if key not in default or default[key] != each}


def shown(value: SettingValue) -> str:
    """A value on one line: ``cuda.conv=tf32, cuda.rnn=tf32``; what is inside of something else in brackets."""
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(key))}={_inner(each)}" for key, each in value.items()) or "nothing"
    if isinstance(value, tuple):
        return "; ".join(map(_inner, value)) or "none"
    return escape(str(value))


def _inner(value: SettingValue) -> str:
    return f"[{shown(value)}]" if isinstance(value, (Mapping, tuple)) else shown(value)


_THREAD_STATEMENTS = {
    "grad_mode": "torch.set_grad_enabled({value})",
    "inference_mode": "torch.inference_mode({value}).__enter__()",
    "multithreading": "torch.autograd.set_multithreading_enabled({value})",
    "forward_ad": "torch._C._set_fwd_grad_enabled({value})",
    "autocast_cache": "torch.set_autocast_cache_enabled({value})",
}
"""Statements for the main thread's settings; what is not among them and has no function here is a comment."""
_CONFIGURATIONS = {"dynamo": "torch._dynamo.config", "inductor": "torch._inductor.config"}


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
        if source.statement and source.name in known:
            yield from _statement(source, known[source.name], known).splitlines()
    yield from _precisions(known.get("float32_precision"))
    for name, module in _CONFIGURATIONS.items():
        yield from _configuration(module, known.get(name))
    yield from _generators(section, known.get("generators"))
    yield from _allocator(known)
    yield from _callbacks(known)
    yield from _thread_counts(known.get("threads"), section.main_tid)
    yield from _default_device(known.get("default_device"))


def _statement(source: SettingSource, setting: Setting, known: dict[str, Setting]) -> str:
    if setting.value is None:
        return _unknown(setting)
    if setting.value == DEFAULT:
        return f"# {setting.name}: nobody set it"
    values = {name: each.default if each.value is None else each.value for name, each in known.items()}
    return source.statement.format_map(values)


def _unknown(setting: Setting) -> str:
    return f"# {setting.name} is not known: {_one_line(setting.unknown)}"


def _one_line(text: object) -> str:
    return ascii(str(text))[1:-1]


def _precisions(setting: Setting | None) -> Iterator[str]:
    """The generic one first, then the backends', then those of operations, which follow them."""
    if not setting:
        return
    if not isinstance(setting.value, Mapping):
        yield _unknown(setting)
        return
    order = sorted(setting.value.items(), key=lambda item: (item[0] != "generic.all", not item[0].endswith(".all")))
    for key, value in order:
        backend, _, operation = key.partition(".")
        yield f"torch._C._set_fp32_precision_setter({backend!r}, {operation!r}, {value!r})"


def _configuration(module: str, setting: Setting | None) -> Iterator[str]:
    if not setting or not setting.value:
        if setting and setting.value is None:
            yield _unknown(setting)
        return
    assert isinstance(setting.value, Mapping)
    yield f"import {module}"
    for name, value in setting.value.items():
        option = f"{module}.{name}"
        if value == NOT_SHOWN or not all(part.isidentifier() for part in name.split(".")):
            yield f"# {_one_line(option)} is set to something that cannot be written down"
        elif isinstance(value, tuple):
            yield f"{option} = type({option} or [])({_literal(value)})"
        else:
            yield f"{option} = {_literal(value)}"


def _literal(value: SettingValue) -> str:
    """The value as Python reads it again."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return f'float("{value}")' if isinstance(value, float) and not isfinite(value) else repr(value)


def _generators(section: SettingsSection, setting: Setting | None) -> Iterator[str]:
    if section.cpu_state is not None:
        state = f'bytearray.fromhex("{section.cpu_state.hex()}")'
        yield f"torch.set_rng_state(torch.frombuffer({state}, dtype=torch.uint8))"
    for each in _mappings(setting):
        device = str(each["device"])
        index = number(device[5:]) if device.startswith("cuda:") else None
        if index is not None:
            generator = f"torch.cuda.default_generators[{index}]"
            yield "torch.cuda.init()"
            yield f"{generator}.manual_seed({each['seed']})"
            yield f"{generator}.set_offset({each['offset']})"


def _mappings(setting: Setting | None) -> Sequence[Mapping[str, SettingValue]]:
    value = setting.value if setting else None
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, tuple) else []


def _allocator(known: Mapping[str, Setting]) -> Iterator[str]:
    for name in ("allocator", "cuda_allocator"):
        value = known[name].value if name in known else None
        settings = value.get("last_allocator_settings") if isinstance(value, Mapping) else None
        if settings:
            yield f"# the allocators' settings: {settings!r}"
            yield 'if hasattr(torch._C, "_accelerator_setAllocatorSettings"):'
            yield f"    torch._C._accelerator_setAllocatorSettings({settings!r})"
            yield 'elif hasattr(torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings"):'
            yield f"    torch._C._cuda_cudaCachingAllocator_set_allocator_settings({settings!r})"


def _callbacks(known: Mapping[str, Setting]) -> Iterator[str]:
    for each in _mappings(known.get("record_function_callbacks")):
        yield f"# RecordFunction calls {_one_line(each.get('start'))} in all threads"
    profiler = known.get("profiler")
    if profiler and isinstance(profiler.value, Mapping):
        yield f"# a profiler runs in all threads: {_one_line(dict(profiler.value))}"


def _thread_counts(setting: Setting | None, main_tid: int | None) -> Iterator[str]:
    """The main thread's state is set; those of others are comments."""
    for each in _mappings(setting):
        is_main = main_tid and each.get("tid") == main_tid
        for name, value in each.items():
            if name in ("tid", "name"):
                continue
            if is_main and name == "autocast" and isinstance(value, Mapping):
                yield from _autocast(value)
            elif is_main and name in _THREAD_STATEMENTS:
                yield _THREAD_STATEMENTS[name].format(value=value)
            else:
                yield f"# thread {_one_line(each.get('name', ''))}: {name}: {_one_line(_literal(value))}"


def _autocast(devices: Mapping[str, SettingValue]) -> Iterator[str]:
    """Statements for autocast; before 2.4 there were functions for CPU and CUDA only."""
    yield 'if hasattr(torch, "set_autocast_dtype"):'
    for device, dtype in devices.items():
        if dtype:
            yield f"    torch.set_autocast_dtype({device!r}, torch.{dtype})"
        yield f"    torch.set_autocast_enabled({device!r}, True)"
    old = {"cpu": "cpu_", "cuda": ""}
    statements = [f"    torch.set_autocast_{old[device]}enabled(True)" for device in devices if device in old]
    statements += [
        f"    torch.set_autocast_{old[device] or 'gpu_'}dtype(torch.{dtype})"
        for device, dtype in devices.items()
        if device in old and dtype
    ]
    if statements:
        yield "else:"
        yield from statements


def _default_device(setting: Setting | None) -> Iterator[str]:
    """Last, for whatever makes tensors would make them there."""
    if not setting:
        return
    if setting.value is None:
        yield _unknown(setting)
    elif setting.value != setting.default:
        yield f"torch.set_default_device({setting.value!r})"


def write(path: str, section: SettingsSection) -> None:
    """Write the program to ``path``. Raises UsageError."""
    try:
        whole_file.write_text(path, script(section))
    except TargetError as error:
        raise UsageError(error.what, why=error.why, help="name another --reproduce FILE") from error
