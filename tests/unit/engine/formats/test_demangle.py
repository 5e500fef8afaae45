"""Demangling: what c++filt prints, and nothing worse than the name itself for garbage."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from gdbext.engine.formats import demangle as module
from gdbext.engine.formats.demangle import demangle
from gdbext.engine.formats.mangled_name import UNLIMITED, printed_size
from gdbext.engine.formats.symbol_cache import TextCache, text_cache
from support.programs.work import lines_run


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_ZN2at4_ops2mm4callERKNS_6TensorES4_", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)"),
        ("_ZZN2at4_ops2mm4callERKNS_6TensorES4_E2op", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)::op"),
        ("_ZGVZ1fvE1x", "guard variable for f()::x"),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()"),
        ("_Z1fv.isra.0", "f() [clone .isra.0]"),
        ("_Z1fv.constprop.0.cold", "f() [clone .constprop.0] [clone .cold]"),
        ("main", "main"),
        ("i", "i"),
        ("", ""),
        ("_Z", "_Z"),
        ("_ZN", "_ZN"),
        ("_Z1fv\0_Z1gv", "_Z1fv\0_Z1gv"),
        ("_Z\udcff", "_Z\udcff"),
    ],
)
def test_known_names(name: str, text: str) -> None:
    assert demangle(name) == text


def test_names_that_are_too_long_or_no_text_are_left_alone() -> None:
    assert len(demangle(_doubling(5))) > 10_000
    assert demangle(_doubling(8)) == _doubling(8)
    pointers = ("_Z1f" + "P" * 65000, "_Z1f" + "P" * 70000)
    for name in ("_Z" + "N1a" * 30000, *pointers, "_Z70000" + "a" * 70000, "_Z" + chr(0xD800)):
        assert demangle(name) == name


def _doubling(times: int) -> str:
    """A name whose every argument has the one before it four times: 4 ** times as long."""
    return "_Z1f1AIiE" + "".join(f"S_I{_reference(number + 1) * 4}E" for number in range(times))


def _reference(number: int) -> str:
    return f"S{number - 1:X}_" if number <= 16 else f"S{chr(ord('A') + number - 11)}_"


def test_a_name_that_stands_for_gigabytes_stays_as_it_is() -> None:
    name = _doubling(17)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 250 < len(name) < 310
    assert demangle(name) == name
    assert lines_run(lambda: demangle(name)) < 50_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 20_000


@pytest.mark.parametrize("times", range(1, 8))
def test_the_bound_of_a_name_is_never_below_its_text(times: int) -> None:
    """S is a type, and ZS_, which is behind it, is the substitution S_ or number 1,289; zeros in front say nothing."""
    name = _doubling(times)
    for each in (name, name + "P" + _reference(times), "_Z1fIJ1A1B1CEEvDpT_", "_Z1fIJ1A1B1CEEvDpPFvT_T_E"):
        assert len(demangle(each)) <= printed_size(each)
    zeros = re.sub("S([0-9A-Z])_", r"S000000000\1_", name)
    for each in (name.replace("I", "I2ZS"), re.sub("S([0-9A-Z]?_)", r"2ZSS\1", name), zeros):
        size = printed_size(each)
        assert len(demangle(each)) <= size <= UNLIMITED


@pytest.mark.parametrize(
    "name",
    [
        "_ZN11ska_ordered8detailv317sherwood_v3_tableISt4pairIN3c106IValueES4_ES4_NS3_6detail11DictKeyHashENS0_16KeyOrVal"
        "ueHasherIS4_S5_S7_EENS6_14DictKeyEqualToENS0_18KeyOrValueEqualityIS4_S5_SA_EESaIS5_ESaINS0_17sherwood_v3_entryIS5"
        "_EEEE15emplace_new_keyIS4_JNS3_4ListIS4_EEEEES2_INSH_18templated_iteratorIS5_EEbEaPSF_OT_DpOT0_",
        "_ZNO3c1017RegisterOperators2opIFN2at6TensorERKNS_4ListIS3_EEEEENSt9enable_ifIXaasrNS_4guts16is_function_typeIT_EE"
        "5valuent9is_same_vISC_FvRKNS_14OperatorHandleEPSt6vectorINS_6IValueESaISI_EEEEEOS0_E4typeERKNSt7__cxx1112basic_"
        "stringIcSt11char_traitsIcESaIcEEEPSC_ONS0_7OptionsE",
        "_ZZN8pybind1112cpp_function10initializeIZNS_6detail8initimpl11constructorIJN5torch8profiler4impl13ProfilerState"
        "EbbbbbNS7_18ExperimentalConfigENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEEE7executeINS_6class_INS7_14"
        "ProfilerConfigEJEEEJNS_3argESL_SL_SL_SL_SL_SL_NS_5arg_vEELi0EEEvRT_DpRKT0_EUlRNS2_16value_and_holderES8_bbbbbS9_"
        "SF_E_vJSU_S8_bbbbbS9_SF_EJNS_4nameENS_9is_methodENS_7siblingENS2_24is_new_style_constructorESL_SL_SL_SL_SL_SL_SL_"
        "SM_EEEvOSN_PFT0_DpT1_EDpRKT2_ENUlRNS2_13function_callEE_4_FUNES1B_",
        "_ZSt12construct_atIN3c108ArgumentEJRNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt10shared_ptrINS0_10"
        "TensorTypeEERKSt9nullopt_tSG_bEEDTgsnwcvPvLi0E_T_pispcl7declvalIT0_EEEEPSI_DpOSJ_.isra.0.cold",
    ],
)
def test_real_names_with_many_references_are_shown(name: str) -> None:
    assert demangle(name) != name
    assert len(demangle(name)) <= printed_size(name) < 1 << 24


def test_without_any_library_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LIBRARIES", ("libno-such-library.so.9",))
    remembering = (demangle, module._load, text_cache)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    for each in remembering:
        each.cache_clear()
    try:
        assert demangle("_Z1fv") == "_Z1fv"
    finally:
        for each in remembering:
            each.cache_clear()


def test_of_names_that_are_kept_only_what_is_whole_is_believed(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder = str(tmp_path / "made")
    kept = TextCache(folder, "demangled")
    assert kept.text(b"_Z1fv") is None
    kept.keep(b"_Z1fv", b"f()")
    kept.keep(b"_Z1gv", b"g()")
    kept.keep(b"_Z1h\n", b"h()")
    kept = TextCache(folder, "demangled")
    assert [kept.text(name) for name in (b"_Z1fv", b"_Z1gv", b"_Z1h", b"_Z1", b"Z1fv")] == [b"f()", b"g()"] + 3 * [None]
    file = tmp_path / "made" / "demangled"
    file.write_bytes(file.read_bytes().replace(b"f()", b"e()")[:-3])
    kept = TextCache(folder, "demangled")
    for times in ("searched for", *range(100), "looked up"):
        assert [kept.text(name) for name in (b"_Z1fv", b"_Z1gv")] == [None, None], times


def test_a_file_of_names_is_bounded_and_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "demangled"
    kept = TextCache(str(tmp_path), "demangled")
    for number in range(100):
        kept.keep(b"_Z1f%d" % number, b"x" * 1000)
    assert 60_000 < file.stat().st_size < 70_000, "a process that asks for thousands adds the first few"
    file.write_bytes(bytes(1 << 18))
    TextCache(str(tmp_path), "demangled").keep(b"_Z1fv", b"f()")
    assert TextCache(str(tmp_path), "demangled").text(b"_Z1fv") == b"f()", "a full one begins anew"
    tmp_path.chmod(0o777)
    assert TextCache(f"{tmp_path}/.", "demangled").text(b"_Z1fv") is None
