"""What a configuration module of torch.compile says of itself: options that differ from their defaults."""


def shown(value):
    """A value as JSON has it. Raises TypeError for what has no such form."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, dict):
        return {str(key): shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    if isinstance(value, set):
        return sorted((shown(each) for each in value), key=repr)
    raise TypeError(value)


def changed(module):
    """Options that differ from their defaults, and the names of those that cannot be shown."""
    found, others = {}, []
    for name, entry in module._config.items():
        if getattr(entry, "hide", False) or getattr(entry, "alias", None) is not None:
            continue
        value = _get(module, name)
        if value != entry.default:
            try:
                found[name] = shown(value)
            except TypeError:
                others.append(name)
    return found, others


def _get(module, name):
    for part in name.split("."):
        module = getattr(module, part)
    return module
