"""PyTorch as the library shows it: what dispatch-op and dispatch-tensor report of operators and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from gdbext.diagnosis.reporting import torch_version
from gdbext.engine.targets.budget import CallLimits
from gdbext.engine.terminal import escape
from gdbext.errors import UsageError
from gdbext.hosts.library import notebook
from gdbext.tools import running

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.tools.operators.op import OperatorReport, OperatorSection, TableChoice
    from gdbext.tools.tensor.tensor_section import TensorSection
    from gdbext.torch.registry.dispatch_table import OperatorRegistration


class Torch:
    """The PyTorch of a process."""

    def __init__(self, session: Session, limits: CallLimits) -> None:
        self._session = session
        self._limits = limits

    @property
    def version(self) -> str | None:
        """The version, as torch.__version__ has it; None without PyTorch."""
        return torch_version(self._session)

    @property
    def operators(self) -> Operators:
        """All operators, by qualified name."""
        return Operators(self._session, self._limits)

    def tensor(self, address: int) -> Tensor:
        """The tensor at an address: of a TensorImpl, of an at::Tensor or of a Python object. Raises GdbextError."""
        return self._tensor(f"{address:#x}")

    def tensor_named(self, name: str, tid: int) -> Tensor:
        """The tensor of a Python variable of a thread: ``x``, ``self.weight``, ``batch[0]``. Raises GdbextError."""
        return self._tensor("--py", name, "--thread", str(tid))

    def _tensor(self, *words: str) -> Tensor:
        """The tensor that dispatch-tensor shows for these arguments. Raises GdbextError."""
        with self._limits.watch():
            report = running.report("dispatch-tensor", words, lambda: self._session)
        return Tensor(cast("TensorSection", report.sections[0]))

    def __repr__(self) -> str:
        return f"<Torch {self.version}>"


class Operators(Mapping[str, "OperatorView"]):
    """Qualified names → operators; each is read when it is asked for."""

    def __init__(self, session: Session, limits: CallLimits) -> None:
        self._session = session
        self._limits = limits

    def __getitem__(self, name: str) -> OperatorView:
        operators = self.find(name) if name in self._session.dispatcher.names else []
        if not operators:
            raise KeyError(name)
        return operators[0]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._session.dispatcher.names))

    def __len__(self) -> int:
        return len(self._session.dispatcher.names)

    def find(self, pattern: str) -> list[OperatorView]:
        """The operators that match: ``mm``, of that base name; ``*mm*``, a glob. Raises UsageError."""
        with self._limits.watch():
            report = running.report("dispatch-op", [pattern], lambda: self._session)
        section = cast("OperatorSection", report.sections[0])
        return [OperatorView(each) for each in section.operators]

    def __repr__(self) -> str:
        return f"<{len(self)} operators>"


class OperatorView:
    """One operator, under the names of the JSON document."""

    def __init__(self, report: OperatorReport) -> None:
        self._report = report

    @property
    def op(self) -> str:
        """The name without the overload: ``aten::mm``."""
        return self._report.op

    @property
    def overload(self) -> str:
        """``out``; "" for the one without a name."""
        return self._report.overload

    @property
    def qualified(self) -> str:
        """The name with the overload: ``aten::mm.out``."""
        return self._report.qualified

    @property
    def address(self) -> int:
        """The address of its ``c10::Dispatcher::OperatorDef`` in memory."""
        return self._report.address

    @property
    def schema(self) -> str | None:
        """``aten::mm(Tensor self, Tensor mat2) -> Tensor``."""
        return self._report.schema

    @property
    def debug(self) -> str | None:
        """The source line where the schema was registered."""
        return self._report.debug

    @property
    def registrations(self) -> tuple[OperatorRegistration, ...]:
        """The kernels that were registered for it. Raises UsageError where they cannot be read."""
        if self._report.registrations is None:
            raise UsageError(
                f"the registrations of {self.qualified} cannot be read", help=f"see why: dispatch-op {self.qualified}"
            )
        return self._report.registrations

    @property
    def table(self) -> Mapping[str, TableChoice]:
        """Dispatch key → the kernel that it leads to, and why."""
        return {entry.key: entry.choice for entry in self._report.table}

    def __repr__(self) -> str:
        return f"<Operator {escape(self.schema or self.qualified)}>"

    def _repr_html_(self) -> str:
        rows = [(key, each.function or "", each.reason or "") for key, each in self.table.items() if each.valid]
        return notebook.table(("key", "kernel", "reason"), rows, title=self.schema or self.qualified)


class Tensor:
    """One tensor. What is not known is None."""

    def __init__(self, section: TensorSection) -> None:
        self.report = section  # all that dispatch-tensor tells: storage, autograd, statistics, histogram, parts

    @property
    def address(self) -> int:
        """The address of its ``c10::TensorImpl`` in memory."""
        return self.report.address

    @property
    def sizes(self) -> tuple[int | None, ...] | None:
        """Its shape; None for a symbolic size."""
        return self.report.sizes

    @property
    def strides(self) -> tuple[int | None, ...] | None:
        """Strides of its dimensions, in elements."""
        return self.report.strides

    @property
    def dtype(self) -> str:
        """The type of its elements: ``float32``."""
        return self.report.dtype

    @property
    def device(self) -> str | None:
        """The device that it is on: ``cpu``, ``cuda:0``."""
        return self.report.device

    @property
    def numel(self) -> int | None:
        """The number of its elements."""
        return self.report.numel

    @property
    def requires_grad(self) -> bool | None:
        """Autograd records what is done with it."""
        return self.report.requires_grad

    @property
    def values(self) -> object:
        """Nested lists as ``tolist()`` gives them, where there are at most 64 elements."""
        return self.report.values

    def __repr__(self) -> str:
        return f"<Tensor {escape(f'{self.dtype}{list(self.sizes or ())} {self.device}')} at {self.address:#x}>"

    def _repr_html_(self) -> str:
        report = self.report
        facts = [("dtype", self.dtype), ("sizes", str(self.sizes)), ("strides", str(self.strides))]
        facts += [("device", str(self.device)), ("keyset", ", ".join(report.keyset.keys)), ("values", str(self.values))]
        return notebook.table(("", ""), facts, f"{report.implementation} at {self.address:#x}")
