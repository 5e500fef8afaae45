"""Where the ranks of a group meet: the address of a ``c10d::Store`` in memory.

Source: torch/csrc/distributed/c10d/Store.hpp, PrefixStore.hpp, TCPStore.hpp, FileStore.hpp of 2.13.0.
"""

from __future__ import annotations

from gdbext.errors import GdbextError
from gdbext.layouts.layout import Layout
from gdbext.process.memory import Memory
from gdbext.process.struct_view import StructView
from gdbext.torch.distributed.process_groups import ProcessGroupReader
from gdbext.torch.values.containers import string_reader

_NESTING = 16
"""PrefixStores around a store: each group and each of its backends adds one."""


def store_address(memory: Memory, layout: Layout, groups: ProcessGroupReader, address: int) -> str | None:
    """``tcp://host:port``, ``file:///path``, ``hash`` (in this process); None where it cannot be read."""
    try:
        return _read(memory, layout, groups, address)
    except GdbextError:
        return None


def _read(memory: Memory, layout: Layout, groups: ProcessGroupReader, address: int) -> str | None:
    strings = string_reader(memory, layout)
    for _ in range(_NESTING):
        name = groups.class_of(address)
        if name == "c10d::HashStore":
            return "hash"
        if name not in ("c10d::PrefixStore", "c10d::TCPStore", "c10d::FileStore"):
            return None
        view = StructView(memory, address, layout.struct(name))
        if name == "c10d::TCPStore":
            host = layout.struct("c10d::detail::SocketAddress")
            socket = view.view("addr_", host)
            return f"tcp://{strings.read(socket.address('host'), 4096)}:{socket.u16('port')}"
        if name == "c10d::FileStore":
            return f"file://{strings.read(view.address('path_'), 4096)}"
        address = view.pointer("store_")
    return None
