"""Inside gdb or LLDB: run commands, and then each command that their texts suggest.

``SUGGESTIONS`` in the environment names a JSON file with ``looks`` (the commands to begin with) and ``program``
(scripts/dispatch as it is called in the folder ``root``), into which ``tried`` is written: [command, "" or why it was
refused] for each.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

_OWN = r"(?:dispatch-[a-z]+|all-threads)(?: [^:]*)?"
_SECONDS = 120


class _Gdb:
    def __init__(self) -> None:
        import gdb

        self._gdb = gdb

    def run(self, command: str) -> tuple[bool, str]:
        """True if it went well, and what it said."""
        try:
            return True, str(self._gdb.execute(command, False, True))
        except self._gdb.error as error:
            return False, str(error)


class _Lldb:
    def __init__(self) -> None:
        import lldb

        self._lldb = lldb

    def run(self, command: str) -> tuple[bool, str]:
        """True if it went well, and what it said."""
        result = self._lldb.SBCommandReturnObject()
        self._lldb.debugger.GetCommandInterpreter().HandleCommand(command, result)
        return result.Succeeded(), (result.GetOutput() or "") + (result.GetError() or "")


def _in_shell(command: str, root: str) -> tuple[bool, str]:
    done = subprocess.run(
        f"{root}/{command}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


def suggested(text: str, program: str) -> list[str]:
    """The commands at the ends of lines: ours, the debugger's own that keep a core, and command lines."""
    kept = r"generate-core-file \S+"
    found = re.findall(rf"(?:: |   )({_OWN}|{kept}|{re.escape(program)} .*?)\.?$", text, re.MULTILINE)
    return [each.strip() for each in found]


def main() -> None:
    """Try all, each command once."""
    file = Path(os.environ["SUGGESTIONS"])
    given = json.loads(file.read_text())
    try:
        debugger: _Gdb | _Lldb = _Gdb()
    except ImportError:
        debugger = _Lldb()
    texts, tried = [], {}
    for look in given["looks"]:
        went_well, text = debugger.run(look)
        texts.append(text)
        if not went_well:
            tried[look] = text.strip()[-300:] or "refused"
    for command in dict.fromkeys(each for text in texts for each in suggested(text, given["program"])):
        is_ours = command.startswith(given["program"])
        went_well, text = _in_shell(command, given["root"]) if is_ours else debugger.run(command)
        tried[command] = "" if went_well else text.strip()[-300:] or "refused"
    file.write_text(json.dumps({"tried": list(tried.items()), "texts": texts}))


main()
