# The first Python code of scripts/dispatch. Every Python 3 must be able to read it, to be told what it lacks; so
# nothing here is newer than 3.0.
# ruff: noqa
import os
import sys

if sys.version_info < (3, 9):
    for minor in range(14, 8, -1):
        try:
            os.execvp("python3.%d" % minor, ["python3.%d" % minor, "-I", "-S"] + sys.argv)
        except OSError:
            pass
    sys.exit(
        "dispatch: %s is Python %d.%d, and 3.9 or later is needed; install one, or name it in GDBEXT_PYTHON"
        % ((sys.executable,) + sys.version_info[:2])
    )

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from gdbext.__main__ import run

run()
