"""Expressions in a mangled C++ name (Itanium C++ ABI, 5.1.6): arguments of templates, decltype, extents of arrays.

What printing costs is counted on the way: the place that a walk has reached, and what all before it stands for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Cost = tuple[int, int]
    """Characters, and references to template arguments."""


EACH = 20
"""Characters that one character of a mangled name can stand for, references and identifiers apart: y is "unsigned
long long"."""
STANDARD = 80
"""Ss is "std::basic_string<char, std::char_traits<char>, std::allocator<char> >"."""
MOST = 1 << 100
"""Beyond this, numbers are only large."""
NUMBER = re.compile(r"n?[0-9]*")
SEQUENCE = re.compile(r"[0-9A-Z]*_")
_DEEPEST = 120


class Unparsable(Exception):
    """This is no mangled name, or one that nobody needs. It never leaves the modules that measure names."""


class MangledCursor:
    """A place in a mangled name, and the cost of all before it.

    ``_fixed`` and ``_open`` are what is printed so far: characters, and references to template arguments, whose length
    is that of the template that is printed around them.
    """

    def __init__(self, name: str, expansion: int) -> None:
        self._name = name + "\0"
        self._at = 0
        self._fixed = 0
        self._open = 0
        self._expansion = expansion
        self._components: list[Cost] = []  # by the number of a substitution
        self._scope = (0, 0)  # the largest argument of all templates whose functions were printed
        self._arguments: Cost | None = None  # of the name that was read last
        self._identifier = 0  # the longest: a constructor repeats it
        self._depth = 0
        self._expanding = 0
        self.longest_pack = 1

    def cost(self) -> int:
        return self._fixed + EACH * self._at + self._open * (self._scope[0] + 1)

    def _peek(self, length: int = 1) -> str:
        return self._name[self._at : self._at + length]

    def _take(self, text: str) -> bool:
        if self._name.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise Unparsable

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._name, self._at)
        if not found:
            raise Unparsable
        self._at = found.end()
        return found.group()

    def _add(self, cost: Cost) -> None:
        self._fixed += cost[0]
        self._open += cost[1]
        if self._fixed > MOST or self._open > MOST:
            raise Unparsable

    def _mark(self) -> Cost:
        return self._fixed + EACH * self._at, self._open

    def _since(self, mark: Cost) -> Cost:
        return self._fixed + EACH * self._at - mark[0], self._open - mark[1]

    def _remember(self, mark: Cost) -> None:
        fixed, references = self._since(mark)
        cost = fixed, references * (self._expansion if self._expanding else 1)
        self._components.append(cost)

    def _elements(self) -> int:
        """Number of arguments that a reference can mean: a whole pack, but in an expansion one after the other."""
        return 1 if self._expanding else self._expansion

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unparsable


def larger(one: Cost, other: Cost) -> Cost:
    """The larger of both, number by number."""
    return max(one[0], other[0]), max(one[1], other[1])


_BINARY = frozenset(
    "aN aS aa an cm ds dV dv eO eo eq ge gt ix lS le ls lt mI mL mi ml ne oR oo or pL pl pm rM rS rm rs ss".split()  # noqa: SIM905
)
_UNARY = frozenset("ad aw co da de dl ng nt nx pp mm ps sz az te tw gs".split())  # noqa: SIM905
_NAMED = ("dt", "pt")
_CASTS = ("cc", "dc", "rc", "sc")


class MangledExpressions(MangledCursor):
    """The part of a walk that reads expressions; what stands in them is read by MangledName."""

    def _encoding(self) -> None:
        raise NotImplementedError

    def _type(self) -> None:
        raise NotImplementedError

    def _template_argument(self) -> None:
        raise NotImplementedError

    def _template_arguments(self) -> int:
        raise NotImplementedError

    def _unqualified(self) -> None:
        raise NotImplementedError

    def _parameter(self) -> None:
        raise NotImplementedError

    def _expanded(self, pattern: Callable[[], None]) -> None:
        """A pattern that is printed once for each argument of a pack."""
        mark = self._mark()
        self._expanding += 1
        pattern()
        self._expanding -= 1
        fixed, references = self._since(mark)
        self._add((fixed * (self._expansion - 1), references * (self._expansion - 1)))

    def _literal(self) -> None:
        self._need("L")
        if self._take("_Z") or self._take("Z"):
            arguments = self._arguments
            self._encoding()
            self._arguments = arguments
        else:
            self._type()
            end = self._name.find("E", self._at)
            if end < 0:
                raise Unparsable
            self._at = end
        self._need("E")

    def _expression(self) -> None:
        self._deeper()
        following, code = self._peek(), self._peek(2)
        if following == "L":
            self._literal()
        elif following == "T":
            self._parameter()
        elif following.isdigit():
            self._simple_name()
        else:
            self._at += 2
            self._operation(code)
        self._depth -= 1

    def _simple_name(self) -> None:
        self._unqualified()
        if self._peek() == "I":
            self._template_arguments()

    def _operation(self, code: str) -> None:
        if code in _BINARY:
            self._expressions(2)
        elif code in _UNARY:
            self._take("_")
            self._expressions(1)
        elif code == "sr":
            self._type()
            self._simple_name()
        elif code in ("sp", "sP", "sZ"):
            self._pack(code)
        elif code == "fp":
            self._skip(SEQUENCE)
        elif code in ("st", "at", "ti"):
            self._type()
        elif code in _CASTS:
            self._type()
            self._expressions(1)
        else:
            self._other(code)

    def _pack(self, code: str) -> None:
        if code == "sp":
            self._expanded(self._expression)
        elif code == "sP":
            while not self._take("E"):
                self._template_argument()
        else:
            self._expressions(1)

    def _other(self, code: str) -> None:
        if code in _NAMED:
            self._expressions(1)
            self._simple_name()
        elif code == "cl":
            self._until_end()
        elif code in ("il", "tl"):
            if code == "tl":
                self._type()
            self._until_end()
        elif code == "cv":
            self._type()
            if self._take("_"):
                self._until_end()
            else:
                self._expressions(1)
        elif code == "qu":
            self._expressions(3)
        elif code in ("nw", "na"):
            self._new()
        elif code == "on":
            self._simple_name()
        elif code in ("fl", "fr", "fL", "fR"):
            self._at += 2
            self._expressions(1 if code[1].islower() else 2)
        else:
            raise Unparsable

    def _new(self) -> None:
        while not self._take("_"):
            self._expression()
        self._type()
        if self._take("pi"):
            self._until_end()
        elif not self._take("E"):
            self._expression()

    def _expressions(self, number: int) -> None:
        for _ in range(number):
            self._expression()

    def _until_end(self) -> None:
        while not self._take("E"):
            self._expression()
