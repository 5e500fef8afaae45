"""Compiles the wants and reads the results from the debug information; runs dispatch_keys.cpp on the libc10.so.

Key names (``c10::toString``), the functionality offset and mask table, table indices and the key sets of alias keys are
results of functions, not of types, so DWARF does not hold them. The program is compiled against the same headers,
linked against the libc10.so beside them, and run in a process of its own, never in the target. Sources: DispatchKey.h,
DispatchKeySet.h and ScalarType.h of c10/core. Interrupted, we kill the programs that we run, with their descendants.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from gdbext.cache import find_program
from gdbext.engine.targets.system import proc_files
from gdbext.errors import LayoutError
from gdbext.torch.measure.measurement import no_pyelftools
from gdbext.torch.measure.wants import FILE, Wants


def run(command: Sequence[str], folder: Path, timeout: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a program, whose temporary files go into ``folder``, to its end. Raises OSError, subprocess.TimeoutExpired.

    g++ is a driver: to kill it alone would leave the compiler proper behind, for minutes. It stays in our process
    group, which is killed as a whole where we are a session of our own (measurement.py).
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            kill_tree(process.pid)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def kill_tree(pid: int) -> None:
    """Kill a child of ours and its descendants. It is stopped first, so that it starts nothing more meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    with contextlib.suppress(OSError):
        for child in proc_files.text(f"/proc/{pid}/task/{pid}/children").split():
            kill_tree(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


_ERROR_LINE = re.compile(
    rf"^{FILE}:(\d+):(?:\d+:)? *(?:fatal )?error|^ *{FILE}:(\d+):(?:\d+:)? +required from here", re.MULTILINE
)
_DIRECTIVES = (b"# ", b"#define", b"#undef")
"""Directives that -E -dD leaves and that no longer matter; a pragma does."""
_REPEATED = (b"struct _object;", b"using PyObject = _object;")
"""All of python_stub.h, which wheels have twice: GCC takes files of the same text and second for one (#pragma once)."""


@dataclass(frozen=True)
class Unit:
    """A translation unit whose headers were expanded."""

    wants: Wants
    compiler: str
    flags: tuple[str, ...]
    source: Path
    absent: frozenset[int]
    """Indices of the wants with a name that no header has."""
    digest: str
    """Units with the same one are the same text to the compiler, so their types have the same layout."""


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a unit."""

    library: Path
    """A shared library with debug information."""
    absent: frozenset[int]
    """Indices of the wants that it lacks."""
    compiler: str
    """The compiler's version."""


def find_compiler(candidates: Sequence[str]) -> str:
    """The first of ``candidates`` on PATH. Raises LayoutError."""
    path = next(filter(None, map(find_program, candidates)), None)
    if path:
        return path
    raise LayoutError(
        f"no compiler found ({', '.join(candidates)})",
        why="a layout is measured by compiling the installed headers",
        help="install g++ (apt-get install g++), or generate the layout on another machine with the same "
        "torch: scripts/dispatch measure /path/to/site-packages/torch",
    )


def preprocess(wants: Wants, compiler: str, flags: Sequence[str], folder: Path) -> Unit:
    """Expand the headers of ``wants`` with a compiler and its ``flags``, working in ``folder``; takes a second. Raises
    LayoutError."""
    source = folder / ("wants.cpp" if wants.cplusplus else "wants.c")
    source.write_text(wants.source(()))
    command = [compiler, *flags, "-E", "-dD", "-w", str(source)]
    done = run(command, folder)
    if done.returncode != 0:
        raise _failure(done.stderr.decode(errors="replace"), command)
    absent = wants.absent_from(done.stdout.rpartition(b'"%s"' % FILE.encode())[0])
    # The digest is of what the compiler proper reads: no macros, and folders by number, for assertions have file names.
    expanded = done.stdout
    for number, include in enumerate(flag[2:] for flag in flags if flag.startswith("-I")):
        expanded = expanded.replace(include.encode() + b"/", b"<%d>" % number)
    options = " ".join(flag for flag in flags if flag.startswith(("-D", "-std", "-f")))
    lines = (line for line in expanded.splitlines() if not line.startswith(_DIRECTIVES))
    text = (line for line in lines if line.strip() and line not in _REPEATED)
    digest = hashlib.sha256(b"\n".join([options.encode(), *text])).hexdigest()[:32]
    return Unit(wants, compiler, tuple(flags), source, frozenset(absent), digest)


def build(unit: Unit) -> Compiled:
    """Compile a unit into a shared library, without the wants that do not compile. Raises LayoutError.

    A compilation, half a minute for torch, is repeated only if a name exists and is no such type or constant.
    """
    library, absent = unit.source.with_name("wants.so"), set(unit.absent)
    options = ["-g", "-O0", "-fPIC", "-shared", "-w", "-gz=none", "-fdiagnostics-color=never"]
    command = [unit.compiler, *unit.flags, *options, str(unit.source), "-o", str(library)]
    for _ in range(6):
        unit.source.write_text(unit.wants.source(absent))
        done = run(command, unit.source.parent)
        if done.returncode == 0:
            version = subprocess.run([unit.compiler, "--version"], capture_output=True, text=True, check=False)
            return Compiled(library, frozenset(absent), (version.stdout.splitlines() or ["unknown"])[0])
        messages = done.stderr.decode(errors="replace")
        failing = {int(error or instantiation) - 1 for error, instantiation in _ERROR_LINE.findall(messages)} - absent
        if not failing:
            break
        absent |= failing
    raise _failure(messages, command)


def _failure(messages: str, command: Sequence[str]) -> LayoutError:
    """The error for a ``command`` of a compiler that failed with these ``messages``."""
    first = next((line for line in messages.splitlines() if "error" in line), messages) or "no message"
    return LayoutError(
        f"the headers do not compile: {first[:300]}",
        why="the compiler may be too old for this torch, or headers are missing",
        help=f"try by hand: {' '.join(command)}",
    )


_PROGRAM = Path(__file__).with_name("dispatch_keys.cpp").read_text()
"""Read at import, as all data is (wants.py)."""


def dispatch_section(torch: Path, compiler: str, flags: Sequence[str], folder: Path) -> dict[str, Any]:
    """The "dispatch" section of a torch layout. Raises LayoutError if the library cannot be linked or run."""
    library = torch / "lib"
    check_owner(library / "libc10.so")
    source, program = folder / "facts.cpp", folder / "facts"
    source.write_text(_PROGRAM)
    linking = [f"-L{library}", "-lc10", f"-Wl,-rpath,{library}"]
    output = b""
    for command in ([compiler, *flags, "-O0", "-w", str(source), "-o", str(program), *linking], [str(program)]):
        try:
            done = run(command, folder, 60)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LayoutError(f"{command[0]} failed: {error}") from error
        output = done.stdout
        if done.returncode != 0:
            messages = (done.stderr or output).decode(errors="replace").strip()[:300]
            raise LayoutError(
                f"{command[0]} failed: {messages or f'exit status {done.returncode}'}",
                why="the program that asks libc10.so for its key names could not be built or run here",
            )
    try:
        answer = json.loads(output.decode(errors="replace"))
    except ValueError as error:
        raise LayoutError(f"libc10.so gave an unreadable answer: {error}") from error
    if not isinstance(answer, dict):
        raise LayoutError("libc10.so gave an unreadable answer")
    return answer


def check_owner(library: Path) -> None:
    """Raise LayoutError for a library that another user may have put there, which must not run with our rights."""
    try:
        statuses = [path.stat() for path in (library, library.parent)]
    except OSError as error:
        raise LayoutError(f"cannot examine {library}: {error.strerror}") from error
    if any(status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002 for status in statuses):
        raise LayoutError(
            f"{library} belongs to another user",
            why="generating a layout runs a program linked to that library, with your rights",
            help="run as that user, or generate it from an installation of your own with the same torch: "
            "scripts/dispatch measure /path/to/site-packages/torch",
        )


# --- the debug information of a compiled unit, read by pyelftools, as the members of a layout document ---

Die = Any
"""elftools.dwarf.die.DIE, an entry: ``tag``, ``offset``, ``attributes``, ``iter_children()``."""

_CLASSES = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
_POINTERS = {"DW_TAG_pointer_type": "*", "DW_TAG_reference_type": "&", "DW_TAG_rvalue_reference_type": "&&"}
_ARRAY = "DW_TAG_array_type"
_FUNCTION = "DW_TAG_subroutine_type"
_BASE = "DW_TAG_inheritance"
_OPEN_NAMESPACES = ("std::", "ska::", "__gnu_cxx::")
_DEFAULT_ARGUMENTS = (
    "std::allocator<",
    "std::char_traits<",
    "std::default_delete<",
    "std::hash<",
    "std::equal_to<",
    "std::less<",
)
_MAX_OPENED = 64


def value_of(die: Die, attribute: str, default: Any = None) -> Any:
    """The value of a DIE's attribute such as "DW_AT_byte_size"; ``default`` without it."""
    entry = die.attributes.get(attribute)
    return entry.value if entry else default


def name_of(die: Die) -> str:
    """DW_AT_name, "" for an unnamed type."""
    return str(value_of(die, "DW_AT_name", b"").decode("utf-8", "replace"))


def type_of(die: Die) -> Die | None:
    """The entry that DW_AT_type refers to, behind typedefs, const and volatile; None is void."""
    for _ in range(64):
        die = die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None
        if not die or die.tag not in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
            break
    return die


class CompileUnit:
    """The first compile unit of a shared library; we compile exactly one. Raises LayoutError.

    Entries at namespace level are parsed once, and the classes that are asked for.
    """

    def __init__(self, library: Path) -> None:
        try:
            from elftools.elf.elffile import ELFFile  # 37 ms, and it may be missing
        except ImportError:
            raise no_pyelftools() from None
        self._file = ELFFile(io.BytesIO(library.read_bytes()))
        self._root: Die = next(self._file.get_dwarf_info().iter_CUs()).get_top_DIE()
        self._entries = list(_at_namespace_level(self._root))
        self._starts = [die.offset for die in self._entries]

    def variables(self) -> dict[str, Die]:
        """The global variables outside of any namespace, by name."""
        return {name_of(die): die for die in self._root.iter_children() if die.tag == "DW_TAG_variable"}

    def contents(self) -> dict[str, bytes]:
        """The bytes of each data object that has a symbol: constants that the compiler evaluated."""
        contents: dict[str, bytes] = {}
        symbols: Any = self._file.get_section_by_name(".symtab")
        for symbol in symbols.iter_symbols():
            if symbol["st_info"]["type"] == "STT_OBJECT" and isinstance(symbol["st_shndx"], int):
                section = self._file.get_section(symbol["st_shndx"])
                start = symbol["st_value"] - section["sh_addr"]
                contents[symbol.name] = section.data()[start : start + symbol["st_size"]]
        return contents

    def qualified_name(self, die: Die) -> str:
        """``die``'s name with its namespaces and enclosing classes."""
        # Walk down to the entry: that sets the parent of each entry on the path. pyelftools' own search begins at the
        # root each time, with 20,000 entries in a translation unit of torch.
        ancestor = self._entries[bisect_right(self._starts, die.offset) - 1]
        while ancestor is not None and ancestor.offset < die.offset:
            nearest = None
            for child in ancestor.iter_children():
                if child.offset > die.offset:
                    break
                nearest = child
            ancestor = nearest
        names = [name_of(die) or "(anonymous)"]
        scope = die.get_parent()
        while scope is not None and scope is not self._root:
            name = name_of(scope) or ("(anonymous namespace)" if scope.tag == "DW_TAG_namespace" else "")
            names += [name] if name else []
            scope = scope.get_parent()
        return "::".join(reversed(names))


def _at_namespace_level(scope: Die) -> Iterator[Die]:
    """Entries outside classes and functions, in order of offset."""
    for child in scope.iter_children():
        yield child
        if child.tag == "DW_TAG_namespace":
            yield from _at_namespace_level(child)


class StructReader:
    """Reads the layout of C and C++ classes out of one compile unit.

    Fields of base classes are flattened into the derived class (entry "base" names the class they come from), members
    of anonymous unions and structs as well. Classes of the standard library and of ska:: are opened downwards with
    dotted names ("_M_impl._M_start"), since nothing but their leaves is of use; so are C's, up to 64 members (CPython's
    runtime holds tables of thousands of static objects). Bit-fields have "bit_offset" (from the start of the class, in
    bits) and "bit_size".
    """

    def __init__(self, unit: CompileUnit) -> None:
        self._unit = unit
        self._names: dict[int, str] = {}

    def struct(self, die: Die, opened: bool) -> dict[str, Any]:
        """The entry of "structs" in a layout document for the class ``die``. ``opened``: with the members of members,
        by dotted names."""
        fields: dict[str, dict[str, Any]] = {}
        for member, entry in self._fields(die, 0, "", opened or self.type_name(die).startswith(_OPEN_NAMESPACES), 0):
            fields.setdefault(member, entry)
        return {"size": self.size(die), "fields": fields}

    def nested(self, die: Die) -> Iterator[Die]:
        """Classes that ``die`` and its bases hold by value and that get an entry of their own in "structs"."""
        for member in self._members(die):
            kind = type_of(member)
            while kind and kind.tag == _ARRAY:
                kind = type_of(kind)
            if not kind or kind.tag not in _CLASSES:
                continue
            name = self.type_name(kind)
            if member.tag == _BASE or not name_of(kind):
                yield from self.nested(kind)
            elif not name.startswith(_OPEN_NAMESPACES) or name.startswith(("std::optional<", "std::variant<")):
                yield kind
            elif name.startswith("std::array<"):
                yield from self.nested(kind)

    def size(self, die: Die | None) -> int:
        """The ``sizeof`` of a type, in bytes."""
        if not die or die.tag == _FUNCTION:
            return 0
        size = value_of(die, "DW_AT_byte_size")
        if size is not None:
            return int(size)
        if die.tag == _ARRAY:
            return self.size(type_of(die)) * self._elements(die)
        return 8 if die.tag in _POINTERS else 0

    @staticmethod
    def _elements(array: Die) -> int:
        """The number of elements of an array type, over all dimensions; 0 if it is unbounded."""
        total = 1
        for child in array.iter_children():
            if child.tag == "DW_TAG_subrange_type":
                count = value_of(child, "DW_AT_count")
                if count is None:
                    bound = value_of(child, "DW_AT_upper_bound")
                    count = bound + 1 if isinstance(bound, int) else 0
                total *= count if isinstance(count, int) else 0
        return total

    def type_name(self, die: Die | None) -> str:
        """The type as C++ writes it, default template arguments left out."""
        if not die:
            return "void"
        if die.offset not in self._names:
            if die.tag in _POINTERS:
                name = self.type_name(type_of(die)) + _POINTERS[die.tag]
            elif die.tag == _ARRAY:
                name = f"{self.type_name(type_of(die))}[{self._elements(die)}]"
            elif die.tag == _FUNCTION:
                name = f"{self.type_name(type_of(die))}()"
            elif die.tag == "DW_TAG_base_type":
                name = name_of(die)
            else:
                name = shorten(self._unit.qualified_name(die))
            self._names[die.offset] = name
        return self._names[die.offset]

    @staticmethod
    def _members(die: Die) -> Iterator[Die]:
        """The data members and the base classes, without virtual bases, of a class."""
        for child in die.iter_children():
            if value_of(child, "DW_AT_declaration"):
                continue
            if child.tag == "DW_TAG_member" or (child.tag == _BASE and not value_of(child, "DW_AT_virtuality")):
                yield child

    def _fields(
        self, die: Die, start: int, prefix: str, opened: bool, depth: int, base: str = ""
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name with ``prefix``, entry of "fields") of each member of the class ``die``, which is ``start`` bytes into
        the outermost one; those of bases come last. ``opened``: also members of members; ``depth``: the classes around
        it; ``base``: the base class of the outermost one that ``die`` is or is in."""
        if depth > 12:
            return
        bases = []
        for member in self._members(die):
            kind = type_of(member)
            location = value_of(member, "DW_AT_data_member_location", 0)
            offset = start + (location if isinstance(location, int) else 0)
            if member.tag == _BASE:
                if kind:
                    bases.append((kind, offset))
            elif not name_of(member) and kind:
                yield from self._fields(kind, offset, prefix, opened, depth + 1, base)
            else:
                yield from self._member(member, kind, offset, prefix, opened, depth, base)
        for kind, offset in bases:
            inherited = base if opened else self.type_name(kind)
            yield from self._fields(kind, offset, prefix, opened, depth + 1, inherited)

    def _member(
        self, member: Die, kind: Die | None, offset: int, prefix: str, opened: bool, depth: int, base: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """``member``, of type ``kind`` and at ``offset`` in the outermost class, as ``_fields`` yields it; if
        ``opened``, then the members of its class."""
        name = prefix + ("_vptr" if name_of(member).startswith("_vptr") else name_of(member))
        type_text = self.type_name(kind)[:200]
        entry: dict[str, Any] = {"offset": offset, "size": self.size(kind), "type": type_text}
        bits = value_of(member, "DW_AT_bit_size")
        if bits is not None:
            first = bit_position(offset, member, self.size(kind))
            entry.update(offset=first // 8, size=(first % 8 + int(bits) + 7) // 8, bit_offset=first, bit_size=int(bits))
        if base:
            entry["base"] = base
        yield name, entry
        if opened and kind and kind.tag in _CLASSES:
            inner = list(islice(self._fields(kind, offset, name + ".", opened, depth + 1, base), _MAX_OPENED + 1))
            if len(inner) <= _MAX_OPENED:
                yield from inner


def bit_position(offset: int, member: Die, storage: int) -> int:
    """Bits from the class's start to a bit-field's lowest bit. ``offset`` and ``storage`` are offset and size, in
    bytes, of its storage unit: DWARF 4 counts from the top of that, DWARF 5 from the class's start."""
    from_class = value_of(member, "DW_AT_data_bit_offset")
    if from_class is not None:
        return int(8 * offset + from_class)
    return int(8 * offset + 8 * storage - value_of(member, "DW_AT_bit_offset", 0) - value_of(member, "DW_AT_bit_size"))


def shorten(name: str) -> str:
    """A C++ type name without default template arguments and inline namespaces, as people write it."""
    name = name.replace("std::__cxx11::", "std::").replace("> >", ">>").replace("> >", ">>")
    for default in _DEFAULT_ARGUMENTS:
        start = name.find(", " + default)
        while start >= 0:
            end, depth = start + 2 + len(default), 1
            while end < len(name) and depth:
                depth += {"<": 1, ">": -1}.get(name[end], 0)
                end += 1
            name = name[:start] + name[end:].lstrip(" ")
            start = name.find(", " + default)
    return name.replace("std::basic_string<char>", "std::string")


@dataclass
class Measured:
    """The answers to wants, by the names in the layout document."""

    compiler: str
    """The compiler's version."""
    structs: dict[str, Any] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    """Names of the wants that these headers lack."""
    units: list[str] = field(default_factory=list)
    """Digests of the compiled units."""

    def add(self, other: Measured) -> None:
        """Add the results of ``other``; where both have a class, the one that is here stays."""
        self.structs = {**other.structs, **self.structs}
        self.enums = {**other.enums, **self.enums}
        self.constants = {**other.constants, **self.constants}
        self.absent = [*self.absent, *other.absent]
        self.units = [*self.units, *other.units]


Known = dict[str, Measured]
"""The results of other headers, by the digest of the unit."""


def measure(wants: Wants, command: str, flags: Sequence[str], folder: Path, known: Known | None = None) -> Measured:
    """The answers to ``wants`` by the headers that the compiler ``command`` finds with ``flags``, working in
    ``folder``. A unit in ``known`` is not compiled; another one is added to it. Raises LayoutError."""
    unit = preprocess(wants, command, flags, folder)
    measured = known.get(unit.digest) if known is not None else None
    if not measured:
        measured = _read_answers(wants, build(unit))
        measured.units.append(unit.digest)
        if known is not None:
            known[unit.digest] = measured
    return replace(measured)


def _read_answers(wants: Wants, built: Compiled) -> Measured:
    """The answers to ``wants`` in the constants and the debug information of the compiled library."""
    unit = CompileUnit(built.library)
    reader = StructReader(unit)
    contents, variables = unit.contents(), unit.variables()
    result = Measured(built.compiler, absent=[wants.all[index].name for index in sorted(built.absent)])
    pending: list[Die] = []
    for index, want in enumerate(wants.all):
        if index in built.absent:
            continue
        if want.kind == "constant":
            result.constants[want.name] = int.from_bytes(contents[f"want_{index}"], "little", signed=True)
            continue
        pointer = type_of(variables[f"want_{index}"])
        die = type_of(pointer) if pointer else None
        if not die or value_of(die, "DW_AT_declaration"):
            result.absent.append(want.name)
        elif want.kind == "enum":
            result.enums[want.name] = {
                name_of(child): int(value_of(child, "DW_AT_const_value"))
                for child in die.iter_children()
                if child.tag == "DW_TAG_enumerator"
            }
        else:
            # C has no namespaces, by which classes of the standard library are known: all are opened, none is followed.
            result.structs[want.name] = reader.struct(die, not wants.cplusplus)
            pending.append(die)
    # add the classes that wanted classes hold by value, and so on
    seen = {die.offset for die in pending}
    while pending and wants.cplusplus:
        for die in reader.nested(pending.pop()):
            if die.offset not in seen and not value_of(die, "DW_AT_declaration"):
                seen.add(die.offset)
                pending.append(die)
                name = reader.type_name(die)
                if name not in result.structs:
                    result.structs[name] = reader.struct(die, False)
    return result
