"""One call of an operator's kernel with its values, before or after: as JSON, and as text.

The text imitates Inductor's debug printer (torch/_inductor/codegen/debug_utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gdbext.engine.terminal import shown_json
from gdbext.engine.vocabulary import json_member
from gdbext.errors import BadData, GdbextError
from gdbext.render import escape
from gdbext.render.plain_json import plain
from gdbext.torch.values.value_text import NO_STATISTICS, Statistics, number_text

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal, Sparse
    from gdbext.tools.tensor.tensor_report import TensorReporter
    from gdbext.torch.values.cpp_values import Value

BEFORE, AFTER = "before_launch", "after_launch"


class LaunchTensor(NamedTuple):
    """A tensor among the values; ``name``: of its argument, with its number in a list ("tensors.0")."""

    name: Internal[str]
    address: Hexadecimal
    short: str
    dtype: str
    sizes: tuple[int, ...] | None
    statistics: Internal[Statistics | None]
    """None where there are no elements to read."""

    @json_member(after="sizes")
    def numel(self) -> int | None:
        """Number of elements that were examined."""
        return self.statistics.numel if self.statistics else None

    @json_member(after="numel")
    def written_statistics(self) -> Inline[Statistics]:
        """The statistics; null each where there are no elements."""
        return self.statistics or NO_STATISTICS


_NO_VALUE = object()


class ArgumentReport(NamedTuple):
    """An argument or a result in JSON: a tensor, or the text of another value."""

    name: str
    value: Sparse[str | object | None] = _NO_VALUE
    tensor: Sparse[LaunchTensor | None] = None


class LaunchValue(NamedTuple):
    """An argument or a result; ``text`` is "" if it is unknown."""

    name: str
    text: str
    tensors: tuple[LaunchTensor, ...] = ()
    type: str = ""
    """The type in the schema; "" for a result."""


class KernelLaunch(NamedTuple):
    """A call of an operator's kernel, before or after it."""

    moment: Internal[str]
    """BEFORE or AFTER."""
    op: str
    overload: str
    call: int
    """Number of the operator's call, from 0."""
    kernel: str
    key: str
    tid: int
    values: Internal[tuple[LaunchValue, ...]]
    returned: Internal[int] = 0
    """Number of results, which come last among the values."""

    @json_member(after="overload")
    def when(self) -> str:
        return self.moment.partition("_")[0]

    @json_member(after="tid")
    def arguments(self) -> tuple[ArgumentReport, ...]:
        return arguments_of(self.values)

    @property
    def results(self) -> tuple[LaunchValue, ...]:
        """The values that the operator returned; () before the call."""
        return self.values[len(self.values) - self.returned :]

    @property
    def qualified(self) -> str:
        return f"{self.op}.{self.overload}" if self.overload else self.op


class Find(NamedTuple):
    """The call that produced the first bad number."""

    launch: KernelLaunch
    history: tuple[KernelLaunch, ...]
    """The calls before it, latest last."""
    is_certain: bool
    """True if all arguments were readable; otherwise an unreadable one may have had a bad number already."""
    file: str = ""
    line: int | None = None
    """The line from which Python called it."""


SAMPLE_LIMIT = 1 << 18
"""Most elements of a tensor that are examined while the process is stopped; of larger ones, a sample."""


class LaunchValues(NamedTuple):
    """Describes values, with the statistics of tensors where they are wanted."""

    reporter: TensorReporter
    statistics: bool

    def describe(self, name: str, value: Value | None, kind: str) -> LaunchValue:
        """Describe an argument or result; ``value``: None if unknown; ``kind``: its type in the schema."""
        if not value:
            return LaunchValue(name, "", type=kind)
        tensors = []
        for number, address in enumerate(value.tensors if value.text != "undefined" else ()):
            if not address:
                continue
            try:
                facts = self.reporter.facts(address)
            except GdbextError:
                continue
            statistics = self.reporter.statistics(address, SAMPLE_LIMIT) if self.statistics else None
            title = f"{name}.{number}" if value.text.startswith("[") else name
            tensors.append(LaunchTensor(title, address, facts.short, facts.dtype, facts.sizes, statistics))
        return LaunchValue(name, value.text, tuple(tensors), kind)

    def tensor_text(self, address: int) -> str:
        """A tensor in short form. Raises BadData where there is none, MemoryFault."""
        if address & 7 or not address:
            raise BadData(f"there is no tensor at {address:#x}")
        return self.reporter.facts(address).short


def arguments_of(values: Iterable[LaunchValue]) -> tuple[ArgumentReport, ...]:
    """The values in JSON, with an entry for each tensor of a list."""
    reports: list[ArgumentReport] = []
    for value in values:
        if value.tensors:
            reports += [ArgumentReport(tensor.name, tensor=tensor) for tensor in value.tensors]
        else:
            reports.append(ArgumentReport(value.name, value.text or None))
    return tuple(reports)


def find_document(find: Find) -> dict[str, Any]:
    """The JSON object of a find; ``result``: a list if there is not exactly one."""
    launch = find.launch
    given = launch.values[: len(launch.values) - launch.returned]
    results = plain(arguments_of(launch.results))
    return {
        "op": launch.op,
        "overload": launch.overload,
        "kernel": launch.kernel,
        "key": launch.key,
        "call": launch.call,
        "tid": launch.tid,
        "result": results[0] if len(results) == 1 else results,
        "arguments": plain(arguments_of(given)),
        "certain": find.is_certain,
        "file": find.file or None,
        "line": find.line,
        "history": plain(find.history),
    }


def json_lines(launch: KernelLaunch) -> Iterator[str]:
    yield shown_json(json.dumps(plain(launch), ensure_ascii=True))


def launch_lines(launch: KernelLaunch) -> Iterator[str]:
    """The lines on a launch: each value with a headline, tensors with their statistics; the kernel without values."""
    if not launch.values:
        yield kernel_line(launch)
    for value in launch.values:
        headline = f"[ {launch.moment} - {escape(launch.qualified)} - {value.name} ]"
        if not value.tensors:
            yield f"{headline} {escape(value.text) or '?'}"
        for tensor in value.tensors:
            yield headline if tensor.name == value.name else f"[ {launch.moment} - {launch.qualified} - {tensor.name} ]"
            statistics = tensor.statistics
            if statistics:
                yield f"Number of elements: {statistics.numel}" + ("  (a sample)" if statistics.sampled else "")
            yield f"Size: {'unknown' if tensor.sizes is None else list(tensor.sizes)}"
            yield f"Dtype: torch.{tensor.dtype}"
            if not statistics:
                yield "no elements to read"
                continue
            numbers = statistics.mean, statistics.min, statistics.max, statistics.std
            for name, number in zip(("Mean", "Min", "Max", "Std"), numbers):
                yield f"{name}: {'unknown' if number is None else number_text(number)}"
            if statistics.nan or statistics.inf:
                yield f"NaN: {statistics.nan}, Inf: {statistics.inf}"


def kernel_line(launch: KernelLaunch) -> str:
    """The heading of a kernel: ``[ before_launch: KERNEL ]``."""
    return f"[ {launch.moment}: {escape(launch.kernel)} ]"


@dataclass
class LaunchPrinter:
    """Shows launches as they happen."""

    show: Callable[[str], None]
    lines: Callable[[KernelLaunch], Iterator[str]]

    def launch(self, launch: KernelLaunch, reporter: object) -> bool:
        """Raises OSError."""
        del reporter
        self.show("".join(f"{line}\n" for line in self.lines(launch)))
        return False
