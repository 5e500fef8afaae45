"""The version of a process's torch, by the files beside its libraries."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.targets.host_files import HostFiles
from gdbext.torch.layout_choice import torch_version


def table(*paths: Path, status: str = "ok") -> ModuleTable:
    """As much of a process's modules as the version takes."""
    modules = [SimpleNamespace(name=path.name, image=SimpleNamespace(path=str(path)), status=status) for path in paths]

    def named(name: str) -> Any:
        return next((module for module in modules if module.name.startswith(name)), None)

    return cast(ModuleTable, SimpleNamespace(modules=modules, named=named, files=HostFiles()))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """As conda-forge installs it: the libraries in lib/ of the environment, the package elsewhere."""
    package = tmp_path / "lib/python3.12/site-packages/torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text("__version__ = '2.6.0'\ngit_version = 'ab12'\n")
    return tmp_path


def test_libraries_in_the_folder_of_an_environment(prefix: Path) -> None:
    library, package = prefix / "lib/libtorch_cpu.so", prefix / "lib/python3.12/site-packages/torch"
    extension = package / "_C.cpython-312-x86_64-linux-gnu.so"
    assert torch_version(table(library)) == ""
    assert torch_version(table(library, extension)) == "2.6.0"
    assert torch_version(table(library, extension, status="other")) == "", "the files are not those in memory"
    assert torch_version(table(library, package / "other/_C.cpython-312-x86_64-linux-gnu.so")) == ""


def test_a_wheel_and_a_library_with_its_version_in_its_name(prefix: Path) -> None:
    package = prefix / "lib/python3.12/site-packages/torch"
    assert torch_version(table(package / "lib/libtorch_cpu.so")) == "2.6.0"
    assert torch_version(table(prefix / "lib/libtorch_cpu.so.1.13.0")) == "1.13.0"
    assert torch_version(table(package / "_C.so")) == "", "no libtorch_cpu.so"
