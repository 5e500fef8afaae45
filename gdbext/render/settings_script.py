"""Settings as Python that sets them again (``dispatch-info --settings --reproduce FILE``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from gdbext.errors import UsageError
from gdbext.model.sections.settings_section import DEFAULT, NOT_SHOWN, Setting, SettingsSection, SettingValue
from gdbext.torch.state.setting_sources import SETTINGS, SettingSource

_THREAD_STATEMENTS = {
    "grad_mode": "torch.set_grad_enabled({value})",
    "inference_mode": "torch.inference_mode({value}).__enter__()",
    "multithreading": "torch.autograd.set_multithreading_enabled({value})",
    "forward_ad": "torch._C._set_fwd_grad_enabled({value})",
    "autocast_cache": "torch.set_autocast_cache_enabled({value})",
}
"""Of the main thread; what is not among them and has no function here is a comment."""
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
    yield from _threads(known.get("threads"), section.main_tid)
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
    if setting is None:
        return
    if not isinstance(setting.value, Mapping):
        yield _unknown(setting)
        return
    order = sorted(setting.value.items(), key=lambda item: (item[0] != "generic.all", not item[0].endswith(".all")))
    for key, value in order:
        backend, _, operation = key.partition(".")
        yield f"torch._C._set_fp32_precision_setter({backend!r}, {operation!r}, {value!r})"


def _configuration(module: str, setting: Setting | None) -> Iterator[str]:
    if setting is None or not setting.value:
        if setting is not None and setting.value is None:
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
    """As Python reads it again."""
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
        if device.startswith("cuda:"):
            generator = f"torch.cuda.default_generators[{int(device[5:])}]"
            yield "torch.cuda.init()"
            yield f"{generator}.manual_seed({each['seed']})"
            yield f"{generator}.set_offset({each['offset']})"


def _mappings(setting: Setting | None) -> Sequence[Mapping[str, SettingValue]]:
    value = setting.value if setting is not None else None
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
    if profiler is not None and isinstance(profiler.value, Mapping):
        yield f"# a profiler runs in all threads: {_one_line(dict(profiler.value))}"


def _threads(setting: Setting | None, main_tid: int | None) -> Iterator[str]:
    """The main thread's state is set; those of others are comments."""
    for each in _mappings(setting):
        is_main = main_tid is not None and each.get("tid") == main_tid
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
    """Before 2.4 there were functions for CPU and CUDA only."""
    yield 'if hasattr(torch, "set_autocast_dtype"):'
    for device, dtype in devices.items():
        if dtype is not None:
            yield f"    torch.set_autocast_dtype({device!r}, torch.{dtype})"
        yield f"    torch.set_autocast_enabled({device!r}, True)"
    old = {"cpu": "cpu_", "cuda": ""}
    statements = [f"    torch.set_autocast_{old[device]}enabled(True)" for device in devices if device in old]
    statements += [f"    torch.set_autocast_{old[device] or 'gpu_'}dtype(torch.{dtype})"
                   for device, dtype in devices.items() if device in old and dtype is not None]  # fmt: skip
    if statements:
        yield "else:"
        yield from statements


def _default_device(setting: Setting | None) -> Iterator[str]:
    """Last, for whatever makes tensors would make them there."""
    if setting is None:
        return
    if setting.value is None:
        yield _unknown(setting)
    elif setting.value != setting.default:
        yield f"torch.set_default_device({setting.value!r})"


def write(path: str, section: SettingsSection) -> None:
    """Write the program to ``path``. Raises UsageError."""
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(script(section))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", help="name another --reproduce FILE") from error
