"""What unboxed kernels take and return, by the names of the functions that the dispatcher calls."""

from __future__ import annotations

import pytest

from gdbext.torch.stack import kernel_match as module
from gdbext.torch.stack.kernel_match import KernelSignature, kernel_signature

TAKES = "c10::OperatorKernel*, c10::DispatchKeySet"


def named(result: str, arguments: str) -> str:
    """As a demangled name has it."""
    wrapper = "c10::impl::detail::WrapFunctionIntoRuntimeFunctor_"
    functor = f"{wrapper}<{result} (*)({arguments}), {result}, X<{arguments}> >"
    return f"c10::impl::wrap_kernel_functor_unboxed_<{functor}, {result} ({arguments})>::call({TAKES}, {arguments})"


@pytest.mark.parametrize(("result", "hidden"), [
    ("at::Tensor", True), ("at::Tensor&", False), ("void", False), ("double", False), ("long", False),
    ("std::tuple<at::Tensor, at::Tensor>", True), ("std::vector<at::Tensor, std::allocator<at::Tensor> >", True),
    ("c10::QScheme", None),
])  # fmt: skip
def test_results(monkeypatch: pytest.MonkeyPatch, result: str, hidden: bool | None) -> None:
    monkeypatch.setattr(module, "demangle", str)
    found = kernel_signature([named(result, "at::Tensor const&, c10::ArrayRef<long>, double")])
    expected = KernelSignature(("at::Tensor const&", "c10::ArrayRef<long>", "double"), bool(hidden))
    assert found == (None if hidden is None else expected)


def test_what_does_not_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "demangle", str)
    good = named("at::Tensor", "long")
    assert kernel_signature([]) is None
    assert kernel_signature(["at::mm(at::Tensor const&)"]) is None
    assert kernel_signature([good, named("at::Tensor", "long")]) is not None
    assert kernel_signature([good, named("at::Tensor", "double")]) is None, "equal code of two kernels"
    assert kernel_signature([good.replace("::call(c10::OperatorKernel*, ", "::call(")]) is None
