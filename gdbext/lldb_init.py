"""The entry for LLDB: ``command script import gdbext/lldb_init.py`` defines the commands. It may be imported again, for
instance after a change.

LLDB puts this file's folder on sys.path, where our modules would hide others of the same names: this file removes it.
The package is loaded by its path.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any


def __lldb_init_module(debugger: Any, names: dict[str, object]) -> None:
    """Define the commands, when LLDB imports this file."""
    folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    for path in {folder, os.path.dirname(os.path.abspath(__file__))}:  # noqa: PTH100, PTH120
        while path in sys.path:
            sys.path.remove(path)
    former = getattr(sys.modules.get("gdbext"), "commands_in_lldb", None)
    if former is not None:
        former.unload()
    package = _load_package(folder)
    commands = importlib.import_module("gdbext.hosts.lldb.lldb_commands")
    errors = importlib.import_module("gdbext.errors")
    try:
        vars(package)["commands_in_lldb"] = commands.LldbCommands(debugger, names)
    except errors.GdbextError as error:
        text = f"gdbext: {error.what}\n  why: {error.why}\n  try: {error.help}\n"
        debugger.GetErrorFile().Write(text.encode())  # what is printed while LLDB imports is lost


def _load_package(folder: str) -> Any:
    """Load the package gdbext from its folder, in place of one that was loaded before."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "gdbext"]:
        del sys.modules[name]
    start = os.path.join(folder, "__init__.py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location("gdbext", start, submodule_search_locations=[folder])
    assert spec, start
    assert spec.loader, start
    package = importlib.util.module_from_spec(spec)
    sys.modules["gdbext"] = package
    spec.loader.exec_module(package)
    return package
