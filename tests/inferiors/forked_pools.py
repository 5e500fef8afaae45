"""A forked child uses a pool of threads that its parent had made.

``forked_pools.py LIBRARY WHO``. LIBRARY: ``onnxruntime``; ``waits`` or ``spins``, as a library of ours does. WHO:
``child``: the pool is made by the parent and used by the child, which hangs; ``own``: made and used by the child;
``alone``: the child uses the library without the pool that its parent has.
"""

import ctypes
import os
import sys

import truth

LIBRARY, WHO = sys.argv[1:3]


def field(number, value):
    """One field of a protobuf message: an int, or bytes (developers.google.com/protocol-buffers/docs/encoding)."""

    def varint(value):
        out = b""
        while value > 127:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def model():
    """y = x @ x, for x of 512 × 512 float32, as an ONNX model (onnx.proto: ModelProto)."""
    shape = b"".join(field(1, field(1, 512)) for _ in range(2))
    tensor = field(1, field(1, 1) + field(2, shape))
    node = field(1, "x") + field(1, "x") + field(2, "y") + field(4, "MatMul")
    graph = field(1, node) + field(2, "g") + field(11, field(1, "x") + field(2, tensor))
    graph += field(12, field(1, "y") + field(2, tensor))
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


def onnxruntime_pool():
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 4
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    session = onnxruntime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    array = numpy.ones((512, 512), numpy.float32)
    return lambda: session.run(None, {"x": array})


def native_pool():
    import native_library

    library = native_library.load("forked_pool")
    library.start_pool()
    return lambda: library.square(3, LIBRARY == "spins")


make = onnxruntime_pool if LIBRARY == "onnxruntime" else native_pool
run = make() if WHO != "own" else None
if run:
    run()
truth.note(parent=os.getpid())
child = os.fork()
if child:
    os.waitpid(child, 0)
    os._exit(0)
truth.thread("main", None)
if WHO == "own":
    run = make()
elif WHO == "alone":
    import native_library

    library = native_library.load("forked_pool")

    def run():
        library.compute(ctypes.byref(ctypes.c_long(0)))


truth.ready()
while True:
    run()
