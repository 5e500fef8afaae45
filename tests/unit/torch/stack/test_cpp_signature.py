"""Functions by their names: parameters and how each is passed, the dispatcher's parts, what unboxed kernels return."""

from __future__ import annotations

import pytest

from gdbext.engine.arch import Passing
from gdbext.errors import MemoryFault
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.stack import roles as module
from gdbext.torch.stack.kernel_match import registered_signature, unboxed_entry_signature
from gdbext.torch.stack.roles import KernelSignature, kernel_signature, operator_method, parameters, static_handle
from gdbext.torch.values.cpp_values import passing_of

VIEW = "std::optional<std::basic_string_view<char, std::char_traits<char> > >"


def test_parameters() -> None:
    for name, kinds in {
        "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)": ["at::Tensor const&"] * 2,
        f"f({VIEW}, long)": [VIEW, "long"],
        "g<int (long, char)>::call(std::array<bool, 3ul>)": ["std::array<bool, 3ul>"],
    }.items():
        assert parameters(name) == kinds
    assert parameters("h()") == parameters("main") == []


@pytest.mark.parametrize(
    ("kinds", "passing"),
    [
        ("at::Tensor const&|c10::SymInt|std::optional<c10::ScalarType>|std::array<bool, 3ul>", Passing.WORD),
        ("std::optional<c10::SymInt>", Passing.WORD),
        ("c10::ArrayRef<long>|std::optional<long>", Passing.TWO_WORDS),
        ("std::basic_string_view<char, std::char_traits<char> >", Passing.TWO_WORDS),
        ("double", Passing.FLOAT),
        ("std::optional<double>", Passing.FLOAT_AND_WORD),
        ("c10::OptionalArrayRef<long>|std::optional<c10::ArrayRef<double> >", Passing.MEMORY),
        (VIEW, Passing.MEMORY),
        ("mine::Thing", None),
    ],
)
def test_how_they_are_passed(kinds: str, passing: Passing | None) -> None:
    for kind in kinds.split("|"):
        assert passing_of(kind) is passing, kind


def test_operator_method_and_static_handle() -> None:
    mm = "_ZN2at4_ops2mm4callERKNS_6TensorES4_"
    for name, expected in {
        mm: ("mm", "call"),
        "_ZN2at4_ops2mm10redispatchEN3c1014DispatchKeySetE": ("mm", "redispatch"),
        "_ZN2at4_ops11add__Tensor4callE": ("add__Tensor", "call"),
        "_ZN2at4_ops2mm6schemaE": ("", ""),
        "_ZN2at4_opsL23create_mm_typed_handleEv": ("", ""),
    }.items():
        assert operator_method(name) == expected
    assert static_handle(f"{mm}.cold") == f"_ZZ{mm[2:]}E2op"


TAKES = "c10::OperatorKernel*, c10::DispatchKeySet"


def named(result: str, arguments: str) -> str:
    wrapper = "c10::impl::detail::WrapFunctionIntoRuntimeFunctor_"
    functor = f"{wrapper}<{result} (*)({arguments}), {result}, X<{arguments}> >"
    return f"c10::impl::wrap_kernel_functor_unboxed_<{functor}, {result} ({arguments})>::call({TAKES}, {arguments})"


PLAIN = ("at::Tensor&", "void", "double", "long")
HIDDEN = ("at::Tensor", "std::tuple<at::Tensor, at::Tensor>", "std::vector<at::Tensor, std::allocator<at::Tensor> >")


def test_results_and_what_does_not_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "demangle", str)
    arguments = ("at::Tensor const&", "c10::ArrayRef<long>", "double")
    for result in (*PLAIN, *HIDDEN):
        found = kernel_signature([named(result, ", ".join(arguments))])
        assert found == KernelSignature(arguments, result in HIDDEN), result
    assert kernel_signature([named("c10::QScheme", ", ".join(arguments))]) is None
    good = named("at::Tensor", "long")
    assert kernel_signature([good, named("at::Tensor", "long")]) is not None
    equal_code, no_kernel = (
        [good, named("at::Tensor", "double")],
        good.replace("::call(c10::OperatorKernel*, ", "::call("),
    )
    for names in ([], ["at::mm(at::Tensor const&)"], equal_code, [no_kernel]):
        assert kernel_signature(names) is None


class Registered:
    def __init__(self, plain: str = "", symbolic: str = "") -> None:
        self._types = plain, symbolic

    def function_type(self, symbolic: bool = False) -> str:
        found = self._types[symbolic]
        if found == "unmapped":
            raise MemoryFault(0x1000, 8)
        return found


@pytest.mark.parametrize(
    ("text", "parameters", "hidden"),
    [
        ("at::Tensor (at::Tensor const&, std::optional<long>)", ("at::Tensor const&", "std::optional<long>"), True),
        ("at::Tensor& (at::Tensor&)", ("at::Tensor&",), False),
        ("std::tuple<at::Tensor, at::Tensor> ()", (), True),
        ("void (std::array<bool, 3ul>)", ("std::array<bool, 3ul>",), False),
        *((text, (), None) for text in ("", "at::Tensor", "c10::QScheme (at::Tensor const&)", "(nothing", "unmapped")),
    ],
)
def test_types_that_kernels_were_registered_with(text: str, parameters: tuple[str, ...], hidden: bool | None) -> None:
    """Among those that say nothing is one whose library was unloaded."""
    found = registered_signature(Registered(text))  # type: ignore[arg-type]
    assert found == (None if hidden is None else KernelSignature(parameters, hidden))


def test_an_entry_without_a_name() -> None:
    """It takes what the operator's kernels of its kind take; another function is no entry."""
    operator = Registered("void (long)", "void (c10::SymInt)")
    kernel = KernelFunction(boxed=0x1000, functor=0, unboxed=0x2000, sym_unboxed=0x3000)
    taken = [unboxed_entry_signature(operator, kernel, at, ()) for at in (0x1000, 0x2000, 0x3000)]  # type: ignore[arg-type]
    assert taken == [None, KernelSignature(("long",), False), KernelSignature(("c10::SymInt",), False)]
