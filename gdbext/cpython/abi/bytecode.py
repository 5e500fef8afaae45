"""Bytecode per version of CPython: the loop around an instruction, and the names that code loads.

Opcodes and inline caches: Lib/opcode.py of 3.8 to 3.12, Lib/_opcode_metadata.py of 3.13 to 3.15, with the specialized
and instrumented ones. tests/integration/cpython/test_sleeping_loops.py compares the rows with the Pythons of the
machine. Code with an unknown opcode (a newer version's, or a tracer's) has no answer.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class LoadKind(Enum):
    """Where a value is loaded from; the member's value is the role of the opcodes in ``Bytecode.roles``."""

    GLOBAL = "g"
    NAME = "n"
    ATTRIBUTE = "a"
    FAST = "f"
    CELL = "d"


class Load(NamedTuple):
    """An instruction that loads a value. ``number``: index of the code's names (co_names), local variables or cells;
    ``follows``: it loads an attribute of the previous load's result; ``is_value``: an attribute that is not called."""

    kind: LoadKind
    number: int
    follows: bool = False
    is_value: bool = False


class Bytecode(NamedTuple):
    """A version's opcodes.

    ``roles`` has a letter for each opcode: a LoadKind, "2" loads two local variables, "s" a store and a load, "b" a
    jump backward, "j" a jump to an absolute target, "e" a prefix of the argument, "x" unknown, "." anything else.
    ``caches`` has for each opcode the number of code units behind it, as a hexadecimal digit. The index of a global
    variable or attribute is the argument shifted right; ``jump_unit`` is the unit of absolute jumps in bytes.
    """

    roles: str
    caches: str
    global_shift: int = 1
    attribute_shift: int = 0
    jump_unit: int = 2
    pop_top: int = 1  # the opcode that discards a result
    load_const: frozenset[int] = frozenset({100})  # opcodes that load a constant by its number
    methods: frozenset[int] = frozenset({160})
    """Opcodes that load a method in order to call it. From 3.12 on the lowest bit of LOAD_ATTR's argument says so."""


class _Step(NamedTuple):
    """An instruction of the code from byte ``start`` to ``end``."""

    start: int
    end: int
    role: str
    argument: int
    opcode: int

    @property
    def load(self) -> LoadKind | None:
        return _LOADS.get(self.role)


_UNIT = 2  # bytes of a code unit


def loads_of_loop(form: Bytecode, code: bytes, at: int) -> list[Load] | None:
    """The loads of the innermost loop around byte ``at``, in order; None: no loop, or unknown code."""
    steps = _innermost_loop(form, code, at)
    return list(_loads(form, steps)) if steps else None


def _innermost_loop(form: Bytecode, code: bytes, at: int) -> list[_Step]:
    """The instructions of the innermost loop around byte ``at``; empty if there is none, or code is unknown."""
    steps = _steps(form, code) or []
    loops = list(_loops(form, steps, at))
    # Loops are nested. A handler at the code's end (3.11 and later) jumps back to the code behind its ``with``, too.
    nested = [loop for loop in loops if not any(other[0] < loop[0] < other[1] < loop[1] for other in loops)]
    start, end = max(nested or loops, default=(0, 0))
    return [step for step in steps if start <= step.start < end]


def _loops(form: Bytecode, steps: Sequence[_Step], at: int) -> Iterator[tuple[int, int]]:
    """(first byte, end) of each loop around byte ``at``: jumps backward, also from handlers at the code's end."""
    for step in steps:
        target = None
        if step.role == "b":
            target = step.end - step.argument * _UNIT
        elif step.role == "j" and step.argument * form.jump_unit < step.start:
            target = step.argument * form.jump_unit
        if target is not None and target <= at < step.end:
            yield target, step.end


def is_in_loop(form: Bytecode, code: bytes, around: int, at: int) -> bool:
    """True if the instruction at byte ``at`` is in a loop that contains byte ``around``; False for unknown code."""
    return any(start <= at < end for start, end in _loops(form, _steps(form, code) or [], around))


def constants(form: Bytecode, code: bytes, at: int | None = None) -> list[int]:
    """Indexes in co_consts of constants that the code, or its innermost loop around ``at``, loads; [] if unclear."""
    steps = _innermost_loop(form, code, at) if at is not None else _all_steps(form, code)
    return [step.argument for step in steps if step.opcode in form.load_const]


def all_loads(form: Bytecode, code: bytes) -> list[Load] | None:
    """The loads of all of the code, in order; None if it has an unknown opcode."""
    steps = _steps(form, code)
    return list(_loads(form, steps)) if steps is not None else None


class FirstArgument(NamedTuple):
    """The first argument of a call: ``function`` is the load of the function or method; ``value`` that of the argument,
    None for a constant, whose index in co_consts is ``constant``. ``second``: the index of a constant that is the next
    argument, None for anything else."""

    function: Load
    value: Load | None
    constant: int | None
    second: int | None


def first_arguments(form: Bytecode, code: bytes, at: int | None = None) -> list[FirstArgument]:
    """The functions that code, or its innermost loop around byte ``at``, loads and that are followed at once by the
    load of a variable, of an attribute of one, or of a constant: the first argument of a call. [] for unknown code."""
    steps = _innermost_loop(form, code, at) if at is not None else _steps(form, code) or []
    found: list[FirstArgument] = []
    for index, step in enumerate(steps):
        if not step.load:
            continue
        # At most one instruction (PUSH_NULL) is between; a call without arguments is followed by more.
        start = next((i for i in (index + 1, index + 2) if i < len(steps) and _loads_value(form, steps[i])), None)
        if start is None or steps[start].load is LoadKind.ATTRIBUTE:
            continue
        end = start
        while end + 1 < len(steps) and steps[end + 1].load is LoadKind.ATTRIBUTE:
            end += 1
        following = steps[end + 1] if end + 1 < len(steps) else None
        second = following.argument if following and following.opcode in form.load_const else None
        function, is_constant = next(_loads(form, [step])), steps[start].opcode in form.load_const
        value = None if is_constant else list(_loads(form, steps[start : end + 1]))[-1]
        found.append(FirstArgument(function, value, steps[start].argument if is_constant else None, second))
    return found


def _loads_value(form: Bytecode, step: _Step) -> bool:
    return step.role in _LOADING or step.opcode in form.load_const


class MethodCall(NamedTuple):
    """``owner.method``; ``outer`` is the load of the owner's owner if the owner is an attribute. ``is_statement``: it
    is called without arguments, and its result is discarded. ``offset``: the byte at which the method is loaded."""

    method: Load
    owner: Load
    outer: Load | None
    is_statement: bool
    offset: int


def methods_before(form: Bytecode, code: bytes, at: int) -> list[MethodCall] | None:
    """The methods that code loads before the instruction at byte ``at``, in order; None if an opcode is unknown."""
    steps = [step for step in _all_steps(form, code) if step.start < at]
    if any(step.role == "x" for step in steps):
        return None
    calls = []
    for index, step in enumerate(steps):
        loads = list(_loads(form, steps[max(index - 2, 0) : index + 1]))
        if step.load is not LoadKind.ATTRIBUTE or len(loads) < 2 or not loads[-1].follows:
            continue
        following = steps[index + 1 : index + 4]  # a call without arguments discards its result within 3 instructions
        discarded = next((count for count, later in enumerate(following) if later.opcode == form.pop_top), 0)
        is_statement = discarded > 0 and not any(later.role in _LOADING for later in following[:discarded])
        outer = loads[-3] if len(loads) > 2 and loads[-2].follows else None
        calls.append(MethodCall(loads[-1], loads[-2], outer, is_statement, step.start))
    return calls


def with_start(form: Bytecode, code: bytes, handler: int) -> int | None:
    """The byte at which the ``with`` whose exception handler is at ``handler`` (in units of jumps) is entered (3.8 to
    3.10); None if there is not exactly one."""
    target = handler * form.jump_unit
    # SETUP_WITH and SETUP_ASYNC_WITH, whose argument leads to the handler
    entering = (step for step in _all_steps(form, code) if step.opcode in (143, 154))
    starts = [step.start for step in entering if step.end + step.argument * form.jump_unit == target]
    return starts[0] if len(starts) == 1 else None


def _steps(form: Bytecode, code: bytes) -> list[_Step] | None:
    """The instructions; None if one is unknown."""
    steps = list(_all_steps(form, code))
    return None if any(step.role == "x" for step in steps) else steps


def _all_steps(form: Bytecode, code: bytes) -> Iterator[_Step]:
    """The instructions, with role "x" for unknown ones, each with the prefixes of its argument."""
    at = prefix = begin = 0
    while at + 1 < len(code):
        opcode, argument = code[at], prefix << 8 | code[at + 1]
        role = form.roles[opcode]
        end = at + _UNIT * (1 + (int(form.caches[opcode], 16) if form.caches else 0))
        if role == "e":
            prefix = argument
        else:
            yield _Step(begin, end, role, argument, opcode)
            prefix, begin = 0, end
        at = end


def _loads(form: Bytecode, steps: list[_Step]) -> Iterator[Load]:
    """The loads among the instructions, in order."""
    loaded_before = False
    for step in steps:
        if step.role == "2":
            yield Load(LoadKind.FAST, step.argument >> 4)
        if step.role in ("2", "s"):
            yield Load(LoadKind.FAST, step.argument & 15)
        elif step.load:
            shift = {"g": form.global_shift, "a": form.attribute_shift}.get(step.role, 0)
            is_attribute = step.load is LoadKind.ATTRIBUTE
            called = step.argument & 1 if form.attribute_shift else step.opcode in form.methods
            follows, is_value = loaded_before and is_attribute, is_attribute and not called
            yield Load(step.load, step.argument >> shift, follows, is_value)
        loaded_before = step.role in _LOADING


_LOADS = {kind.value: kind for kind in LoadKind}
_LOADING = frozenset(_LOADS) | {"2", "s"}

BYTECODES: Mapping[tuple[int, int], Bytecode] = {
    (3, 8): Bytecode(
        "x......xx....xx...x..x........xxxxxxxxxxxxxxxxxxxx........x...............x.....x..................x"
        ".n....a....jjjjjgxxxxx.xf..xxx....x.d..xx...e...d..........xa...xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "",
        global_shift=0,
        jump_unit=1,
    ),
    (3, 9): Bytecode(
        "x......xx....xx...x..x........xxxxxxxxxxxxxxxxxx.....x....x.....................xx......x..........x"
        ".n....a....jjjjjg..xx..xf..xxx....x.d..xx...e...dxxxxx....xxa.....xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "",
        global_shift=0,
        jump_unit=1,
    ),
    (3, 10): Bytecode(
        "x......xx....xx...x..x.............xxxxxxxxxxxxxx....x....x.....................xx......x..........."
        ".n....a....jjjjjg...x..xf..xx.....x.d..xx...e...dxxx.x....xxa.....xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "",
        global_shift=0,
    ),
    (3, 11): Bytecode(
        "..................................e...baaaaa.ffgg......gaaaa..aa...................................."
        ".n....a.........g.......f.........b..d..b...e...d...........a............bbbb....xxxxxxxxxxxxxxxxxxx"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "00011111100001101444444444222200000000044444000550000005aaaa10aa111100001100111111000000000010040000"
        "000000420000010050000110000100000000000001010000000004400044a000001011140000011110000000000000000000"
        "00000000000000000000000000000000000000000000000000000000",
        methods=frozenset({160, 56, 57, 58, 59, 62, 63}),
    ),
    (3, 12): Bytecode(
        ".................x....................................................a.aa..aaaaaaa...f.f..........."
        ".n....a....gg...g.......f..f......b..d..b...e........................xx......xxxxxxxxxxxxxxxxxxxxxxx"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.........b......xxx",
        "0000001110100110101111133100330000300033333333333000000031111011111100909900999999900000000011040000"
        "0000009100044400400000110000000000000000010000004000040000011100001110030000000000000000000000000000"
        "00000000000000000000000000000000000001000300000010000000",
        attribute_shift=1,
    ),
    (3, 13): Bytecode(
        ".................x....................................................xe.....bb...a.df.f2..gn......."
        "...........s.......xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..........................................aaaaaaaaa"
        "aaagg..................xxxxxxxxxxxxx...........x.b....xx",
        "0001010000000000000000000000000000000001300001000000030000110000000000001000010000900000000401000111"
        "1000100040000000010000000000000000000000000000000011111111111133333333333333333333111111111999999999"
        "99944110144411333333111000000000000000000011300001111100",
        attribute_shift=1,
        pop_top=32,
        load_const=frozenset({83}),
    ),
    (3, 14): Bytecode(
        ".................x...................................................e.....bb...a..df.f2f2..gn......"
        ".............s.......xxxxxxx...............................................bbaaaaaaaaaaaaa..gg......"
        "............xxxxxxxxxxxxxxxxxxxxxx....x..............bxx",
        "0005000000000000000000000000000000000013000050000000300311000000000000100001000090000000000040001000"
        "1111001000400000000100000000055555555555555333333333333333333333331111111111199999999999990044110144"
        "41133333311100000000000000000000000001000111100001330100",
        attribute_shift=1,
        pop_top=31,
        load_const=frozenset({82, 190, 191}),
    ),
    (3, 15): Bytecode(
        ".................x.................................................e......bb...a..df.f2f2..gn......."
        "............s.......xxxxxxxx.....................................................bbaaaaaaaaaaaaagg.."
        "...................xxxxxxxxxxxxxx....x..............bxx.",
        "0005100000000000000000000000000000001300005000000030031100000000000010100010000900000000000400010001"
        "1110010004000000001000000000155555555555555533333331133333333333333331111111111111199999999999994411"
        "11111444113333331110000000000000000010001111100013311000",
        attribute_shift=1,
        pop_top=29,
        load_const=frozenset({81}),
    ),
}
"""The opcodes of each version."""
