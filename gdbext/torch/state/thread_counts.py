"""How many threads the libraries below PyTorch use: OpenMP, MKL, OpenBLAS, as their own variables say."""

from __future__ import annotations

from gdbext.errors import BadData
from gdbext.model.sections.settings_section import DEFAULT, SettingValue
from gdbext.process.memory import Memory
from gdbext.process.modules import Module
from gdbext.process.symbols import Symbolizer
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.symbols import CPU

_GETTER_SIZE = 64
_MOST = 1 << 16
"""More threads are not believed."""


class ThreadCounts:
    """Reads them. All raise BadData where the library is not there or another one than is known, MemoryFault."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer

    def openmp(self, thread_pointer: int) -> int:
        """What omp_get_max_threads() returns in the thread with its control block there; OpenMP is GNU's."""
        module = self._module(sources.OPENMP)
        address = self._address(sources.OPENMP_THREADS, module)
        code = self._memory.read(address, _GETTER_SIZE)
        found = self._memory.architecture.threads_or_global(code, address)
        if found is None:
            raise BadData(f"{sources.OPENMP_THREADS} of {module.name} is not a plain load in this build")
        offset = self._memory.u64(found.slot) + found.displacement
        task = self._memory.u64((thread_pointer + offset) % (1 << 64))
        return self._believed(self._memory.u64(task + found.member if task else found.otherwise))

    def mkl(self) -> SettingValue:
        """What mkl_set_num_threads() or MKL_NUM_THREADS gave, DEFAULT where nobody did: then all physical cores."""
        number = self._mkl(sources.MKL_THREADS)
        return self._believed(number) if number > 0 else DEFAULT

    def mkl_dynamic(self) -> bool:
        """MKL may use fewer threads (MKL_DYNAMIC, mkl_set_dynamic())."""
        return self._mkl(sources.MKL_DYNAMIC) != 0

    def _mkl(self, symbol: str) -> int:
        ready = self._symbolizer.address_of(sources.MKL_READY, CPU)
        address = self._symbolizer.address_of(symbol, CPU)
        if ready is None or address is None:
            raise BadData("there is no MKL in libtorch_cpu.so, or one of another version")
        if not self._memory.u8(ready):
            raise BadData("MKL was not used yet: its environment variables will decide")
        return self._memory.i32(address)

    def openblas(self) -> int:
        """Of the OpenBLAS that is loaded, which is NumPy's in most programs; one of two that are is not named."""
        module = self._module(sources.OPENBLAS)
        if not self._memory.u32(self._address(sources.OPENBLAS_READY, module)):
            raise BadData("OpenBLAS was not used yet: its environment variables will decide")
        return self._believed(self._memory.u32(self._address(sources.OPENBLAS_THREADS, module)))

    def _module(self, name: str) -> Module:
        found = [module for module in self._symbolizer.modules.modules if name in module.name]
        if not found:
            raise BadData(f"the process has not loaded a library {name}")
        if len(found) > 1:
            raise BadData(f"the process has loaded {len(found)} libraries {name}")
        return found[0]

    def has(self, name: str) -> bool:
        """Some library of that name is loaded."""
        return any(name in module.name for module in self._symbolizer.modules.modules)

    def _address(self, symbol: str, module: Module) -> int:
        address = self._symbolizer.address_of(symbol, module.name)
        if address is None:
            raise BadData(f"{module.name} has no {symbol}")
        return address

    @staticmethod
    def _believed(number: int) -> int:
        if not 0 < number < _MOST:
            raise BadData(f"{number} is not a number of threads")
        return number
