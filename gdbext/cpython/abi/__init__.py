"""The differences between versions of CPython; ``versions.py`` has one row per version.

Readers of CPython's memory ask the record of the process's version and never compare version numbers.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import EVAL_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Optional, Union

    from gdbext.cpython.abi.assumed_names import Waitable
    from gdbext.engine.layouts.declarations import U64, Member, Struct

    Version = tuple[int, int]  # A minor version: (3, 11)
    Groups = tuple[Optional[Union[type[Struct], Member[Any]]], ...]
    """The words of _Py_DebugOffsets in order: a structure for its size, a member for its offset, None for an unused
    word."""


def minor_of(hexversion: int) -> Version:
    """The minor version of PY_VERSION_HEX: 0x030b07f0 is (3, 11)."""
    return hexversion >> 24 & 0xFF, hexversion >> 16 & 0xFF


class Published(Enum):
    """The information about its own version that a runtime contains even without debug information."""

    NOTHING = "nothing"
    VERSION_SYMBOL = "the exported Py_Version (Include/pylifecycle.h)"
    DEBUG_OFFSETS = "_Py_DebugOffsets at the start of _PyRuntime (pycore_runtime.h, pycore_debug_offsets.h)"


class LineTable(Enum):
    """The encoding of a code object's map from bytecode to source lines; see cpython/objects/code.py."""

    LINE_INCREMENTS = "co_lnotab, Objects/lnotab_notes.txt of 3.9"
    LINE_RANGES = "co_linetable of PEP 626, Objects/lnotab_notes.txt of 3.10"
    LOCATIONS = "co_linetable of PEP 657, Objects/locations.md of 3.11"


class CodeForm(Enum):
    """Where a code object has its instructions."""

    BYTES_OBJECT = "co_code is a bytes object"
    INLINE = "co_code_adaptive is the end of the code object"


class DictKeysForm(Enum):
    """The header of a PyDictKeysObject."""

    SLOT_COUNT = "dk_size slots; every entry has a hash (Objects/dict-common.h)"
    LOG2_SIZES = "dk_log2_index_bytes and dk_kind; entries of str keys have no hash (pycore_dict.h)"


class InstanceDict(Enum):
    """Where an instance has its attributes if its type has Py_TPFLAGS_MANAGED_DICT (pycore_object.h)."""

    DICT_OFFSET = "tp_dictoffset of the type, for every type"
    VALUES_POINTER = "a pointer to the values beside the one to the dict"
    TAGGED_POINTER = "one pointer; its lowest bit says that it leads to values (PyDictOrValues)"
    INLINE_VALUES = "the values are part of the object"


class IntegerForm(Enum):
    """How an int encodes its sign and its number of digits."""

    SIGNED_SIZE = "the sign of ob_size (longintrepr.h)"
    TAG = "lv_tag: sign in the low bits, count above (cpython/longintrepr.h)"


class GilPlace(Enum):
    """The owner of a global interpreter lock."""

    RUNTIME = "_PyRuntime.ceval.gil, one for all interpreters"
    INTERPRETER = "each PyInterpreterState points to the one it uses"


class LockForm(Enum):
    """The word that a lock object of the ``_thread`` and ``_queue`` modules sleeps on."""

    SEMAPHORE = "a PyThread_type_lock: pointer to a sem_t (Python/thread_pthread.h, USE_SEMAPHORES)"
    MUTEX = "a PyMutex, whose waiters are parked (cpython/lock.h, Python/parking_lot.c)"
    RECURSIVE_MUTEX = "a _PyRecursiveMutex: a PyMutex with its owner and level (pycore_lock.h)"
    WAITING_FLAG = "a byte that says whether threads are parked on it (Modules/_queuemodule.c)"


class LockType(NamedTuple):
    """A lock object: ``type_name`` is its tp_name, ``word`` the member of ``struct`` that waiters sleep on. A type of
    another size than ``struct`` has another form: forms change between patch versions, too."""

    type_name: str
    kind: Waitable
    struct: type[Struct]
    word: Member[int]
    form: LockForm = LockForm.SEMAPHORE


class FrameObjects(NamedTuple):
    """Up to 3.10 the frames of a thread are a chain of PyFrameObject (frameobject.h), one for each native evaluation
    loop. ``lasti_unit`` is the unit of f_lasti in bytes, ``yield_from`` the opcode of YIELD_FROM (Include/opcode.h): a
    generator that is suspended in ``yield from`` is at the instruction before it."""

    lasti_unit: int
    yield_from: int = 72


class ExitForm(Enum):
    """The objects on the value stack while the body of a ``with`` runs."""

    BOUND_METHOD = "the bound __exit__"
    FUNCTION_AND_SELF = "the function __exit__, then the context manager itself"


class LoopAnchor(Enum):
    """The words that each native evaluation loop keeps in its stack frame; they divide the Python frames by loops."""

    C_FRAME = "a _PyCFrame, which points to the innermost frame of the loop (cpython/pystate.h of 3.11)"
    ENTRY_FRAME = "an interpreter frame without Python code, which ends the loop's part of the chain"


class InterpreterFrames(NamedTuple):
    """Since 3.11 the frames of a thread are a chain of _PyInterpreterFrame (pycore_frame.h), many for each native
    evaluation loop.

    ``generator_owner``, ``entry_owner`` (None: there is none) and ``codeless_owners`` are values of its member
    ``owner`` (enum _frameowner): frames of generators, the first frame of an evaluation loop, and all that run no
    Python code. ``tag_bits``: the low bits of a reference in a frame that are not part of its address (_PyStackRef,
    pycore_stackref.h); ``awaited_slot``: the position from the top (1) of a suspended frame's stack of the object that
    it awaits (_PyGen_yf, Objects/genobject.c).
    """

    anchor: LoopAnchor
    code: U64
    instruction: U64
    generator_owner: int = 1
    entry_owner: int | None = None
    codeless_owners: tuple[int, ...] = ()
    tag_bits: int = 0
    exit_form: ExitForm = ExitForm.BOUND_METHOD
    awaited_slot: int = 1


class PythonAbi(NamedTuple):
    """One version of CPython; a free-threaded build has a record of its own.

    ``code_name`` is the member of PyCodeObject that names its function best, ``local_names`` are those that name the
    fast locals, in the order of their slots. ``first_thread`` and ``modules`` are members of PyInterpreterState.
    ``kind_bit`` is the first bit of ``kind`` in PyASCIIObject.state (cpython/unicodeobject.h).
    """

    version: Version
    published: Published
    frames: FrameObjects | InterpreterFrames
    line_table: LineTable
    code_form: CodeForm
    code_name: U64
    local_names: tuple[U64, ...]
    dict_keys: DictKeysForm
    instance_dict: InstanceDict
    integers: IntegerForm
    gil: GilPlace
    first_thread: U64
    modules: U64
    lock_types: tuple[LockType, ...]
    debug_offsets: Groups = ()
    free_threaded: bool = False
    kind_bit: int = 2

    @property
    def text(self) -> str:
        """The version as "3.11"; "3.13t" for a free-threaded build."""
        return "{}.{}{}".format(*self.version, "t" if self.free_threaded else "")

    def has_version(self, hexversion: int) -> bool:
        """True if a sys.hexversion is of this minor version."""
        return minor_of(hexversion) == self.version

    def evaluates(self, names: Iterable[str]) -> bool:
        """True if the native function with these symbol ``names`` is the evaluation loop, or a part of it."""
        return any(name.startswith(EVAL_FUNCTIONS) for name in names)

    def lock_types_named(self, type_name: str) -> tuple[LockType, ...]:
        """The forms that a lock type of that name can have; empty for any other type."""
        return tuple(lock_type for lock_type in self.lock_types if lock_type.type_name == type_name)
