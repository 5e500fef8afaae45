"""What the comments in Inductor's modules say: which graph, and which nodes a line or a kernel was made of."""

from __future__ import annotations

from gdbext.tools.compile import compiled_frames

MODULE = """# AOT ID: ['1_backward']
from ctypes import c_void_p

cpp_fused_sin_0 = async_compile.cpp_pybinding(['const float*', 'float*'])

class Runner:
    def call(self, args):
        buf0 = empty_strided_cpu((3, ), (1, ), torch.float32)
        # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.sin, my.wait]
        buf1 = torch.ops.my.wait.default(buf0)
        del buf0
        # Unrelated
        cpp_fused_sin_0(buf1)

        return (buf1, )
"""
TEXTS = [line.strip() for line in MODULE.splitlines()]
NODES = "[y, z], Original ATen: [aten.sin, my.wait]"


def test_the_graph_and_the_nodes_of_lines() -> None:
    assert compiled_frames._graph(TEXTS) == "1_backward"
    assert compiled_frames._graph(TEXTS[1:]) == ""
    lines = compiled_frames._above_lines(TEXTS)
    assert {number: lines.get(number, "") for number in (8, 10, 11, 13, 15)} == {
        8: "",
        10: NODES,
        11: NODES,
        13: NODES,
        15: "",
    }
