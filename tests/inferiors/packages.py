"""packages: waits in a function of a package, with a library that says that it is NCCL. Argument: that library.

The packages are in a folder of PYTHONPATH: a made one, and markupsafe, of which an extension module is mapped.
"""

import ctypes
import importlib.metadata
import sys

import gdbext_made.waits
import markupsafe
import truth

libc, nccl = ctypes.CDLL(None), ctypes.CDLL(sys.argv[1])
libc.gnu_get_libc_version.restype = nccl.version.restype = ctypes.c_char_p
markupsafe.escape("<")
truth.main_ready(
    "futex",
    versions={
        "gdbext-made": importlib.metadata.version("gdbext-made"),
        "markupsafe": importlib.metadata.version("markupsafe"),
        "glibc": libc.gnu_get_libc_version().decode(),
        "nccl": nccl.version().decode(),
        "python": sys.version.split()[0],
    },
)
gdbext_made.waits.for_ever()
