"""Recognises secrets by the names that they have: values of variables and of options, arguments of other processes.

A recording is given away. Names are all that can be judged; what a secret itself looks like, nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gdbext.engine.record import late_pattern

HIDDEN = "(hidden)"
_SECRET = late_pattern(
    r"TOKEN|SECRET|PASS(?:WORD|WD|PHRASE|CODE)|CREDENTIAL|CREDS?(?![A-Z])|AUTH|PRIVATE|API_?KEY|COOKIE|SESSION_?ID"
    r"|(?:^|_)(?:KEY|PWD|PASS|PW)(?:S|_|$)|(?:ACCESS|SIGNING|ENCRYPTION|LICEN[CS]E|SSH|DEPLOY)_?KEY",
    re.IGNORECASE,
)
_FOLDERS = ("PWD", "OLDPWD")
"""Folders of the shell: where it is, and was."""
_USER_IN_URL = late_pattern(r"(?<=://)[^/@\s]+(?=@)")
_SHORTEST = 6
"""Bytes of a value that is looked for in memory: "1" and "true" stand everywhere."""
_FILE = late_pattern(r"[^-=@:\s][^=@:\s]*\.(?:pyc?|cpp|cc|c|cu|ptx|sh)")
_KEPT = late_pattern(r"-[A-Za-z]|--(?:local[-_])?rank=\d+")
"""Arguments that say how a program was started, and which rank it is."""


def is_secret(name: str) -> bool:
    """A variable or an option of that name holds a secret, as far as a name can tell."""
    return name not in _FOLDERS and _SECRET.search(name.lstrip("-").replace("-", "_")) is not None


def without_user(value: str) -> str:
    """A value without the user and the password of the addresses (URLs) in it."""
    return _USER_IN_URL.sub(HIDDEN, value) if "://" in value else value


def hide_values(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, with the values of secrets hidden."""
    return {name: HIDDEN if is_secret(name) else without_user(value) for name, value in environ.items()}


def program_only(command: str) -> str:
    """A command line (words that end in NUL) without its arguments, save names of source files, flags of one letter and
    a rank: what a diagnosis says of another process."""
    program, *words = command.removesuffix("\0").split("\0")
    kept = [word if _FILE.fullmatch(word) or _KEPT.fullmatch(word) else HIDDEN for word in words]
    return "".join(f"{word}\0" for word in [program, *kept] if word)


def secrets_among(words: Sequence[bytes]) -> list[bytes]:
    """The secrets in the arguments and variables of a process: values of ``NAME=…``, ``--name=…``, ``--name …``.

    The longest first, so that none is left in part. Paths are none (SSH_AUTH_SOCK): files are told by them.
    """
    found = {value for value in _values(words) if len(value) >= _SHORTEST and not value.startswith(b"/")}
    return sorted(found, key=lambda each: (-len(each), each))


def _values(words: Sequence[bytes]) -> Iterator[bytes]:
    previous = ""
    for word in words:
        name, equals, value = word.partition(b"=")
        text = name.decode("latin-1")
        if equals and is_secret(text):
            yield value
        elif previous.startswith("-") and is_secret(previous) and not word.startswith(b"-"):
            yield word
        elif b"://" in word:
            yield from (found.encode("latin-1") for found in _USER_IN_URL.findall(word.decode("latin-1")))
        previous = "" if equals else text


def blanked(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """``data`` with asterisks in place of the secrets."""
    for secret in secrets:
        if secret in data:
            data = data.replace(secret, b"*" * len(secret))
    return data
