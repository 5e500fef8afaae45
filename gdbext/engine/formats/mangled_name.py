"""A walk over a mangled C++ name (Itanium C++ ABI, 5.1) that prints nothing and knows what printing would cost.

Each component that a substitution may mean is remembered with its cost. What is not in this grammar is Unparsable.
"""

from __future__ import annotations

import re

from gdbext.engine.formats.mangled_expressions import (
    EACH,
    MOST,
    NUMBER,
    SEQUENCE,
    STANDARD,
    MangledExpressions,
    Unparsable,
    larger,
)
from gdbext.engine.numbers import integer

_QUALIFIERS = re.compile(r"(?:[rVK]|D[xowO])+")


def printed_size(name: str) -> int:
    """Most characters that stand for the name. The longest pack of arguments is known only after a first walk."""
    try:
        first = MangledName(name, 1)
        first.whole()
        if first.longest_pack == 1:
            return first.cost()
        second = MangledName(name, first.longest_pack)
        second.whole()
        return second.cost()
    except Unparsable:
        return MOST


class MangledName(MangledExpressions):
    """One pass over a name."""

    def whole(self) -> None:
        """The name as a linker knows it, with suffixes of clones."""
        for prefix in ("_GLOBAL__sub_I_", "_GLOBAL__I_", "_GLOBAL__D_"):
            if self._take(prefix) and not self._name.startswith("_Z", self._at):
                return
        self._need("_Z")
        self._encoding()
        if self._peek() not in (".", "\0", "@"):
            raise Unparsable

    def _encoding(self) -> None:
        self._deeper()
        if self._peek() in ("T", "G"):
            self._special()
        else:
            self._name_of()
            self._function_type()
        self._depth -= 1

    def _function_type(self) -> None:
        """The types behind a function's name: their template parameters are that name's arguments."""
        arguments, mark = self._arguments, self._mark()
        if arguments:
            self._scope = larger(self._scope, arguments)
        scope = self._scope
        self._take("J")
        while self._peek() not in ("E", "\0", ".", "@", "Q"):
            self._type()
        _, references = self._since(mark)
        if references and arguments:
            self._open -= references
            self._add((references * scope[0], references * scope[1]))

    def _special(self) -> None:
        kind = self._peek(2)
        self._at += 2
        if kind in ("TV", "TT", "TI", "TS", "TF", "TJ"):
            self._type()
        elif kind in ("Th", "Tv", "Tc"):
            self._thunk(kind)
        elif kind == "TC":
            self._type()
            self._skip(NUMBER)
            self._need("_")
            self._type()
        elif kind in ("GV", "TH", "TW"):
            self._name_of()
        elif kind == "GR":
            self._name_of()
            self._skip(SEQUENCE)
        elif kind == "GA" or (kind == "GT" and (self._take("t") or self._take("n"))):
            self._encoding()
        else:
            raise Unparsable

    def _thunk(self, kind: str) -> None:
        if kind == "Tc":
            for _ in range(2):
                self._offset("v" if self._take("v") else "h" if self._take("h") else "")
        else:
            self._offset(kind[1])
        self._encoding()

    def _offset(self, kind: str) -> None:
        for _ in range({"h": 1, "v": 2}.get(kind, 0)):
            self._skip(NUMBER)
            self._need("_")

    def _name_of(self) -> None:
        self._deeper()
        self._arguments = None
        mark, following = self._mark(), self._peek()
        if following == "N":
            self._nested()
        elif following == "Z":
            self._local()
        else:
            known = following == "S" and not self._take("St")
            if known:
                self._substitution()
            else:
                self._unqualified()
            if self._peek() == "I":
                if not known:
                    self._remember(mark)
                self._template_arguments()
        self._depth -= 1

    def _nested(self) -> None:
        self._need("N")
        if self._peek() in ("r", "V", "K"):
            self._skip(_QUALIFIERS)
        if self._peek() in ("R", "O"):
            self._at += 1
        mark = self._mark()
        while not self._take("E"):
            if self._prefix() and self._peek() != "E":
                self._remember(mark)

    def _prefix(self) -> bool:
        """One more part of a nested name; whether what stands there now is a new component."""
        following = self._peek()
        if following == "I":
            self._template_arguments()
            return True
        self._arguments = None
        if following == "S":
            self._substitution()
        elif following == "T":
            self._parameter()
        elif following == "M":
            self._at += 1
        elif self._peek(2) in ("DT", "Dt"):
            self._type()
            return False
        else:
            self._unqualified()
        return following not in ("S", "M")

    def _local(self) -> None:
        self._need("Z")
        self._encoding()
        self._need("E")
        self._arguments = None
        if self._take("s"):
            self._discriminator()
            return
        if self._take("d"):
            self._skip(NUMBER)
            self._need("_")
        self._name_of()
        arguments = self._arguments
        self._discriminator()
        self._arguments = arguments

    def _discriminator(self) -> None:
        if self._take("__"):
            self._skip(NUMBER)
            self._need("_")
        elif self._take("_"):
            self._skip(NUMBER)

    def _unqualified(self) -> None:
        mark, following = self._mark(), self._peek()
        if following == "L":
            self._at += 1
            self._identifier_of()
            self._discriminator()
        elif following.isdigit():
            self._identifier_of()
        elif following in ("C", "D"):
            self._constructor()
        elif following == "U":
            self._unnamed()
            self._remember(mark)
        else:
            self._operator_name()
        while self._take("B"):
            self._identifier_of()

    def _identifier_of(self) -> None:
        if not self._peek().isdigit():
            raise Unparsable
        length = int(self._skip(NUMBER)[:5])
        if self._at + length >= len(self._name):
            raise Unparsable
        self._at += length
        self._fixed -= (EACH - 1) * length
        self._identifier = max(self._identifier, length)

    def _constructor(self) -> None:
        if self._take("CI"):
            self._at += 1
            self._type()
        else:
            self._at += 2
        self._fixed += self._identifier

    def _unnamed(self) -> None:
        if self._take("Ul"):
            while not self._take("E"):
                self._type()
        else:
            self._need("Ut")
        self._skip(NUMBER)
        self._need("_")

    def _operator_name(self) -> None:
        """An operator that is a function's name. One that converts to a template parameter means arguments that
        follow, or others: nobody needs it."""
        if self._take("cv"):
            mark = self._mark()
            self._type()
            if self._since(mark)[1]:
                raise Unparsable
        elif self._take("li"):
            self._identifier_of()
        elif self._peek(2).isalnum() and self._peek().islower():
            self._at += 2
        else:
            raise Unparsable

    def _template_arguments(self) -> int:
        """Number of template arguments there are."""
        self._deeper()
        if not self._take("I"):
            self._need("J")
        largest, number = (0, 0), 0
        while not self._take("E"):
            mark, is_pack = self._mark(), self._peek() in ("I", "J")
            self._template_argument()
            cost = self._arguments if is_pack and self._arguments else self._since(mark)
            largest, number = larger(largest, cost), number + 1
        self._arguments = largest
        self._depth -= 1
        return number

    def _template_argument(self) -> None:
        following = self._peek()
        if following == "X":
            self._at += 1
            self._expression()
            self._need("E")
        elif following == "L":
            self._literal()
        elif following in ("I", "J"):
            self.longest_pack = max(self.longest_pack, self._template_arguments())
        else:
            self._type()

    def _parameter(self) -> None:
        self._need("T")
        if self._take("L"):
            self._skip(NUMBER)
            self._need("_")
        self._skip(SEQUENCE)
        self._add((0, self._elements()))

    def _substitution(self) -> None:
        self._need("S")
        if self._peek().islower():
            self._at += 1
            while self._take("B"):
                self._identifier_of()
            self._identifier = max(self._identifier, STANDARD)
            self._fixed += STANDARD
            return
        number = self._skip(SEQUENCE)[:-1]
        try:
            index = integer(number, 36) + 1 if number else 0
        except ValueError:
            raise Unparsable from None
        if index >= len(self._components):
            raise Unparsable
        self._add(self._components[index])

    def _type(self) -> None:
        """Parse a type with all that stands before it: pointers, references, qualifiers. Each of them is a
        component."""
        self._deeper()
        marks = [self._mark()]
        while self._peek() in ("P", "R", "O", "C", "G", "r", "V", "K"):
            if self._peek() in ("r", "V", "K"):
                self._skip(_QUALIFIERS)
            else:
                self._at += 1
            marks.append(self._mark())
        new = self._core()
        for mark in reversed(marks if new else marks[:-1]):
            self._remember(mark)
        self._depth -= 1

    def _core(self) -> bool:
        """The type itself; whether it is a component that had no number before."""
        following = self._peek()
        if following == "T" or following == "S":
            return self._known_core()
        if following.isdigit() or following in ("N", "Z"):
            self._name_of()
        elif following == "D":
            return self._type_with_d()
        elif following in ("F", "A", "M", "U", "u"):
            self._at += 1
            self._COMPOUNDS[following](self)
        elif following.islower():
            self._at += 1
            return False
        else:
            raise Unparsable
        return True

    def _known_core(self) -> bool:
        mark, new = self._mark(), True
        if self._peek() == "T":
            self._parameter()
        elif self._take("St"):
            self._unqualified()
        else:
            self._substitution()
            new = False
        if self._peek() != "I":
            return new
        if new:
            self._remember(mark)
        self._template_arguments()
        return True

    def _function(self) -> None:
        self._take("Y")
        while not self._take("E"):
            if not (self._take("RE") or self._take("OE")):
                self._type()
                continue
            return

    def _array(self) -> None:
        self._extent()
        self._type()

    def _extent(self) -> None:
        if self._peek().isdigit():
            self._skip(NUMBER)
        elif self._peek() != "_":
            self._expression()
        self._need("_")

    def _member(self) -> None:
        self._type()
        self._type()

    def _vendor(self) -> None:
        self._identifier_of()
        if self._peek() == "I":
            self._template_arguments()

    def _vendor_qualified(self) -> None:
        self._vendor()
        self._type()

    _COMPOUNDS = {"F": _function, "A": _array, "M": _member, "u": _vendor, "U": _vendor_qualified}  # noqa: RUF012

    def _type_with_d(self) -> bool:
        kind = self._peek(2)
        self._at += 2
        if kind in ("DT", "Dt"):
            self._expression()
            self._need("E")
        elif kind == "Dp":
            self._expanded(self._type)
        elif kind == "Dv":
            self._array()
        elif kind in ("Do", "Dx", "Dw", "DO"):
            self._type()
        elif kind in ("Da", "Dc", "Dn", "Di", "Ds", "Du", "Dh", "Df", "Dd", "De"):
            return False
        else:
            raise Unparsable
        return True
