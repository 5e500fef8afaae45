"""``dispatch-tensor``: finds the tensor that a user means by address, register, C++ expression or Python name, and
describes it field by field."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from gdbext.cpython.objects.py_ref import type_name
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.diagnosis.reporting import make_report, page_origin
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.diagnosis.tool_arguments import NUMBER, WORD, find_thread, number, register_value
from gdbext.engine.formats import whole_file
from gdbext.engine.layouts.declarations import Inner, Member, Space
from gdbext.engine.numbers import integer
from gdbext.engine.terminal import escape
from gdbext.errors import BadData, GdbextError, UsageError
from gdbext.tools.tensor import tensor_files
from gdbext.tools.tensor.contents import VALUES_LIMIT, NothingToRead
from gdbext.tools.tensor.python_variable import FoundVariable, VariableFinder, chosen_frames, hint_at
from gdbext.tools.tensor.tensor_fields import WRAPPER
from gdbext.tools.tensor.tensor_files import read_slice, save
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.tensor.tensor_section import TensorSection, render
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.state.tensor import node_object
from gdbext.torch.structures import SparseRowTensor, SymbolicShapeMeta
from gdbext.torch.values.value_structures import SmallVector
from gdbext.torch.values.value_text import GradFunction, Part

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.render import Style

Result = TypeVar("Result")
_BY_COLUMN: dict[Member[int], str] = {
    SparseRowTensor.crow_indices_: "ccol_indices",
    SparseRowTensor.col_indices_: "row_indices",
}
"""Python's names of the members of an at::SparseCsrTensorImpl that is compressed by columns."""


class _Description:
    """Describes one tensor; a field that cannot be read becomes None and one of the problems."""

    def __init__(self, reporter: TensorReporter, session: Session, address: int, label: str) -> None:
        """``address`` is that of the TensorImpl; ``label`` is what the user called it."""
        self._reporter = reporter
        self._fields = reporter.fields
        self._session = session
        self._keys = session.dispatch_keys
        self._address = address
        self._label = label
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._facts = reporter.facts(address)
        self._names = self._keys.decode(self._facts.key_set)
        self._kind = reporter.kind(self._facts)

    def section(self) -> TensorSection:
        """Read every field, then the elements."""
        facts, fields, address, field = self._facts, self._fields, self._address, self._field
        tensor = fields.tensor(address)
        sizes = self._shape(facts.sizes, SymbolicShapeMeta.sizes_)
        is_symbolic = facts.sizes is None and sizes is not None
        # A method or a symbolic shape decides about contiguity if there are no strides: the flags are unused then.
        contiguity = None if facts.strides is None else field("contiguity", lambda: fields.contiguity(address))
        is_quantized = facts.dtype.startswith("q")
        section = TensorSection(
            address=address,
            implementation=facts.implementation,
            python_type=field("Python object", self._python_type),
            sizes=sizes,
            strides=self._shape(facts.strides, SymbolicShapeMeta.strides_),
            storage_offset=None if is_symbolic else field("storage offset", lambda: tensor.storage_offset_),
            dtype=facts.dtype,
            device=facts.device,
            layout=self._layout(),
            keyset=DispatchKeySet(facts.key_set, self._names),
            numel=None if facts.sizes is None else field("number of elements", lambda: tensor.numel_),
            requires_grad=field("requires_grad", lambda: fields.requires_grad(address)),
            is_leaf=field("grad_fn", lambda: not fields.grad_node(address)),
            is_view=field("view", lambda: fields.is_view(address)),
            grad_fn=field("grad_fn", self._grad_fn),
            grad=field("grad", self._grad),
            version=field("version", lambda: fields.version(address)),
            names=field("names", self._dimension_names),
            contiguity=contiguity or (),
            conjugate="Conjugate" in self._names,
            negative="Negative" in self._names,
            storage=field("storage", lambda: fields.storage(address)),
            quantization=field("quantizer", lambda: self._reporter.quantization(address)) if is_quantized else None,
            wraps=(*self._wraps(), *self._python_wraps()),
            parts=tuple(self._parts()),
            notes=(),
            name_=self._label,
        )
        if facts.implementation != UNDEFINED_TENSOR:
            self._note_inference(section)
            section = self._with_elements(section)
        return replace(section, notes=tuple(self._notes), problems=tuple(dict.fromkeys(self._problems)))

    def _note_inference(self, section: TensorSection) -> None:
        """Add a note on a tensor that was made in inference mode (TensorImpl::is_inference, c10/core/TensorImpl.h, 1.9
        to 2.15: neither an Autograd key nor ADInplaceOrView)."""
        has_keys = any(name.startswith(("Autograd", "ADInplaceOrView")) for name in self._names)
        if self._names and not has_keys and section.version is None:
            self._notes.append(
                "it is an inference tensor: it has no Autograd key and no version counter, so autograd cannot save it "
                "and it can be changed in place only in inference mode; clone it outside of torch.inference_mode()"
            )

    def _field(self, what: str, read: Callable[[], Result]) -> Result | None:
        """The result of ``read``; None if it raises GdbextError, which becomes a problem with ``what``."""
        try:
            return read()
        except GdbextError as error:
            self._problems.append(f"{what}: {error.what}")
            return None

    def _shape(self, stored: tuple[int, ...] | None, member: Inner[SmallVector]) -> tuple[int | None, ...] | None:
        """Sizes or strides: ``stored`` if they are numbers, else the ``member`` of the symbolic shape, with None for
        each that is an expression."""
        if stored is not None:
            return stored
        return self._field(_name_of(member), lambda: self._fields.symbolic(self._address, member))

    def _dimension_names(self) -> tuple[str | None, ...] | None:
        """The names of a named tensor's dimensions, None for one without name; None for any other tensor."""
        symbols = self._fields.dimension_names(self._address)
        if symbols is None:
            return None
        read = self._session.dispatcher.schemas.symbol_text
        return tuple(None if symbol is None else read(symbol) for symbol in symbols)

    def _layout(self) -> str:
        """The name in ``torch.layout``: ``strided``, ``sparse_csr``; ``unknown`` with a problem."""

        def stored_layout() -> str:  # the enumerator SparseCsr is torch.sparse_csr
            number = self._fields.tensor_member(self._address, SparseRowTensor.layout_)
            names = {value: name for name, value in self._reporter.layout.enum("c10::Layout").items()}
            if number not in names:
                raise BadData(f"there is no layout {number}")
            return names[number].replace("Sparse", "sparse_").lower()

        return self._kind.layout or self._field("layout", stored_layout) or "unknown"

    def _grad_fn(self) -> GradFunction | None:
        """The node of ``grad_fn``; None for a leaf. A PyNode is named after its torch.autograd.Function in Python."""
        node = self._fields.grad_node(self._address)
        if not node:
            return None
        function = self._fields.node(node)
        if function.name == "PyNode":
            python_node = node_object(Space(self._reporter.memory, self._reporter.layout), node)
            return function._replace(name=self._session.python_object(python_node).type or function.name)
        return function

    def _grad(self) -> str | None:
        """The gradient in short (``f32[4] cpu``); None without one."""
        grad = self._reporter.grad(self._address)
        return self._reporter.short(grad) if grad else None

    def _python_type(self) -> str | None:
        """The class of the tensor's Python object; None if there is no object, or Python cannot be read."""
        value = self._session.python_object(self._fields.python_object(self._address))
        return value.read(type_name) if value and value.python else None

    def _wraps(self) -> Iterator[Part]:
        """The tensors in a C++ wrapper."""
        for member in self._kind.wrapped:
            address = self._member("wrapped tensor", member)
            if address:
                yield self._part(_name_of(member), address)
        fake = self._field("fake device", lambda: self._fields.fake_device(self._address))
        if fake:
            self._notes.append(f"it stands for a tensor on {fake}")

    def _member(self, what: str, member: Member[int]) -> int | None:
        """The TensorImpl in a member of the tensor's C++ class; ``what`` names it in a problem."""
        return self._field(what, lambda: self._fields.tensor_member(self._address, member))

    def _python_wraps(self) -> Iterator[Part]:
        """The tensors in the attributes of a Python subclass; notes its fake device, mesh and placements."""
        reporter = self._reporter
        try:
            value = self._session.python_object(self._fields.python_object(self._address))
            if not value.python or not value or value.read(type_name) in ("Tensor", "Parameter"):
                return
            if value.type in ("UninitializedParameter", "UninitializedBuffer"):  # torch/nn/parameter.py
                self._notes.append("nothing to read: a lazy module sets its sizes in the first forward pass")
            for name, address in reporter.wrapped(value):
                yield self._part(name, address)
            for name in ("fake_device", "_fake_device", "device_mesh"):  # of FakeTensor and DTensor
                attribute = value[name]
                if not attribute.is_absent:
                    self._notes.append(f"{name.lstrip('_')} is {reporter.brief(attribute)}")
            placements = reporter.placements(value)
            if placements is not None:
                self._notes.append(f"placements: {placements}")
        except GdbextError as error:
            self._problems.append(f"Python attributes: {error.what}")

    def _parts(self) -> Iterator[Part]:
        """The tensors that a sparse or nested one is made of, with their statistics."""
        is_by_column = self._kind.parts and self._layout() in ("sparse_csc", "sparse_bsc")
        for member in self._kind.parts:
            address = self._member(_name_of(member), member)
            if address:
                name = _BY_COLUMN.get(member) if is_by_column else None
                yield self._part(name or _name_of(member), address, has_statistics=True)

    def _part(self, name: str, address: int, has_statistics: bool = False) -> Part:
        """The report on the TensorImpl at ``address``, which this tensor wraps or consists of."""
        sizes = None
        try:
            sizes = self._reporter.facts(address).sizes
        except GdbextError as error:
            self._problems.append(f"{name}: {error.what}")
        statistics = self._reporter.statistics(address) if has_statistics else None
        values = self._reporter.values(address, 16) if statistics else None
        return Part(name, address, self._reporter.short(address), sizes, statistics, values)

    def _with_elements(self, section: TensorSection) -> TensorSection:
        """The section with statistics, histogram and values; a note or a problem says why there are none."""
        try:
            contents = self._reporter.contents(self._facts)
            statistics = contents.statistics()
            histogram = None
            if statistics.finite and contents.geometry.element.kind != "bool":
                histogram = contents.histogram(*statistics.finite)
            values = contents.values_if_few(VALUES_LIMIT)
        except NothingToRead as reason:
            is_wrapper = section.wraps and section.storage and not section.storage.data
            self._notes.append(f"nothing to read: {WRAPPER if is_wrapper else reason.what}")
            return section
        except GdbextError as error:
            self._problems.append(f"elements: {error.what}")
            return section
        return replace(section, statistics=statistics, histogram=histogram, values=values)


def _name_of(member: Member[Any]) -> str:
    """The name of a C++ member without the underscore: ``values`` of ``values_``."""
    return member.path.rstrip("_")


def describe(session: Session, reporter: TensorReporter, address: int, label: str) -> TensorSection:
    """The report on the TensorImpl at ``address``; ``label``: what the user called it. Raises BadData (no tensor, a
    freed one), MemoryFault."""
    return _Description(reporter, session, address, label).section()


_EPILOG = """\
  dispatch-tensor 0x55d0c1a2b340        a TensorImpl, an at::Tensor or a Python object at that address
  dispatch-tensor '*$REGISTER'          what a register of the selected thread points at
  dispatch-tensor 'inputs[0]'           inside gdb or LLDB, with debug information: a C++ variable of the selected
                                        frame (a TensorImpl*, at::Tensor or PyObject*, or an object that holds one)
  dispatch-tensor --py self.weight      a Python variable of the selected thread; also batch[0], state["step"],
                                        net.layers.0.weight.grad

The tensor is read from the memory of a process or core; no code runs in the process. NaNs are counted but excluded from
min, max, mean and std; infinities are included. In JSON they are the strings "NaN", "Infinity" and "-Infinity".

--save writes the elements in row-major order as a safetensors file (safetensors.torch.load_file reads it), via a
temporary file: FILE is never partial. Quantized tensors are saved as the integers that they store, sparse ones as their
parts; complex128 and complex32, which the format does not support, with a trailing real/imaginary dimension; float4,
bits and integers of 1 to 7 bits as bytes.

--html writes a self-contained page: the histogram, and the first two-dimensional slice (or that of --slice) as a heat
map of at most 256 x 256 cells; for a larger slice, every n-th row and column is shown.

Cost: 1 GiB of float32 takes 1 to 3 s without a debugger (the default) if gdbext's Python has numpy (GDBEXT_PYTHON names
another Python), else several minutes, with progress on standard error. Memory is read in pieces of 4 MiB; there is
never a second copy of the tensor.
"""


class TensorTool(Tool):
    """The command ``dispatch-tensor`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        address_help = "an address, $REGISTER, *$REGISTER+8, or a C++ expression"
        parser.add_argument("address", nargs="*", metavar="ADDRESS|EXPR", help=address_help)
        py_help = "find the tensor by a Python variable, with attributes and indices"
        parser.add_argument("--py", metavar="NAME", help=py_help)
        thread_help = "look for the variable in this thread (default: the selected one)"
        parser.add_argument("--thread", metavar="TID|N", help=thread_help)
        frame_help = (
            "look for the variable in this Python frame; 0 is the innermost (default: all frames, starting at the one "
            "selected with up and down)"
        )
        parser.add_argument("--frame", metavar="N|FUNCTION", help=frame_help)
        parser.add_argument("--save", metavar="FILE", help="write the elements to FILE (safetensors)")
        parser.add_argument("--html", metavar="FILE", help="write a page with a slice as a heat map and the histogram")
        slice_help = "the slice to draw: an index for each dimension but the last two"
        parser.add_argument("--slice", metavar="I,J…", type=_indices, default=(), help=slice_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Describe the tensor. Raises UsageError, BadData (no tensor), TargetError (a file cannot be written)."""
        if args.frame and not args.py:
            raise UsageError("--frame chooses among Python variables", help="dispatch-tensor --py x --frame 0")
        if bool(args.address) == bool(args.py):
            raise UsageError("give one address or expression, or --py NAME", help="dispatch-tensor --py x")

        def read(session: Session) -> tuple[TensorReporter, TensorSection]:
            """Find the tensor by address or name, and describe it."""
            reporter = TensorReporter(session, _ProgressLine("read"))
            if not args.py:
                label = " ".join(args.address)
                address = tensor_at(session, reporter, evaluate(session, label))
                return reporter, describe(session, reporter, address, label)
            target = session.target
            thread = find_thread(target, args.thread) if args.thread else target.memory.selected_thread()
            address, variable = tensor_named(session, reporter, args.py, thread, args.frame)
            return reporter, replace(describe(session, reporter, address, args.py), whose=variable.whose)

        session, (reporter, section) = session.read_at_one_moment(read)
        if args.save:
            save(TensorReporter(session, _ProgressLine("saved")), section, args.save)
            section = replace(section, saved=args.save)
        if args.html:
            part, reason = None, ""
            try:
                part = read_slice(reporter.contents(reporter.facts(section.address)), args.slice)
            except UsageError:  # there is no such slice
                raise
            except GdbextError as error:
                reason = error.what
            origin = page_origin(session, host.called.command("dispatch-tensor"))
            whole_file.write(args.html, tensor_files.render(section, part, reason, origin).encode())
            section = replace(section, page=args.html)
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


def _indices(words: str) -> tuple[int, ...]:
    """Parse indices such as ``3,0``. Raises ArgumentTypeError."""
    try:
        return tuple(integer(word) for word in words.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{words!r} is not a list of indices such as 3,0") from None


class _ProgressLine:
    """Prints the progress on standard error each second: ``dispatch-tensor: read 40%``."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + 1.0

    def __call__(self, done: float) -> None:
        """Report that the part ``done`` (0 to 1) of the elements is finished."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 1.0
            print(f"dispatch-tensor: {escape(self._what)} {done:.0%}", file=sys.stderr, flush=True)


def evaluate(session: Session, expression: str) -> int:
    """The value of ``0x7f…``, ``*0x7f…``, ``$NAME``, ``*$NAME+8``, or of an expression in the debugger's language.
    Raises UsageError, MemoryFault."""
    word = expression.strip()
    match = re.fullmatch(rf"(\*?)\s*(?:tensor:|@)?{NUMBER}", word)
    if match:
        address = number(match.group(2)) & WORD
        return session.memory.u64(address) if match.group(1) else address
    value, refusal = None, None
    try:
        value = register_value(session, word, "the address")
    except UsageError as error:  # it may be $1 of gdb
        refusal = error
    if value is None:
        value = session.target.memory.evaluate(word)
    if value is not None:
        return value
    raise refusal or UsageError(
        f"{expression!r} is not an address",
        why="a tensor is named by the address of its TensorImpl, of an at::Tensor or of a Python object; C++ variables "
        "need a debugger",
        help="dispatch-tensor 0x7f…   dispatch-tensor '$NAME'   dispatch-tensor '*$NAME+8'   dispatch-tensor --py NAME",
    )


def tensor_at(session: Session, reporter: TensorReporter, address: int) -> int:
    """The TensorImpl at ``address``, of the at::Tensor there, or of the Python object there. Raises BadData."""
    if reporter.is_tensor(address):
        return address
    word = session.memory.try_u64(address)
    if word and reporter.is_tensor(word):
        return word
    tensor = reporter.tensor_or_none(session.python_object(address))
    if tensor is not None:
        return tensor
    if word is None:
        raise BadData(
            f"there is no tensor at {address:#x}: the address is not mapped",
            help="check the address",
        )
    raise BadData(
        f"there is no tensor at {address:#x}",
        why="the address is not that of a TensorImpl of libtorch, an at::Tensor or a Python tensor, or the tensor was "
        "freed",
        help="find tensors by name: dispatch-tensor --py NAME; arguments of operators: dispatch-bt --args",
    )


def tensor_named(
    session: Session, reporter: TensorReporter, name: str, thread: TargetThread | None, frame: str | None = None
) -> tuple[int, FoundVariable]:
    """The TensorImpl of a Python variable, and that variable. ``frame`` is the option --frame as of chosen_frames().
    Raises UsageError with the nearest names."""
    table = session.python_threads
    if not table.runtime:
        raise UsageError("there is no Python in this process that can be read", help="see why: dispatch-info")
    if not thread:
        raise UsageError("no thread is selected", help="choose one with: dispatch-tensor --py NAME --thread TID")
    frames = chosen_frames(session, thread, frame)
    stack = table.frames(thread.tid)
    variables = VariableFinder(stack if frames is None else PyStack(stack.python, frames))
    owner = name[: -len(".grad")] if name.endswith(".grad") else ""
    if owner:  # the .grad of a tensor is no attribute of a Python object
        variable = variables.find(owner)
        tensor = reporter.tensor_of(variable.value)
        if tensor is not None:
            grad = reporter.grad(tensor)
            if not grad:
                why = "backward() has not reached it, or zero_grad() was called"
                raise UsageError(f"{owner}.grad is None", why=why)
            return grad, variable
    variable = variables.find(name, lambda value: reporter.tensor_of(value) is not None)
    tensor = reporter.tensor_of(variable.value)
    if tensor is None:
        class_name = variable.value.read(type_name)
        if class_name in ("Tensor", "Parameter"):
            what = f"{name} is a tensor that was being created or replaced: its memory cannot be read"
            raise UsageError(what, why="the process runs meanwhile", help="try again")
        kind = "None" if class_name == "NoneType" else f"a {class_name}"
        hint = hint_at(name, variable.value)
        raise UsageError(f"{name} is not a tensor but {kind}", why=f"found in {variable.whose}", help=hint)
    return tensor, variable
