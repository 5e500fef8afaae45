# The first Python code of the single-file archive that scripts/package makes. Every Python 3 must be able to read it,
# to be told what it lacks; so nothing here is newer than 3.0.
#
# gdb needs files, and Python keeps no compiled code for what it imports from an archive (half a second at each start);
# so the package is unpacked once into the user's cache folder, under the archive's own digest. Where that cannot be,
# or GDBEXT_NO_CACHE is set, it goes to a temporary folder that leaves with this process.
# ruff: noqa
import os
import sys

if sys.version_info < (3, 9):
    for minor in range(15, 8, -1):
        try:
            os.execvp("python3.%d" % minor, ["python3.%d" % minor, "-I", "-S"] + sys.argv)
        except OSError:
            pass
    sys.exit(
        "gdbext: %s is Python %d.%d, and 3.9 or later is needed; run it with a later one: python3.11 %s"
        % ((sys.executable,) + sys.version_info[:2] + (sys.argv[0],))
    )


def unpacked(archive: str, folder: str) -> bool:
    """Unpacks the package into a folder of that name, all of it or nothing; False where that cannot be."""
    import shutil
    import tempfile
    import zipfile

    parent = os.path.dirname(folder)
    made = ""
    try:
        os.makedirs(parent, 0o700, exist_ok=True)
        made = tempfile.mkdtemp(dir=parent)
        with zipfile.ZipFile(archive) as stored:
            stored.extractall(made, [name for name in stored.namelist() if name.startswith("gdbext/")])
        os.rename(made, folder)
    except OSError:
        if made:
            shutil.rmtree(made, ignore_errors=True)
        return os.path.isdir(folder)  # another process may have been faster
    return True


def in_cache(archive: str) -> "str | None":
    """The folder in the user's cache that holds this very archive's package, None where there can be none."""
    import hashlib

    from gdbext import cache

    for name in [name for name in sys.modules if name.partition(".")[0] == "gdbext"]:
        del sys.modules[name]
    with open(archive, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    folder = "%s/archive/%s" % (cache.cache_folder(), digest[:32])
    if os.environ.get("GDBEXT_NO_CACHE") or not cache.may_fill(folder):
        return None
    return folder if os.path.isdir(folder) or unpacked(archive, folder) else None


def for_this_run(archive: str) -> str:
    """A temporary folder with the package; removed when this process ends."""
    import atexit
    import shutil
    import tempfile

    parent = tempfile.mkdtemp(prefix="gdbext-")
    atexit.register(shutil.rmtree, parent, True)
    folder = os.path.join(parent, "package")
    if not unpacked(archive, folder):
        sys.exit("gdbext: cannot unpack %s into %s: is the disk full? TMPDIR names another place" % (archive, parent))
    return folder


archive = os.path.dirname(os.path.abspath(__file__))
folder = in_cache(archive) or for_this_run(archive)
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != archive] + [folder]

from gdbext.__main__ import run

run()
