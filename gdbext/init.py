# For gdb:   source gdbext/init.py   defines the commands. It may be sourced again, for instance after a change.
#
# gdb runs this file in __main__, the namespace of the user's own `python` commands. So it has no docstring (that would
# replace __main__'s) and takes back the one name that it needs. sys.path stays as it is: the package is loaded by
# its place, which the code object knows: __file__ is that of the outermost script when another one sources this.
if __name__ == "__main__":

    def _gdbext_load(path: str) -> None:
        import importlib.util
        import os
        import sys

        folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        former = getattr(sys.modules.get("gdbext"), "commands_in_gdb", None)
        if former is not None:
            former.unload()
        for name in [name for name in sys.modules if name.partition(".")[0] == "gdbext"]:
            del sys.modules[name]
        start = os.path.join(folder, "__init__.py")  # noqa: PTH118
        spec = importlib.util.spec_from_file_location("gdbext", start, submodule_search_locations=[folder])
        assert spec, start
        assert spec.loader, start
        package = importlib.util.module_from_spec(spec)
        sys.modules["gdbext"] = package
        spec.loader.exec_module(package)
        commands = importlib.import_module("gdbext.hosts.gdb.gdb_commands")
        vars(package)["commands_in_gdb"] = commands.GdbCommands()

    try:
        _gdbext_load(_gdbext_load.__code__.co_filename)
    finally:
        del _gdbext_load
