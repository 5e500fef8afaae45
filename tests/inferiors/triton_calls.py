"""triton-calls: launches two kernels of Triton, as Inductor's modules do, through a driver without a device.

The kernels are objects of torch._inductor's own class in a module of its own cache; a launcher is a function made by
exec, with the handle of what it launches among its globals (TritonCompileResult.make_launcher,
torch/_inductor/runtime/triton_heuristics.py), or with a method of what knows it (StaticTritonCompileResult).
"""

import ctypes
import threading
import time
import types

import native_library
import truth
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

driver = native_library.load("device_driver")
driver.cuLaunchKernel.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint]
driver.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4


class Static:
    def __init__(self):
        self.function = 0x7200

    def run(self):
        driver.cuLaunchKernel(self.function, 1, 1, 1)


def kernel(call="", **scope):
    found = CachingAutotuner.__new__(CachingAutotuner)  # its own constructor needs Triton
    exec(f"def launcher():\n    {call or 'pass'}", scope)
    found.launchers = [scope["launcher"]] if call else []
    return found


def launch(function):
    driver.cuLaunchKernelEx(None, function, None, None)


module = types.ModuleType("cab")
module.triton_poi_fused_add_0 = kernel("runner(function)", runner=launch, function=0x7100)
module.triton_red_fused_sum_1 = kernel("runner()", runner=Static().run)
module.triton_unused_2 = kernel()
PyCodeCache.modules.append(module)


def work():
    truth.thread("worker", waits=None)
    while True:
        module.triton_red_fused_sum_1.launchers[0]()
        module.triton_poi_fused_add_0.launchers[0]()
        time.sleep(0.01)


threading.Thread(target=work, daemon=True).start()
truth.main_ready(verdict="idle", busy=True)
threading.Event().wait(truth.FOREVER)
