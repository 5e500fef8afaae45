"""Places of Python source where a small fault can be planted, and draws of them over all packages of gdbext.

A fault changes one operator, comparison, constant, branch (its condition is negated) or return value, as a minimal edit
of the source. Left out is what cannot matter to a run: annotations, docstrings and prose (strings with spaces),
f-strings, decorators, log calls, ``TYPE_CHECKING`` blocks, ``__all__``, and the help of options.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<", "<=", ">="),
    ast.LtE: ("<=", "<", ">"),
    ast.Gt: (">", ">=", "<="),
    ast.GtE: (">=", ">", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
"""The operator's text, then what may replace it."""
HELP = {"help", "description", "epilog", "metavar", "usage", "title"}
"""Arguments whose text only a person reads."""
NAMING_CALLS = {"cast", "TypeVar", "NewType"}
"""Calls whose first argument is a type, or the name of one."""
TYPE_FORMS = {"Literal", "Callable", "Union", "Optional"}
LOGS = {"_log", "log", "logger", "logging"}


class Place(NamedTuple):
    """Bytes ``start`` to ``end`` of a source, and what may replace them."""

    kind: str
    line: int
    start: int
    end: int
    replacements: tuple[str, ...]


class Fault(NamedTuple):
    """One place with its replacement; ``file`` is relative to the repository."""

    file: str
    place: Place
    replacement: str

    def apply(self, source: bytes) -> bytes:
        """The source with the fault."""
        return source[: self.place.start] + self.replacement.encode() + source[self.place.end :]

    def before_and_after(self, source: bytes) -> tuple[str, str]:
        """The source lines of the place, on one line each."""
        first = source[: self.place.start].rpartition(b"\n")[2]
        last = source[self.place.end :].partition(b"\n")[0]
        texts = (source[self.place.start : self.place.end], self.replacement.encode())
        before, after = (" ".join((first + text + last).decode().split()) for text in texts)
        return before, after

    def is_sound(self, source: bytes) -> bool:
        """True if the changed source compiles, to another program."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                changed = ast.parse(self.apply(source))
                compile(changed, self.file, "exec")
            except SyntaxError:
                return False
        return ast.dump(changed) != ast.dump(ast.parse(source))


def drawn_faults(root: Path, seed: int, only: Sequence[str] = ()) -> Iterator[Fault]:
    """Faults in the order in which the seed draws them, no place twice: first the package, then its file, then the
    place. ``only``: files and folders relative to ``root`` to draw from."""
    chance = Random(seed)
    files: dict[str, list[Path]] = {}
    for file in sorted((root / "gdbext").rglob("*.py")):
        relative = file.relative_to(root)
        if not only or any(Path(chosen) in (relative, *relative.parents) for chosen in only):
            files.setdefault(relative.parent.as_posix(), []).append(relative)
    places: dict[Path, list[Place]] = {}
    while files:
        package = chance.choice(sorted(files))
        file = chance.choice(files[package])
        source = (root / file).read_bytes()
        if file not in places:
            places[file] = find_places(source)
        if not places[file]:
            files[package].remove(file)
            if not files[package]:
                del files[package]
            continue
        place = places[file].pop(chance.randrange(len(places[file])))
        fault = Fault(file.as_posix(), place, chance.choice(place.replacements))
        if fault.is_sound(source):
            yield fault


def find_places(source: bytes) -> list[Place]:
    """All places of a source, in its order."""
    finder = _PlaceFinder(source)
    finder.visit(ast.parse(source))
    return sorted(finder.places, key=lambda place: (place.start, place.end))


class _Tokens:
    """The tokens of a source by their position in bytes."""

    def __init__(self, source: bytes) -> None:
        self._line_starts = [0]
        for line in source.split(b"\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        self._tokens: list[tuple[int, str]] = []
        for token in tokenize.generate_tokens(io.StringIO(source.decode()).readline):
            if token.string.strip():
                row, column = token.start
                self._tokens.append((self.offset(row, len(token.line[:column].encode())), token.string))

    def offset(self, line: int, column: int) -> int:
        """The position of a column in bytes, as ast counts."""
        return self._line_starts[line - 1] + column

    def find(self, words: str, start: int, end: int) -> tuple[int, int]:
        """The range of an operator of one or two words, the first between two positions."""
        first, *more = words.split()
        for number in range(bisect_left(self._tokens, (start, "")), len(self._tokens)):
            position, text = self._tokens[number]
            if position >= end:
                break
            if text == first:
                last, word = self._tokens[number + len(more)]
                return position, last + len(word)
        raise ValueError(f"no {words!r} between {start} and {end}")

    def after(self, position: int) -> int:
        """The start of the next token after the one at ``position``."""
        return self._tokens[bisect_left(self._tokens, (position + 1, ""))][0]


class _PlaceFinder(ast.NodeVisitor):
    """Collects the places of a module."""

    def __init__(self, source: bytes) -> None:
        self.places: list[Place] = []
        self._source = source
        self._tokens = _Tokens(source)
        self._returns_bool = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Default values and the body."""
        before, self._returns_bool = self._returns_bool, _name(node.returns) == "bool"
        self._visit_all([*node.args.defaults, *node.args.kw_defaults, *node.body])
        self._returns_bool = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Default values and the body; a lambda inside a function of bools returns what it likes."""
        self._visit_all([*node.args.defaults, *node.args.kw_defaults, node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Arguments and the body."""
        self._visit_all([*node.bases, *node.keywords, *node.body])

    def visit_Assign(self, node: ast.Assign) -> None:
        """The value."""
        if not any(_name(target) in ("__all__", "TYPE_CHECKING") for target in node.targets):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The value."""
        self._visit_all([node.value])

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Everything but the arguments of a type."""
        if _name(node.value) not in TYPE_FORMS:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """What is called; no docstrings."""
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nothing: before 3.12 the positions in f-strings are wrong."""

    def visit_Call(self, node: ast.Call) -> None:
        """The function and its arguments."""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if _name(owner) in LOGS:
            return
        positional = node.args[1:] if _name(node.func) in NAMING_CALLS else node.args
        self._visit_all([node.func, *positional, *node.keywords])

    def visit_keyword(self, node: ast.keyword) -> None:
        """The value."""
        if node.arg not in HELP:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """The condition and both branches; of a test for TYPE_CHECKING only what runs."""
        inverted = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        if _name(node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test) == "TYPE_CHECKING":
            self._visit_all(node.body if inverted else node.orelse)
            return
        self._condition(node.test)
        self._visit_all([*node.body, *node.orelse])

    def visit_While(self, node: ast.While) -> None:
        """The condition and the body."""
        self._condition(node.test)
        self._visit_all([*node.body, *node.orelse])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The condition and both values."""
        self._condition(node.test)
        self._visit_all([node.body, node.orelse])

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """The iterable and the conditions."""
        self.visit(node.iter)
        for test in node.ifs:
            self._condition(test)

    def visit_Return(self, node: ast.Return) -> None:
        """The value; one that is written out is a constant."""
        if isinstance(node.value, ast.Constant):
            if node.value.value is None:
                self._add("return", self._range(node.value), "1")
            self.visit(node.value)
        elif node.value is not None:
            replacements = ["None", self._negated(node.value)] if self._returns_bool else ["None"]
            self._add("return", self._range(node.value), *replacements)
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Each operator and each side."""
        sides = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, sides, sides[1:]):
            text, *others = COMPARISONS[type(operator)]
            self._add("comparison", self._between(text, left, right), *others)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Each operator and each operand."""
        text, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            self._add("operator", self._between(text, left, right), other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """The operator and both operands; an operand that is written out as a text or list allows no other."""
        no_numbers = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)
        sides = (node.left, node.right)
        is_number = not any(isinstance(side, no_numbers) or _is_text(side) for side in sides)
        if is_number and type(node.op) in BINARY:
            text, other = BINARY[type(node.op)]
            self._add("operator", self._between(text, node.left, node.right), other)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """The operator and the value."""
        if type(node.op) in BINARY and not _is_text(node.value):
            text, other = BINARY[type(node.op)]
            self._add("operator", self._between(f"{text}=", node.target, node.value), f"{other}=")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """The operator is left out."""
        self._add("operator", self._unary(node), "")
        self.visit(node.operand)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Numbers, truth values, and texts without spaces; only those that are written as one literal."""
        start, end = self._range(node)
        text = self._source[start:end].decode()
        value = node.value
        if isinstance(value, bool):
            self._add("constant", (start, end), str(not value))
        elif isinstance(value, int):
            written = hex if text[:2].lower() == "0x" else str
            self._add("constant", (start, end), written(value + 1))
        elif isinstance(value, float):
            self._add("constant", (start, end), str(value + 1.0))
        elif isinstance(value, (str, bytes)) and len(value.split()) < 2 and text == text.strip():
            quote = '"""' if text.endswith(('"""', "'''")) else text[-1]
            if text.endswith(quote) and "\n" not in text and text.count(quote) == 2:
                at = end - len(quote)
                self._add("constant", (at, at), "_")

    def _condition(self, test: ast.expr) -> None:
        """A negation of the test; the test itself without a ``not`` that the negation takes away."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._add("branch", self._unary(test), "")
            self.visit(test.operand)
            return
        self._add("branch", self._range(test), self._negated(test))
        self.visit(test)

    def _negated(self, node: ast.expr) -> str:
        start, end = self._range(node)
        text = self._source[start:end].decode()
        return f"not {text}" if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) else f"not ({text})"

    def _visit_all(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _add(self, kind: str, edit: tuple[int, int], *replacements: str) -> None:
        line = self._source.count(b"\n", 0, edit[0]) + 1
        self.places.append(Place(kind, line, *edit, replacements))

    def _range(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._tokens.offset(node.lineno, node.col_offset)
        return start, self._tokens.offset(node.end_lineno, node.end_col_offset)

    def _between(self, words: str, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        return self._tokens.find(words, self._range(left)[1], self._range(right)[0])

    def _unary(self, node: ast.UnaryOp) -> tuple[int, int]:
        start = self._range(node)[0]
        return start, self._tokens.after(start)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _name(node: ast.expr | None) -> str:
    """The last part of a dotted name; "" for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
