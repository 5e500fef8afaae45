"""The operators that a user's word matches, the error if it matches none or several, and the operators that PyTorch's
releases declare, for questions without a process (scripts/gen_schemas.py)."""

from __future__ import annotations

import fnmatch
import gzip
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gdbext.errors import LayoutError, UsageError, words_like

SCHEMAS = f"{os.path.dirname(os.path.realpath(__file__))}/schemas.txt.gz"  # noqa: PTH120 - pathlib takes long to import
"""native_functions.yaml of each minor release, and what torchgen makes of it."""


def declared_schemas(path: str = SCHEMAS) -> Mapping[str, Sequence[str]]:
    """Release → the schemas that it declares, by name; the oldest release first. Raises LayoutError."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            head, *lines = stream.read().splitlines()
        releases = head.split()
        schemas: dict[str, list[str]] = {release: [] for release in releases}
        for line in lines:
            spans, _space, schema = line.partition(" ")
            for span in spans.split(","):  # "0-3,5-15": the numbers of releases
                first, _dash, last = span.partition("-")
                for number in range(int(first), int(last) + 1):
                    schemas[releases[number]].append(schema)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise LayoutError(f"cannot read {path}", why=str(error), help="reinstall gdbext") from error
    return schemas


def split(qualified: str) -> tuple[str, str]:
    """(name, overload): ("aten::add", "Tensor") of ``aten::add.Tensor``; "" for the overload without a name."""
    name, _dot, overload = qualified.partition(".")
    return name, overload


def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a qualified name ("aten::mm.out") matches a user's pattern.

    ``mm``: any operator with that base name, all overloads; ``aten::mm``: that name, all overloads; ``mm.out`` and
    ``aten::mm.out``: that overload (``.default``: the one without a name); ``*mm*``: a glob over base names, over whole
    names if it has ``::``.
    """
    word, dot, overload = pattern.partition(".")
    wanted = ("" if overload == "default" else overload) if dot else None
    whole = "::" in word
    if any(letter in word for letter in "*?["):
        fits: Callable[[str], object] = re.compile(fnmatch.translate(word)).match
    else:
        fits = word.__eq__

    def matches(qualified: str) -> bool:
        """True if the name, or its base, fits, and the overload is the wanted one."""
        name, named = split(qualified)
        if wanted is not None and named != wanted:
            return False
        return fits(name if whole else name.rpartition("::")[2]) not in (None, False)

    return matches


def continuations(names: Iterable[str], current: str) -> set[str]:
    """Shell completions of ``current`` among qualified operator ``names``: base names, or qualified ones once it has
    ``::`` or begins only a namespace; overloads once it has a whole name."""
    is_qualified = "::" in current
    completions: set[str] = set()
    namespaces: set[str] = set()
    for name in names:
        namespace, _colons, rest = name.partition("::")
        if not is_qualified and namespace.startswith(current):
            namespaces.add(f"{namespace}::")
        word = name if is_qualified else rest
        base = split(word)[0]
        candidates = (base, word) if current.startswith(base) else (base,)
        completions.update(candidate for candidate in candidates if candidate.startswith(current))
    if len(namespaces) == 1 and not completions:
        return continuations(names, *namespaces)
    return completions | namespaces


def unknown_operator(pattern: str, names: Collection[str], nameless: int = 0, release: str = "") -> UsageError:
    """The error for a word that matches no operator, with the closest names among ``names``.

    ``nameless``: how many operators are registered whose names cannot be read; ``release``: ``names`` are those that
    this release of PyTorch declares.
    """
    word = split(pattern)[0]
    by_word: dict[str, list[str]] = {}
    for name in sorted(names):
        base = split(name)[0]
        by_word.setdefault(base if "::" in word else base.rpartition("::")[2], []).append(name)
    if word in by_word:
        close = by_word[word][:8]  # the name is right, the overload is not
    else:
        close = [split(by_word[similar][0])[0] for similar in words_like(word, by_word, 4)]
    hint = f"list them: dispatch-op {f'--torch {release} ' if release else ''}'*'"
    if close:
        hint = f"did you mean {', '.join(close)}?"
    why = f"the names of {nameless} registered operators cannot be read" if nameless else ""
    if release:
        why = "only what native_functions.yaml declares is known without a process"
        return UsageError(f"PyTorch {release} declares no operator {pattern!r}", why=why, help=hint)
    namespace = pattern.partition("::")[0] + "::"
    is_named = pattern.startswith(namespace) and namespace[:-2].isidentifier()
    if is_named and not why and not any(name.startswith(namespace) for name in names):
        why = f"no operator of {namespace} is registered: the library or module with them is not loaded in this process"
    return UsageError(f"no operator {pattern!r} is registered in the target", why=why, help=hint)


def ambiguous_operator(pattern: str, names: Sequence[str]) -> UsageError:
    """The error for a word that matches several operators, with the first 40 of them."""
    shown = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    example = names[0] if "." in names[0] else f"{names[0]}.default"
    return UsageError(f"{pattern!r} means {len(names)} operators: {shown}", help=f"name one of them, as in {example}")
