"""The user whose process crashes, who has more than one uid.

/etc/subuid lends each user thousands of uids (subuid(5)). With a user namespace (user_namespaces(7)) a process takes
on any of them, and by a program with the set-user-ID bit, made in there, one outside of it does, too.
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
"""The user of whoever is in a namespace within one that root made, where no range is lent to them: of these all are
one, for the inner namespaces they make as they like."""
LENT = "/etc/subuid"
_GET_PARENT, _GET_OWNER = 0xB702, 0xB704
"""The requests NS_GET_PARENT and NS_GET_OWNER_UID of ioctl(2) (linux/nsfs.h)."""
_UID = struct.Struct("I")


def user_of(pid: int, uid: int, lent: str = LENT) -> int:
    """The uid of the user whose process that is; ``uid`` is the process's own.

    In our own user namespace that is the uid itself, or whom it is lent to; in others whoever made the outermost of
    them. Root makes namespaces for others (containers): they are told apart by the lowest uid that the namespace has.
    Raises OSError.
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
        for descriptor in {namespace, outer}:
            os.close(descriptor)
    if owner or not depth:
        return _borrower(owner, owner, lent)
    return _lowest_uid(pid) if depth == 1 else _borrower(uid, NOT_TOLD_APART, lent)


def _lowest_uid(pid: int) -> int:
    lines = proc_files.text(f"/proc/{pid}/uid_map").splitlines()
    return min((integer(line.split()[1]) for line in lines), default=NOT_TOLD_APART)


def _borrower(uid: int, otherwise: int, lent: str) -> int:
    """The user whom this uid is lent to, ``otherwise`` where it is nobody. Root borrows for others, and names that
    nobody knows are as good as a number: then it is the first uid of the range."""
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
    """The uid of a user by name or number, 0 where there is none."""
    try:
        return integer(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return 0
