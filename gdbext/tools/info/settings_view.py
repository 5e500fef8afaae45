"""Settings as text (``dispatch-info --settings``), and as a Python script that applies them (``--reproduce FILE``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from gdbext.diagnosis.report import Report
from gdbext.engine.formats import whole_file
from gdbext.engine.numbers import number
from gdbext.errors import TargetError, UsageError
from gdbext.render import Style, escape
from gdbext.torch.state.setting_sources import DEFAULT, NOT_SHOWN, SETTINGS, Setting, SettingsSection, SettingValue


def render(report: Report, style: Style) -> Iterator[str]:
    """A line for each setting, in blocks."""
    section = report.section(SettingsSection)
    blocks = [(heading, lines) for heading, lines in _blocks(section) if lines]
    for position, (heading, lines) in enumerate(blocks):
        yield from [""] if position else []
        yield style(heading, "bold")
        yield from (f"  {line}" for line in lines)
    if section.script:
        yield ""
        yield f"script that applies these settings: {escape(section.script)}"


def _blocks(section: SettingsSection) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines) of each block: changed settings, defaults, unknown settings, the environment."""
    width = max((len(setting.name) for setting in section.settings), default=0)
    changed, usual, unknown = [], [], []
    threads: list[Mapping[str, SettingValue]] = []
    for setting in section.settings:
        own = _mappings(setting) if setting.name == "threads" else []
        if own:
            threads += own
            continue
        if setting.is_changed:
            changed.append(f"{setting.name:{width}}  {_changed_text(setting)}")
        elif setting.value is not None:
            usual.append(f"{setting.name:{width}}  {shown(setting.value)}")
        if setting.value is None:
            unknown.append(f"{setting.name:{width}}  {escape(setting.unknown)}")
    labels: dict[SettingValue, list[str]] = {}  # reason why something is unknown → threads
    for thread in threads:
        own_settings = {name: value for name, value in thread.items() if name not in ("tid", "name", "unknown")}
        if own_settings:
            label = f"thread {thread['tid']}"
            changed.append(f"{label:{width}}  {shown(thread['name'])}: {shown(own_settings)}")
        reasons = thread.get("unknown")
        for reason in reasons if isinstance(reasons, tuple) else ():
            labels.setdefault(reason, []).append(f"thread {thread['tid']}" if "tid" in thread else "threads")
    for reason, (label, *others) in labels.items():
        where = f"{label} and {len(others)} more" if others else label
        unknown.append(f"{where:{width}}  {shown(reason)}")
    yield "Changed in this process", changed
    yield "Unchanged", usual
    yield "Unknown", unknown
    variables = [f"{escape(name)}={escape(value)}" for name, value in section.environment.items()]
    yield "Environment variables at the start of the process", variables


def _changed_text(setting: Setting) -> str:
    """The value of a changed setting: of a table the entries that differ, of a scalar also the default."""
    value, default = setting.value, setting.default
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return shown({key: entry for key, entry in value.items() if key not in default or default[key] != entry})
    if isinstance(default, (Mapping, tuple)):
        return shown(value)
    return f"{shown(value)}  ({'default: the libraries choose' if default == DEFAULT else f'default: {default}'})"


def shown(value: SettingValue) -> str:
    """A value on one line: ``cuda.conv=tf32, cuda.rnn=tf32``; nested values in brackets."""

    def inner(value: SettingValue) -> str:  # a value within another one
        return f"[{shown(value)}]" if isinstance(value, (Mapping, tuple)) else shown(value)

    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(key))}={inner(entry)}" for key, entry in value.items()) or "nothing"
    if isinstance(value, tuple):
        return "; ".join(map(inner, value)) or "none"
    return escape(str(value))


_THREAD_STATEMENTS = {
    "grad_mode": "torch.set_grad_enabled({value})",
    "inference_mode": "torch.inference_mode({value}).__enter__()",
    "multithreading": "torch.autograd.set_multithreading_enabled({value})",
    "forward_ad": "torch._C._set_fwd_grad_enabled({value})",
    "autocast_cache": "torch.set_autocast_cache_enabled({value})",
}
"""Statements for the main thread's settings; a setting without a statement becomes a comment."""


def script(section: SettingsSection) -> str:
    """The Python script that applies the settings; an unknown one becomes a comment."""
    settings = {setting.name: setting for setting in section.settings}
    lines = ["# The settings of a process, read by dispatch-info --settings. Run it before anything else."]
    if section.environment:
        variables = f"os.environ.update({dict(section.environment)!r})  # before torch is imported"
        lines += ["import os", "", variables]
    lines += ["", "import torch", ""]
    values = {name: setting.default if setting.value is None else setting.value for name, setting in settings.items()}
    for source in SETTINGS:
        if source.statement and source.name in settings:
            setting = settings[source.name]
            if setting.value is None:
                lines.append(_unknown_comment(setting))
            elif setting.value == DEFAULT:
                lines.append(f"# {setting.name}: not set")
            else:
                lines += source.statement.format_map(values).splitlines()
    lines += _precision_statements(settings.get("float32_precision"))
    lines += _compiler_statements("torch._dynamo.config", settings.get("dynamo"))
    lines += _compiler_statements("torch._inductor.config", settings.get("inductor"))
    if section.cpu_state is not None:
        state = f'bytearray.fromhex("{section.cpu_state.hex()}")'
        lines.append(f"torch.set_rng_state(torch.frombuffer({state}, dtype=torch.uint8))")
    for entry in _mappings(settings.get("generators")):
        device = str(entry["device"])
        index = number(device[5:]) if device.startswith("cuda:") else None
        if index is not None:
            generator = f"torch.cuda.default_generators[{index}]"
            offset = f"{generator}.set_offset({entry['offset']})"
            lines += ["torch.cuda.init()", f"{generator}.manual_seed({entry['seed']})", offset]
    for name in ("allocator", "cuda_allocator"):
        value = settings[name].value if name in settings else None
        options = value.get("last_allocator_settings") if isinstance(value, Mapping) else None
        if options:
            lines += [
                f"# the allocators' settings: {options!r}",
                'if hasattr(torch._C, "_accelerator_setAllocatorSettings"):',
                f"    torch._C._accelerator_setAllocatorSettings({options!r})",
                'elif hasattr(torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings"):',
                f"    torch._C._cuda_cudaCachingAllocator_set_allocator_settings({options!r})",
            ]
    for entry in _mappings(settings.get("record_function_callbacks")):
        lines.append(f"# RecordFunction calls {_one_line(entry.get('start'))} in all threads")
    profiler = settings.get("profiler")
    if profiler and isinstance(profiler.value, Mapping):
        lines.append(f"# a profiler runs in all threads: {_one_line(dict(profiler.value))}")
    lines += _thread_statements(settings.get("threads"), section.main_tid)
    default_device = settings.get("default_device")  # last, since the statements above may create tensors
    if default_device and default_device.value is None:
        lines.append(_unknown_comment(default_device))
    elif default_device and default_device.value != default_device.default:
        lines.append(f"torch.set_default_device({default_device.value!r})")
    return "\n".join(lines) + "\n"


def _unknown_comment(setting: Setting) -> str:
    return f"# {setting.name} is unknown: {_one_line(setting.unknown)}"


def _one_line(text: object) -> str:
    """The text for a comment of the script: in ASCII, without newlines."""
    return ascii(str(text))[1:-1]


def _precision_statements(setting: Setting | None) -> Iterator[str]:
    """Statements for float32 precisions: the generic one first, then those of backends and of their operations, since
    each defaults to the previous one."""
    if not setting:
        return
    if not isinstance(setting.value, Mapping):
        yield _unknown_comment(setting)
        return
    order = sorted(setting.value.items(), key=lambda item: (item[0] != "generic.all", not item[0].endswith(".all")))
    for key, value in order:
        backend, _, operation = key.partition(".")
        yield f"torch._C._set_fp32_precision_setter({backend!r}, {operation!r}, {value!r})"


def _compiler_statements(module: str, setting: Setting | None) -> Iterator[str]:
    """Statements for the options of a configuration module of torch.compile."""
    if setting and setting.value is None:
        yield _unknown_comment(setting)
    if not setting or not setting.value:
        return
    assert isinstance(setting.value, Mapping)
    yield f"import {module}"
    for name, value in setting.value.items():
        option = f"{module}.{name}"
        if value == NOT_SHOWN or not all(part.isidentifier() for part in name.split(".")):
            yield f"# {_one_line(option)} is set to a value that has no literal"
        elif isinstance(value, tuple):
            yield f"{option} = type({option} or [])({_literal(value)})"
        else:
            yield f"{option} = {_literal(value)}"


def _literal(value: SettingValue) -> str:
    """The value as a Python expression."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return f'float("{value}")' if isinstance(value, float) and not isfinite(value) else repr(value)


def _thread_statements(setting: Setting | None, main_tid: int | None) -> Iterator[str]:
    """Statements for the main thread's state, and comments on that of other threads."""
    for thread in _mappings(setting):
        is_main = main_tid and thread.get("tid") == main_tid
        for name, value in thread.items():
            if name in ("tid", "name"):
                continue
            if is_main and name == "autocast" and isinstance(value, Mapping):
                yield from _autocast_statements(value)
            elif is_main and name in _THREAD_STATEMENTS:
                yield _THREAD_STATEMENTS[name].format(value=value)
            else:
                yield f"# thread {_one_line(thread.get('name', ''))}: {name}: {_one_line(_literal(value))}"


def _mappings(setting: Setting | None) -> Sequence[Mapping[str, SettingValue]]:
    """The entries of a setting that is a list of tables; [] for any other."""
    value = setting.value if setting else None
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, tuple) else []


def _autocast_statements(devices: Mapping[str, SettingValue]) -> Iterator[str]:
    """Statements for autocast; before 2.4 there were functions for CPU and CUDA only."""
    yield 'if hasattr(torch, "set_autocast_dtype"):'
    for device, dtype in devices.items():
        if dtype:
            yield f"    torch.set_autocast_dtype({device!r}, torch.{dtype})"
        yield f"    torch.set_autocast_enabled({device!r}, True)"
    old = {"cpu": ("cpu_", "cpu_"), "cuda": ("", "gpu_")}  # names in set_autocast_…enabled() and set_autocast_…dtype()
    dtypes = {device: dtype for device, dtype in devices.items() if device in old}
    if dtypes:
        yield "else:"
        yield from (f"    torch.set_autocast_{old[device][0]}enabled(True)" for device in dtypes)
        typed = ((old[device][1], dtype) for device, dtype in dtypes.items() if dtype)
        yield from (f"    torch.set_autocast_{name}dtype(torch.{dtype})" for name, dtype in typed)


def write(path: str, section: SettingsSection) -> None:
    """Write the script to ``path``. Raises UsageError."""
    try:
        whole_file.write_text(path, script(section))
    except TargetError as error:
        raise UsageError(error.what, why=error.why, help="name another --reproduce FILE") from error
