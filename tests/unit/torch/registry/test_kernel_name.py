"""Functions behind wrappers, operators behind words, schemas that releases declare."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gdbext.errors import LayoutError, UsageError
from gdbext.hosts.cli import launcher
from gdbext.torch.registry.kernel import (
    FUNCTION_POINTER,
    best_function_name,
    kernel_target,
    plain_name,
    stable_target,
    template_arguments,
)
from gdbext.torch.registry.operator_names import declared_schemas, matcher, unknown_operator
from gdbext.torch.registry.schema import SchemaResult, aliased_arguments, schema_results
from gdbext.torch.values.value_text import double_text, quoted
from support.recorded.recordings import Replay
from support.source import contract_schema

STACK = "std::vector<c10::IValue, std::allocator<c10::IValue> >*"
BOXED = f"(c10::OperatorKernel*, c10::OperatorHandle const&, c10::DispatchKeySet, {STACK})"
SIGNATURE = "at::Tensor (at::Tensor const&, at::Tensor const&)"
LIST = "c10::guts::typelist::typelist<at::Tensor const&, at::Tensor const&>"


def static(function: str) -> str:
    pointer = f"c10::CompileTimeFunctionPointer<{SIGNATURE}, &{function}>"
    return f"c10::impl::detail::WrapFunctionIntoFunctor_<{pointer}, at::Tensor, {LIST} >"


def runtime(function_type: str) -> str:
    return f"c10::impl::detail::WrapFunctionIntoRuntimeFunctor_<{function_type}, at::Tensor, {LIST} >"


def unboxed(functor: str) -> str:
    return f"c10::impl::wrap_kernel_functor_unboxed_<{functor}, {SIGNATURE}>::call(c10::OperatorKernel*, at::Tensor)"


LAMBDA = "TORCH_LIBRARY_init_x(torch::Library&)::{lambda(at::Tensor const&, long)#1}"
LAMBDA_OF_CLANG = "TORCH_LIBRARY_IMPL_init_x_Autograd_2(torch::Library&)::$_0"
WRAPPER = "at::(anonymous namespace)::wrapper_CPU_mm"
HOLDER = "torch::impl::dispatch::PythonKernelHolder"
RULE = f"at::functorch::rule<1, 0, -1>(c10::OperatorHandle const&, {STACK})"


def test_kernels_with_the_stable_abi() -> None:
    """The function that TORCH_BOX wraps, by the names of torchvision 0.29; one that was written by hand is its own."""
    parameters = "(unsigned long*, unsigned long, unsigned long)"
    kernel, result = "vision::ops::(anonymous namespace)::nms_kernel", "torch::stable::Tensor"
    types = f"{result} const&, {result} const&, double"
    boxer = f"torch::stable::detail::boxer_impl<{result}, c10::guts::typelist::typelist<{types}>, {result} ({types}), "
    assert stable_target(f"{boxer}&{kernel}>::boxed_fn{parameters}") == kernel
    assert stable_target(f"torch::stable::detail::boxer<{result} ({types}), &{kernel}>::boxed_fn{parameters}") == kernel
    assert stable_target(f"(anonymous namespace)::overwrites{parameters}") == "(anonymous namespace)::overwrites"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (unboxed(static(WRAPPER)), WRAPPER),
        (unboxed(static("a::plumbing<b (*)(c, d), &e::rule>")), "a::plumbing<b (*)(c, d), &e::rule>"),
        (unboxed(runtime("at::Tensor (*)(at::Tensor const&)")), FUNCTION_POINTER),
        (unboxed(runtime(LAMBDA)), LAMBDA),
        (unboxed(runtime(LAMBDA_OF_CLANG)), LAMBDA_OF_CLANG),
        (unboxed("ops::MyKernel"), "ops::MyKernel"),
        (f"c10::impl::make_boxed_from_unboxed_functor<{static('f::g')}, false>::call{BOXED}", "f::g"),
        (f"void c10::BoxedKernel::make_boxed_function<&(anonymous namespace)::f>{BOXED}", "(anonymous namespace)::f"),
        (f"void c10::BoxedKernel::make_boxed_function<&(void {RULE})>{BOXED}", "at::functorch::rule<1, 0, -1>"),
        (f"c10::BoxedKernel::makeFromFunctor<{HOLDER}>(x<y, z<y> >)::{{lambda{BOXED}#1}}::_FUN{BOXED}", HOLDER),
        ("at::native::mm(at::Tensor const&)", None),
        ("c10::BoxedKernel::make_boxed_function<&unfinished", None),
    ],
)
def test_the_function_behind_a_wrapper(name: str, function: str | None) -> None:
    assert kernel_target(name) == function


def test_arguments_nest_in_every_bracket_and_a_signature_without_types() -> None:
    text = "X<a<b, c>, d(e, f), {g, h}, i[j, k], operator<, operator->, l->m, n>rest"
    expected = ["a<b, c>", "d(e, f)", "{g, h}", "i[j, k]", "operator<", "operator->", "l->m", "n"]
    assert template_arguments(text, 2) == expected
    assert template_arguments("a, b", 0) == []
    for signature, name in (
        ("at::Tensor f::g<int, long>(int, long)", "f::g<int, long>"),
        ("f::g(int) const", "f::g"),
        ("f", "f"),
        ("void (anonymous namespace)::f(std::vector<int> (*)(long))", "(anonymous namespace)::f"),
        ("x::operator()(int)", "x::operator()"),
        ("x::operator bool()", "x::operator bool"),
    ):
        assert plain_name(signature) == name


def test_folded_code_is_named_by_key_and_operator() -> None:
    names = ("n::wrapper_SparseCPU__mm", "n::wrapper_CPU__mm", "n::wrapper_CPU__addmm")
    for words, found in ((("SparseCPU", "aten::mm"), 0), (("CPU", "aten::mm"), 1), (("", "aten::addmm"), 2), ((), 0)):
        assert best_function_name(names, *words) == names[found]


def test_what_a_word_means() -> None:
    names = ["aten::addmm", "aten::mm", "aten::mm.out", "other::mm"]
    for pattern, matched in {
        "mm": names[1:],
        "aten::mm": names[1:3],
        "mm.out": names[2:3],
        "aten::mm.default": names[1:2],
        "*mm*": names,
        "aten::*mm": names[:3],
        "*mm.out": names[2:3],
        "m": [],
        "MM": [],
    }.items():
        assert list(filter(matcher(pattern), names)) == matched, pattern


def test_closest_operators_are_offered_and_a_library_that_is_not_loaded_is_told() -> None:
    known = {"aten::mm", "aten::mm.out", "aten::addmm", "aten::bmm"}
    closest = {"aten::mmm": "aten::mm", "adddmm": "aten::addmm", "aten::mm.outt": "aten::mm.out", "zzz": "dispatch-op"}
    for word, close in closest.items():
        error = unknown_operator(word, known)
        assert isinstance(error, UsageError)
        assert close in error.help
        assert not error.why
    error = unknown_operator("mylib::foo", {"aten::mm", "my::foo"})
    assert "no operator of mylib:: is registered: the library or module with them is not loaded" in error.why
    assert not unknown_operator("my*::foo", {"aten::mm"}).why


def test_numbers_and_strings_as_the_jit_prints_them() -> None:
    expected = {1.0: "1.", 0.0: "0.", 1e-5: "1.0000000000000001e-05", 0.125: "0.125", 1e10: "10000000000", -2.0: "-2."}
    expected |= {1 / 3: "0.33333333333333331", float("inf"): "inf", 1e300: "1.0000000000000001e+300"}
    assert {value: double_text(value) for value in expected} == expected
    assert (double_text(-0.0), double_text(float("nan"))) == ("-0.", "nan")
    assert quoted("a\"b'c\\d\n\x01é") == '"a\\"b\\\'c\\\\d\\n\\001\\303\\251"'


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "schemas.txt.gz"
    a_line_too_few = gzip.compress(b"2.0.1\n0-7 aten::mm(Tensor a) -> ()\n", mtime=0)
    for data in (b"", b"2.0.1\n0-0 x", a_line_too_few):
        path.write_bytes(data)
        with pytest.raises(LayoutError):
            declared_schemas(str(path))


def told(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    return launcher.main(["op", *words]), "".join(capfd.readouterr())


def test_schemas_without_a_process(capfd: pytest.CaptureFixture[str]) -> None:
    status, text = told(capfd, "--torch", "2.13", "mm.dtype")
    assert status == 0
    assert text.splitlines() == [
        "aten::mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
        "  the same from 2.8.0 to 2.15.0",
        "1 schema of PyTorch 2.13.0; to see kernels, name a process: -p PID",
    ]
    document = json.loads(told(capfd, "--torch", "2.0.0", "aten::mm", "--json")[1])
    contract_schema.check(document)
    assert document["schemas"]["torch"] == "2.0.1"
    assert [each["overload"] for each in document["schemas"]["operators"]] == ["", "out"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("mm", "dispatch-op needs a process, a core or a recording, or a release: --torch 2.13"),
        ("--torch 1.9 mm", "the schemas of PyTorch 1.9 are not known"),
        ("--torch 2.13", "name one operator or pattern, or give --all"),
        ("--torch 2.13 mm --key CPU", "keys and kernels need a process"),
        ("--torch 2.0 mm.dtype", "PyTorch 2.0.1 declares no operator 'mm.dtype'"),
    ],
)
def test_what_is_not_known_without_a_process_is_said(words: str, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, text = told(capfd, *words.split())
    assert (status, text.splitlines()[0]) == (2, f"dispatch: {what}")


def test_a_filter_says_how_many_registrations_it_hides(replay: Callable[[str], Replay]) -> None:
    hung = replay("meta-mm")
    lines = hung.text("dispatch-op", "aten::mm", "--key", "CPU").splitlines()
    (whole,) = hung.document("dispatch-op", "aten::mm")["operators"]
    assert f"  1 registration, {len(whole['registrations']) - 1} under other keys" in lines


def test_results_and_arguments_that_are_written_to() -> None:
    for text, results in {
        "aten::mm(Tensor self, Tensor mat2) -> Tensor": [("Tensor", "result0", "")],
        "aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)": [("Tensor", "result0", "a")],
        "aten::max(Tensor self) -> (Tensor values, Tensor at)": [("Tensor", "values", ""), ("Tensor", "at", "")],
        "aten::split(Tensor(a -> *) self, int n) -> Tensor(a)[]": [("Tensor[]", "result0", "a")],
        "aten::f(Tensor self) -> ()": [],
    }.items():
        assert schema_results(text) == tuple(SchemaResult(*each) for each in results)
    assert aliased_arguments("aten::add.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)") == {"a": "out"}
    assert aliased_arguments("aten::view(Tensor(a) self) -> Tensor(a)") == {}
