"""An upper bound for the length of the text that a mangled C++ name stands for (Itanium C++ ABI, 5.1).

``MangledName`` parses a name and counts characters, and references to template arguments, whose length is known only
with the template around them. It remembers the cost of each component that a substitution may mean.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import integer

if TYPE_CHECKING:
    from collections.abc import Callable

    _Rules = dict[str, tuple[Callable[["MangledName"], object], ...]]  # code → what follows it, in order

LONGEST_BUILTIN = 20
"""Most characters that one character of a mangled name stands for, except in references and identifiers: y is
"unsigned long long"."""
LONGEST_STANDARD = 80  # Ss is "std::basic_string<char, std::char_traits<char>, std::allocator<char> >"
UNLIMITED = 1 << 100  # a cost that stands for anything larger
_MAX_DEPTH = 120
_NUMBER = re.compile(r"n?[0-9]*")
_SEQUENCE = re.compile(r"[0-9A-Z]*_")
_QUALIFIERS = re.compile(r"(?:[rVK]|D[xowO])+")


class _Unparsable(Exception):
    """The text is no mangled name, or uses grammar that is too rare to be parsed."""


def printed_size(name: str) -> int:
    """Most characters that the name stands for, 2 ** 100 if it cannot be parsed."""
    try:
        first = MangledName(name, 1)
        first.parse()
        if first.longest_pack == 1:
            return first.cost()
        second = MangledName(name, first.longest_pack)  # the longest pack is known only after a first walk
        second.parse()
        return second.cost()
    except _Unparsable:
        return UNLIMITED


class Cost(NamedTuple):
    """How much of the printed name a text stands for."""

    characters: int
    references: int  # to template arguments

    def max(self, other: Cost) -> Cost:
        """The maximum of both costs, number by number."""
        return Cost(max(self.characters, other.characters), max(self.references, other.references))


class MangledName:
    """One pass over a name: the current position, and the cost of everything before it. Methods with the name of a
    nonterminal of the ABI's grammar parse one at the position, and raise _Unparsable if none is there."""

    def __init__(self, name: str, pack_size: int) -> None:
        """``pack_size``: the number of arguments that each template parameter pack is taken to have."""
        self.longest_pack = 1
        self._name = name + "\0"
        self._at = 0
        self._fixed = 0
        """Characters of what is parsed so far, apart from LONGEST_BUILTIN for each character of the name."""
        self._references = 0  # references to template arguments in what is parsed so far
        self._pack_size = pack_size
        self._components: list[Cost] = []  # the component that each substitution means, by its number
        self._scope = Cost(0, 0)  # the cost of the largest argument of all templates whose functions were parsed
        self._arguments: Cost | None = None
        """The cost of the largest template argument of the last parsed name, None if that is no template."""
        self._identifier = 0  # length of the longest identifier; a constructor repeats one
        self._depth = 0
        self._expansions = 0  # pack expansions around the position

    def cost(self) -> int:
        """Most characters that the parsed name stands for."""
        return self._fixed + LONGEST_BUILTIN * self._at + self._references * (self._scope.characters + 1)

    def _peek(self, length: int = 1) -> str:
        """The next ``length`` characters, which are not skipped; NUL marks the end of the name."""
        return self._name[self._at : self._at + length]

    def _take(self, text: str) -> bool:
        """Skip ``text`` if it is at the position; else return False."""
        if self._name.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _need(self, text: str) -> None:
        """Skip ``text``. Raises _Unparsable if it is not at the position."""
        if not self._take(text):
            raise _Unparsable

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Skip and return the text that the pattern matches at the position. Raises _Unparsable."""
        match = pattern.match(self._name, self._at)
        if not match:
            raise _Unparsable
        self._at = match.end()
        return match.group()

    def _by_code(self, rules: _Rules) -> None:
        """Skip the code of two letters or one that is at the position, and parse what its rule says behind it. Raises
        _Unparsable if no rule begins with it."""
        code = self._peek(2) if self._peek(2) in rules else self._peek()
        if code not in rules:
            raise _Unparsable
        self._at += len(code)
        for parse in rules[code]:
            parse(self)

    def _skip_letter(self) -> None:
        self._at += 1

    def _end(self) -> None:
        self._need("E")

    def _number(self) -> None:
        self._skip(_NUMBER)
        self._need("_")

    def _sequence(self) -> None:
        self._skip(_SEQUENCE)

    def _enter(self) -> None:
        """Count one more level of recursion. Raises _Unparsable if there are too many."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unparsable

    def _add(self, cost: Cost) -> None:
        """Add the cost of text that the name only refers to. Raises _Unparsable if the sum is absurd."""
        self._fixed += cost.characters
        self._references += cost.references
        if self._fixed > UNLIMITED or self._references > UNLIMITED:
            raise _Unparsable

    def _mark(self) -> Cost:
        """The cost of everything before the position."""
        return Cost(self._fixed + LONGEST_BUILTIN * self._at, self._references)

    def _cost_since(self, mark: Cost) -> Cost:
        """The cost of the text between the position at which _mark() gave ``mark`` and the current one."""
        characters, references = self._mark()
        return Cost(characters - mark.characters, references - mark.references)

    def _remember(self, mark: Cost) -> None:
        """Make the text since ``mark`` the next component that a substitution can refer to."""
        characters, references = self._cost_since(mark)
        self._components.append(Cost(characters, references * (self._pack_size if self._expansions else 1)))

    def parse(self) -> None:
        """Parse the name of a symbol, with suffixes of clones. Raises _Unparsable."""
        for prefix in ("_GLOBAL__sub_I_", "_GLOBAL__I_", "_GLOBAL__D_"):
            if self._take(prefix) and not self._name.startswith("_Z", self._at):
                return
        self._need("_Z")
        self._encoding()
        if self._peek() not in (".", "\0", "@"):
            raise _Unparsable

    def _encoding(self) -> None:
        """Parse a function with its type, a variable, or a special name such as a vtable (TV)."""
        self._enter()
        if self._peek() in ("T", "G"):
            self._by_code(self._SPECIAL_NAMES)
        else:
            self._name_of_entity()
            self._function_type()
        self._depth -= 1

    def _call_offset(self) -> None:
        """Skip the offsets of a thunk: one behind h, two behind v."""
        for _ in range(2 if self._take("v") else 1 if self._take("h") else 0):
            self._number()

    def _transaction_clone(self) -> None:
        if not self._take("t"):
            self._need("n")
        self._encoding()

    def _function_type(self) -> None:
        """Parse the types behind a function's name; their template parameters mean that name's arguments."""
        arguments, mark = self._arguments, self._mark()
        if arguments:
            self._scope = self._scope.max(arguments)
        scope = self._scope
        self._take("J")
        while self._peek() not in ("E", "\0", ".", "@", "Q"):
            self._type()
        _, references = self._cost_since(mark)
        if references and arguments:
            self._references -= references
            self._add(Cost(references * scope.characters, references * scope.references))

    def _name_of_entity(self) -> None:
        """Parse a <name>; afterwards ``_arguments`` has the cost of its largest template argument, None if none."""
        self._enter()
        self._arguments = None
        mark, following = self._mark(), self._peek()
        if self._take("N"):
            self._nested_name()
        elif self._take("Z"):
            self._local_name()
        else:
            is_substitution = following == "S" and not self._take("St")
            if is_substitution:
                self._substitution()
            else:
                self._unqualified_name()
            if self._peek() == "I":
                if not is_substitution:
                    self._remember(mark)
                self._template_arguments()
        self._depth -= 1

    def _nested_name(self) -> None:
        """Parse the rest of N…E: each prefix, such as a namespace, is a component."""
        if self._peek() in ("r", "V", "K"):
            self._skip(_QUALIFIERS)
        if self._peek() in ("R", "O"):
            self._at += 1
        mark = self._mark()
        while not self._take("E"):
            following = self._peek()
            is_component = following not in ("S", "M")
            if following != "I":
                self._arguments = None
            if following == "I":
                self._template_arguments()
            elif following == "S":
                self._substitution()
            elif following == "T":
                self._template_parameter()
            elif following == "M":
                self._at += 1
            elif self._peek(2) in ("DT", "Dt"):
                self._type()
                is_component = False
            else:
                self._unqualified_name()
            if is_component and self._peek() != "E":
                self._remember(mark)

    def _local_name(self) -> None:
        """Parse the rest of Z…E…: an entity inside a function, with a discriminator."""
        self._encoding()
        self._end()
        self._arguments = None
        if self._take("s"):
            self._discriminator()
            return
        if self._take("d"):
            self._number()
        self._name_of_entity()
        arguments = self._arguments
        self._discriminator()
        self._arguments = arguments

    def _discriminator(self) -> None:
        """Skip the number, if there is one, that tells entities with the same name in one function apart."""
        if self._take("__"):
            self._number()
        elif self._take("_"):
            self._skip(_NUMBER)

    def _unqualified_name(self) -> None:
        """Parse an identifier, an operator, a constructor, a lambda or an unnamed type, with its ABI tags."""
        mark, following = self._mark(), self._peek()
        if following.isdigit():
            self._source_name()
        elif following in ("L", "C", "D", "U") or self._peek(2) in self._NAMES:
            self._by_code(self._NAMES)
        elif self._peek(2).isalnum() and following.islower():  # an operator
            self._at += 2
        else:
            raise _Unparsable
        if following == "U":
            self._remember(mark)
        while self._take("B"):  # ABI tags
            self._source_name()

    def _repeated_identifier(self) -> None:
        self._fixed += self._identifier

    def _conversion_operator(self) -> None:
        """Parse the type that the operator converts to. Template parameters in it may mean arguments that follow: too
        rare to be counted."""
        mark = self._mark()
        self._type()
        if self._cost_since(mark).references:
            raise _Unparsable

    def _source_name(self) -> None:
        """Skip an identifier, behind its length, and count its characters as themselves."""
        if not self._peek().isdigit():
            raise _Unparsable
        length = int(self._skip(_NUMBER)[:5])
        if self._at + length >= len(self._name):
            raise _Unparsable
        self._at += length
        self._fixed -= (LONGEST_BUILTIN - 1) * length
        self._identifier = max(self._identifier, length)

    def _template_arguments(self) -> int:
        """Parse the arguments; returns their number."""
        self._enter()
        if not self._take("I"):
            self._need("J")
        largest, number = Cost(0, 0), 0
        while not self._take("E"):
            mark, is_pack = self._mark(), self._peek() in ("I", "J")
            self._template_argument()
            cost = self._arguments if is_pack and self._arguments else self._cost_since(mark)
            largest, number = largest.max(cost), number + 1
        self._arguments = largest
        self._depth -= 1
        return number

    def _template_argument(self) -> None:
        """Parse a type, an expression, a literal or a pack."""
        if self._take("X"):
            self._expression()
            self._end()
        elif self._take("L"):
            self._literal()
        elif self._peek() in ("I", "J"):
            self.longest_pack = max(self.longest_pack, self._template_arguments())
        else:
            self._type()

    def _template_parameter(self) -> None:
        """Parse T_, T0_, …, and count a reference to a template argument."""
        self._need("T")
        if self._take("L"):
            self._number()
        self._sequence()
        # It may mean a whole pack, but in an expansion one element after the other.
        self._add(Cost(0, references=1 if self._expansions else self._pack_size))

    def _substitution(self) -> None:
        """Parse S_, S0_, … and add the cost of the component, or a standard abbreviation such as St, Sa."""
        self._need("S")
        if self._peek().islower():
            self._at += 1
            while self._take("B"):
                self._source_name()
            self._identifier = max(self._identifier, LONGEST_STANDARD)
            self._fixed += LONGEST_STANDARD
            return
        number = self._skip(_SEQUENCE)[:-1]
        try:
            self._add(self._components[integer(number, 36) + 1 if number else 0])
        except (ValueError, IndexError):
            raise _Unparsable from None

    def _expanded(self, parse_pattern: Callable[[], None]) -> None:
        """Parse a pattern that is printed once for each argument of a pack."""
        mark = self._mark()
        self._expansions += 1
        parse_pattern()
        self._expansions -= 1
        characters, references = self._cost_since(mark)
        self._add(Cost(characters * (self._pack_size - 1), references * (self._pack_size - 1)))

    def _type(self) -> None:
        """Parse a type with the pointers, references and qualifiers before it; each of these makes a component."""
        self._enter()
        marks = [self._mark()]
        while self._peek() in ("P", "R", "O", "C", "G", "r", "V", "K"):
            if self._peek() in ("r", "V", "K"):
                self._skip(_QUALIFIERS)
            else:
                self._at += 1
            marks.append(self._mark())
        is_component = self._unqualified_type()
        for mark in reversed(marks if is_component else marks[:-1]):
            self._remember(mark)
        self._depth -= 1

    def _unqualified_type(self) -> bool:
        """Parse the type; True if it is a component that had no number before."""
        mark, following = self._mark(), self._peek()
        if following in ("T", "S"):
            is_new = following == "T" or self._take("St")
            if following == "T":
                self._template_parameter()
            elif is_new:
                self._unqualified_name()
            else:
                self._substitution()
            if self._peek() != "I":
                return is_new
            if is_new:
                self._remember(mark)
            self._template_arguments()
        elif following.isdigit() or following in ("N", "Z"):
            self._name_of_entity()
        elif self._peek(2) in self._BUILTIN_TYPES:
            self._at += 2
            return False
        elif following.islower() and following != "u":
            self._at += 1
            return False
        else:
            self._by_code(self._COMPOUND_TYPES)
        return True

    def _bare_function_type(self) -> None:
        """Parse the result and the parameters of a function type."""
        self._take("Y")
        while not (self._take("E") or self._take("RE") or self._take("OE")):
            self._type()

    def _array_type(self) -> None:
        """Parse an array or vector type behind its first letters: its size, then the elements' type."""
        if self._peek().isdigit():
            self._skip(_NUMBER)
        elif self._peek() != "_":
            self._expression()
        self._need("_")
        self._type()

    def _optional_arguments(self) -> None:
        """Parse template arguments, if any follow."""
        if self._peek() == "I":
            self._template_arguments()

    def _literal(self) -> None:
        """Parse the rest of L…E: a value, or the address of a function or object."""
        if self._take("_Z") or self._take("Z"):
            arguments = self._arguments
            self._encoding()
            self._arguments = arguments
        else:
            self._type()
            end = self._name.find("E", self._at)
            if end < 0:
                raise _Unparsable
            self._at = end
        self._end()

    def _expression(self) -> None:
        """Parse an operation by its code of two letters, a parameter, a literal or a name."""
        self._enter()
        following = self._peek()
        if following == "T":
            self._template_parameter()
        elif following.isdigit():
            self._simple_name()
        else:
            self._by_code(self._EXPRESSIONS)
        self._depth -= 1

    def _simple_name(self) -> None:
        self._unqualified_name()
        self._optional_arguments()

    def _until_end(self, parse: Callable[[], None]) -> None:
        """Parse with ``parse`` again and again, until the letter E."""
        while not self._take("E"):
            parse()

    def _converted_values(self) -> None:
        """Parse what is converted to a type: one expression, or a list behind an underscore."""
        if self._take("_"):
            self._until_end(self._expression)
        else:
            self._expression()

    def _new_expression(self) -> None:
        """Parse the rest of a new-expression: placement, type and initializer."""
        while not self._take("_"):
            self._expression()
        self._type()
        if self._take("pi"):
            self._until_end(self._expression)
        elif not self._take("E"):
            self._expression()

    _SPECIAL_NAMES: _Rules = {  # noqa: RUF012
        **dict.fromkeys(("TV", "TT", "TI", "TS", "TF", "TJ"), (_type,)),
        **dict.fromkeys(("GV", "TH", "TW"), (_name_of_entity,)),
        "Tc": (_call_offset, _call_offset, _encoding),
        "Th": (_number, _encoding),
        "Tv": (_number, _number, _encoding),
        "TC": (_type, _number, _type),
        "GR": (_name_of_entity, _sequence),
        "GA": (_encoding,),
        "GT": (_transaction_clone,),
    }
    _NAMES: _Rules = {  # noqa: RUF012
        "L": (_source_name, _discriminator),
        "CI": (_skip_letter, _type, _repeated_identifier),  # constructors and destructors
        **dict.fromkeys("CD", (_skip_letter, _repeated_identifier)),
        "Ul": (lambda self: self._until_end(self._type), _number),
        "Ut": (_number,),
        "cv": (_conversion_operator,),
        "li": (_source_name,),
    }
    _BUILTIN_TYPES = ("Da", "Dc", "Dn", "Di", "Ds", "Du", "Dh", "Df", "Dd", "De")
    _COMPOUND_TYPES: _Rules = {  # noqa: RUF012
        **dict.fromkeys(("DT", "Dt"), (_expression, _end)),
        **dict.fromkeys(("Do", "Dx", "Dw", "DO"), (_type,)),
        "Dp": (lambda self: self._expanded(self._type),),
        "Dv": (_array_type,),
        "F": (_bare_function_type,),
        "A": (_array_type,),
        "M": (_type, _type),
        "u": (_source_name, _optional_arguments),
        "U": (_source_name, _optional_arguments, _type),
    }
    _BINARY = "aN aS aa an cm ds dV dv eO eo eq ge gt ix lS le ls lt mI mL mi ml ne oR oo or pL pl pm rM rS rm rs ss"
    _UNARY = "ad aw co da de dl ng nt nx pp mm ps sz az te tw gs"
    _EXPRESSIONS: _Rules = {  # noqa: RUF012
        "L": (_literal,),
        **dict.fromkeys(_BINARY.split(), (_expression, _expression)),
        **dict.fromkeys(_UNARY.split(), (lambda self: self._take("_"), _expression)),
        **dict.fromkeys(("st", "at", "ti"), (_type,)),
        **dict.fromkeys(("cc", "dc", "rc", "sc"), (_type, _expression)),
        **dict.fromkeys(("dt", "pt"), (_expression, _simple_name)),
        **dict.fromkeys(("cl", "il"), (lambda self: self._until_end(self._expression),)),
        **dict.fromkeys(("nw", "na"), (_new_expression,)),
        **dict.fromkeys(("fl", "fr"), (_skip_letter, _skip_letter, _expression)),
        **dict.fromkeys(("fL", "fR"), (_skip_letter, _skip_letter, _expression, _expression)),
        "sr": (_type, _simple_name),
        "sp": (lambda self: self._expanded(self._expression),),
        "sP": (lambda self: self._until_end(self._template_argument),),
        "sZ": (_expression,),
        "fp": (_sequence,),
        "tl": (_type, lambda self: self._until_end(self._expression)),
        "cv": (_type, _converted_values),
        "qu": (_expression, _expression, _expression),
        "on": (_simple_name,),
    }
