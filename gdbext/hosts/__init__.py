"""The programs that run the tools: the command line, gdb, LLDB."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def dispatch_output(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run scripts/dispatch with these words in a process of its own; returns its standard output, or its errors if that
    is empty. The environment is ours by default."""
    import subprocess  # 7 ms, for processes that serve diagnoses

    root = os.path.abspath(os.path.join(__file__, "../../.."))  # noqa: PTH100, PTH118
    code = (
        "import sys; sys.path.append(sys.argv.pop(1)); "
        "from gdbext.hosts.cli.launcher import leave, main; leave(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    return done.stdout or done.stderr
