#!/usr/bin/env python3
"""Generate the schemas that `dispatch-op --torch VERSION` shows without a process: of each minor release, the operators
that native_functions.yaml of its wheel declares and those that torchgen of that wheel makes from them.

A wheel for macOS has the same file as one for Linux, and a tenth of its size. Needs PyYAML.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib")]

import torch_wheels  # noqa: E402

from gdbext.engine.layouts import store  # noqa: E402
from gdbext.torch.registry.operator_names import SCHEMAS  # noqa: E402

_PLATFORMS = tuple(f"macosx_{number}_0_arm64" for number in range(11, 16))
_PACKAGED = "torchgen/packaged/ATen/native"
_DECLARED = f"""
import sys
from torchgen.gen import parse_native_yaml
found = parse_native_yaml(sys.argv[1] + "/{_PACKAGED}/native_functions.yaml", sys.argv[1] + "/{_PACKAGED}/tags.yaml")
for each in found.native_functions:
    print(f"{{each.namespace}}::{{each.func}}")
"""
"""torchgen has had the operators that it makes itself (`autogen`) in that list since 2.0."""


def main() -> int:
    """Exit status 0: the file was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="*", type=Path, metavar="WHEEL", help="wheels; default: the package index's")
    parser.add_argument("--output", type=Path, default=Path(SCHEMAS), metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gdbext-schemas-") as folder:
        wheels = options.wheels or [download(version, Path(folder)) for version in newest_of_each_minor()]
        schemas = {wheel.name.split("-")[1].partition("+")[0]: declared(wheel) for wheel in wheels}
    options.output.write_bytes(gzip.compress(table(schemas).encode(), 9, mtime=0))
    print(f"{options.output}: {len(schemas)} releases, {options.output.stat().st_size} bytes")
    return 0


def newest_of_each_minor() -> list[str]:
    """The last release of each minor version on the package index."""
    return list({store.release(version)[:2]: version for version in torch_wheels.released()}.values())


def download(version: str, folder: Path) -> Path:
    """The wheel of that release for macOS."""
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    place = folder / version
    words = ["download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--implementation", "cp"]
    words += ["--python-version", "3.11", *platforms, "--dest", str(place), f"torch=={version}"]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return next(place.glob("torch-*.whl"))


def declared(wheel: Path) -> list[str]:
    """The schemas that a wheel declares, each with its namespace."""
    with tempfile.TemporaryDirectory(prefix="gdbext-wheel-") as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [each for each in archive.namelist() if each.startswith("torchgen/")])
        words = [sys.executable, "-c", _DECLARED, folder]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return sorted(set(done.stdout.splitlines()))


def table(schemas: Mapping[str, Sequence[str]]) -> str:
    """The releases, oldest first, in one line; then a line for each schema, behind the numbers of the first and the
    last release of each span that has it: "0-3,5-15"."""
    releases = sorted(schemas, key=store.release)
    holders: dict[str, list[int]] = {}
    for number, release in enumerate(releases):
        for schema in schemas[release]:
            holders.setdefault(schema, []).append(number)
    lines = [f"{_spans(numbers)} {schema}" for schema, numbers in sorted(holders.items())]
    return "".join(f"{line}\n" for line in (" ".join(releases), *lines))


def _spans(numbers: Sequence[int]) -> str:
    starts = [each for each in numbers if each - 1 not in numbers]
    ends = [each for each in numbers if each + 1 not in numbers]
    return ",".join(f"{first}-{last}" for first, last in zip(starts, ends))


if __name__ == "__main__":
    sys.exit(main())
