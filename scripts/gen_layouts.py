#!/usr/bin/env python3
"""Generate layout files: offsets and enumerations of PyTorch's and CPython's structures, from headers.

The files of PyTorch share what they have in common, and so do those of CPython (gdbext/engine/layouts/__init__.py):
new ones join those in the folder.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib")]

import layout_documents  # noqa: E402
import torch_wheels  # noqa: E402
from packed_layouts import pack as pack_layouts  # noqa: E402

from gdbext.engine.layouts import store  # noqa: E402
from gdbext.engine.layouts.validate import KINDS  # noqa: E402
from gdbext.engine.targets.system.linux import signals_handled  # noqa: E402
from gdbext.errors import LayoutError  # noqa: E402
from gdbext.torch.measure import generate, pack  # noqa: E402
from gdbext.torch.measure.compiler import Known  # noqa: E402

Document = dict[str, Any]


def main() -> int:
    """Exit status 0 when every file was written, 1 when one could not be made, 2 for wrong usage."""
    options = _parser().parse_args()
    jobs: list[tuple[str, Callable[[], Iterator[Document]]]] = []
    known: Known = {}
    for folder in options.torch:
        jobs.append((str(folder), partial(_of_torch, folder.resolve(), options.compiler, known)))
    for prefix in options.cpython:
        jobs.append((str(prefix), partial(_of_cpython, prefix.resolve(), options.compiler)))
    for folders, document in (
        (options.saved_members, layout_documents.saved_members_document),
        (options.nccl_groups, layout_documents.nccl_groups_document),
    ):
        jobs += [(str(each), partial(_of_abis, document, each.resolve(), options.compiler)) for each in folders]
    if options.releases is not None:
        versions = options.releases or torch_wheels.released()
        jobs += [(version, partial(_of_release, version, options.compiler, known)) for version in versions]
    if not jobs and not options.index:
        _parser().error("nothing to do: give --torch, --cpython, --saved-members, --nccl-groups, --releases or --index")
    keep = _keep_in_cache if options.cache else partial(_keep, options.output)
    # so that programs are killed and folders are removed
    ending = lambda received, _frame: sys.exit(128 + received)  # noqa: E731
    with signals_handled((signal.SIGTERM, signal.SIGHUP), ending):
        failed = [name for name, make in jobs if not _do(name, make, keep)]
    if options.cache:
        return 1 if failed else 0
    pack.write(_index(options.output), options.output / store.INDEX)
    return 1 if failed else 0


def _index(folder: Path) -> dict[str, dict[str, str]]:
    """The table that store.index reads, made from the layout files themselves. Raises LayoutError."""
    tables: dict[str, dict[str, str]] = {"build_ids": {}, "torch": {}}
    for path in sorted(folder.glob("torch-*.json")):
        layout = store.load(path, full=True)
        tables["torch"][path.name] = layout.version
        if store.TORCH_LIBRARY in layout.build_ids:
            tables["build_ids"][layout.build_ids[store.TORCH_LIBRARY]] = path.name
    return tables


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--torch",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of an installed torch package (the one that holds include/ and lib/)",
    )
    parser.add_argument(
        "--releases",
        nargs="*",
        metavar="VERSION",
        help="released wheels, one after the other from the package index: these versions, or all from "
        "2.0.0 on. One takes 2 GB for a while, and some minutes unless its headers are those of "
        "another; both ABIs of the standard library are measured where the wheel has the old "
        "one",
    )
    parser.add_argument(
        "--saved-members",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of an installed torch package: where its nodes keep saved tensors",
    )
    parser.add_argument(
        "--nccl-groups",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of an installed torch package: what is read of NCCL's process groups",
    )
    parser.add_argument(
        "--cpython",
        type=Path,
        action="append",
        default=[],
        metavar="PREFIX",
        help="prefix of an installed CPython (PREFIX/include/python3.X/Python.h)",
    )
    parser.add_argument(
        "--output", type=Path, default=store.DATA, metavar="DIR", help="folder for the files (default: %(default)s)"
    )
    parser.add_argument("--compiler", metavar="CXX", help="compiler (default: g++, c++, clang++; gcc, cc, clang for C)")
    parser.add_argument(
        "--cache",
        action="store_true",
        help="write into the folder of layouts that were measured on this machine, each under the "
        "build-id of its libtorch_cpu.so; they may be copied into another machine's",
    )
    parser.add_argument("--index", action="store_true", help="only make the folder's index.json again")
    return parser


def _do(name: str, make: Callable[[], Iterator[Document]], keep: Callable[[Document], None]) -> bool:
    started = time.monotonic()
    try:
        for document in make():
            keep(document)
    except LayoutError as error:
        print(f"error: {name}: {error}\n  {error.why}\n  {error.help}", file=sys.stderr)
        return False
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return True


def _of_torch(torch: Path, compiler: str | None, known: Known) -> Iterator[Document]:
    """The layout of these headers; where the library has the old ABI, that of builds with the new one as well.

    What was ``known`` of equal headers of another release is not compiled again.
    """
    found = _measured(torch, compiler, known)
    yield found
    if not found["provenance"]["cxx11_abi"]:
        yield _measured(torch, compiler, known, cxx11=True)


def _measured(torch: Path, compiler: str | None, known: Known, cxx11: bool | None = None) -> Document:
    with tempfile.TemporaryDirectory(prefix="gdbext-layout-") as folder:
        return generate.torch_document(torch, compiler, cxx11, generate.MeasuringContext(Path(folder), known=known))


def _of_release(version: str, compiler: str | None, known: Known) -> Iterator[Document]:
    scratch = Path(tempfile.mkdtemp(prefix="gdbext-wheel-"))
    try:
        yield from _of_torch(torch_wheels.fetch(version, scratch), compiler, known)
    finally:
        shutil.rmtree(scratch)


def _of_cpython(prefix: Path, compiler: str | None) -> Iterator[Document]:
    yield layout_documents.cpython_document(prefix, compiler)


def _of_abis(document: Callable[..., Document], torch: Path, compiler: str | None) -> Iterator[Document]:
    """That of the library's ABI; where it is the old one, that of builds with the new one as well."""
    yield document(torch, compiler)
    if not generate.uses_cxx11_abi(torch / "lib" / "libc10.so"):
        yield document(torch, compiler, cxx11=True)


def _keep(folder: Path, document: Document) -> None:
    """Write one document under its identity and say what it lacks."""
    path = folder / f"{document['id']}.json"
    if document["kind"] in KINDS:
        others = (each for each in sorted(folder.glob(f"{document['kind']}-*.json")) if each != path)
        pack_layouts([*(store.read_layout(each, whole=True) for each in others), document], folder)
    else:
        pack.write(document, path)
    print(path)
    if document["absent"]:
        print(f"{path.name}: not in these headers: {document['absent']}", file=sys.stderr)


def _keep_in_cache(document: Document) -> None:
    """Write one document where a session looks for what was measured on this machine."""
    build_id = document["build_ids"].get(store.TORCH_LIBRARY)
    if build_id:
        path = Path(store.layout_cache(), f"{build_id}.json")
        pack.write(document, path)
        print(path)


if __name__ == "__main__":
    sys.exit(main())
