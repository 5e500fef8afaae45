"""The user whose process crashes: one user may have thousands of uids.

/etc/subuid lends each user thousands of uids (subuid(5)). In a user namespace (user_namespaces(7)) a process takes on
any of them, and so does a process outside of it that runs a program with the set-user-ID bit made in there.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import struct
from pathlib import Path

from gdbext.engine.numbers import integer
from gdbext.engine.targets.system import proc_files

NOT_TOLD_APART = 0xFFFFFFFE
"""The user of all processes in a namespace within one that root made, if no range is lent to them: they count as one,
for they make inner namespaces as they like.
"""
LENT = "/etc/subuid"
_GET_PARENT, _GET_OWNER = 0xB702, 0xB704
"""The requests NS_GET_PARENT and NS_GET_OWNER_UID of ioctl(2) (linux/nsfs.h)."""
_UID = struct.Struct("I")


def user_of(pid: int, uid: int, lent: str = LENT) -> int:
    """The uid of the user whose process that is; ``uid`` is the process's own.

    In our own user namespace that is the uid itself, or the user whom it is lent to; in others the user who made the
    outermost of them. Root makes namespaces for others (containers): they are told apart by their lowest uid. Raises
    OSError.
    """
    own = Path("/proc/self/ns/user").stat()
    namespace, depth = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC), 0
    outer = namespace
    try:
        while not os.path.samestat(os.fstat(outer), own):
            if outer != namespace:
                os.close(namespace)
            namespace, depth = outer, depth + 1
            outer = fcntl.ioctl(namespace, _GET_PARENT)
        owner = _UID.unpack(fcntl.ioctl(namespace, _GET_OWNER, bytes(_UID.size)))[0] if depth else uid
    finally:
        for fd in {namespace, outer}:
            os.close(fd)
    if owner or not depth:
        return _borrower(owner, owner, lent)
    if depth > 1:
        return _borrower(uid, NOT_TOLD_APART, lent)
    lines = proc_files.text(f"/proc/{pid}/uid_map").splitlines()
    return min((integer(line.split()[1]) for line in lines), default=NOT_TOLD_APART)


def _borrower(uid: int, otherwise: int, lent: str) -> int:
    """The user whom this uid is lent to, ``otherwise`` if there is none. Root borrows for others, and unknown names are
    as good as a number: then it is the first uid of the range.
    """
    try:
        with open(lent, errors="replace") as lines:
            for line in lines:
                name, _, numbers = line.strip().partition(":")
                start, _, count = numbers.partition(":")
                if start.isdecimal() and count.isdecimal() and integer(start) <= uid < integer(start) + integer(count):
                    return _number_of(name) or integer(start)
    except (OSError, ValueError):
        pass
    return otherwise


def _number_of(name: str) -> int:
    """The uid of a user by name or number, 0 if there is none."""
    try:
        return integer(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return 0
