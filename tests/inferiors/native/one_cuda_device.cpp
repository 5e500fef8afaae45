// Stands in for CUDA with one device: memory is reserved, never touched, and no kernel runs. For LD_PRELOAD, with the
// libraries of scripts/lib/installed_torch.py, whose functions say that there is no device.

#include <dlfcn.h>
#include <sys/mman.h>

#include <cctype>
#include <cstddef>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kOutOfMemory = 2, kComputeCapabilityMajor = 75;
constexpr std::size_t kPropertiesCleared = 900;  // less than a cudaDeviceProp of any version

int fine() { return kSuccess; }

int context_state(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return kSuccess;
}

int not_capturing(int* status) {
  *status = 0;
  return kSuccess;
}

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) { return *count = 1, kSuccess; }
int cudaGetDevice(int* device) { return *device = 0, kSuccess; }
int cudaSetDevice(int) { return kSuccess; }
int cudaGetLastError() { return kSuccess; }
int cudaPeekAtLastError() { return kSuccess; }
int cudaDeviceSynchronize() { return kSuccess; }
int cudaStreamSynchronize(void*) { return kSuccess; }
int cudaFree(void*) { return kSuccess; }
int cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
int cudaDriverGetVersion(int* version) { return *version = 13020, kSuccess; }
int cudaRuntimeGetVersion(int* version) { return *version = 12040, kSuccess; }
int cudaDeviceGetStreamPriorityRange(int* least, int* most) { return *least = 0, *most = -1, kSuccess; }
const char* cudaGetErrorString(int) { return "made up"; }
const char* cudaGetErrorName(int) { return "made up"; }

int cudaMalloc(void** memory, std::size_t size) {
  *memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *memory == MAP_FAILED ? kOutOfMemory : kSuccess;
}

int cudaMemGetInfo(std::size_t* unused, std::size_t* total) {
  *unused = 1UL << 33;
  *total = 1UL << 34;
  return kSuccess;
}

int cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  static long number = 16;
  *stream = reinterpret_cast<void*>(number++);
  return kSuccess;
}

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kComputeCapabilityMajor ? 8 : 0;
  return kSuccess;
}

int cudaGetDeviceProperties(char* properties, int) {
  std::memset(properties, 0, kPropertiesCleared);
  std::strcpy(properties, "made up");  // the name comes first
  return kSuccess;
}

int cudaGetDeviceProperties_v2(char* properties, int device) { return cudaGetDeviceProperties(properties, device); }
int cudaStreamIsCapturing(void*, int* status) { return not_capturing(status); }
int cudaStreamGetCaptureInfo(void*, int* status) { return not_capturing(status); }
int cudaStreamGetCaptureInfo_v2(void*, int* status) { return not_capturing(status); }
int cudaStreamGetCaptureInfo_v3(void*, int* status) { return not_capturing(status); }
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  return context_state(device, flags, active);
}

// The driver's functions are looked up by name: all are fine.
void* dlsym(void* handle, const char* name) {
  using Lookup = void* (*)(void*, const char*);
  static const auto real = reinterpret_cast<Lookup>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  if (!std::strcmp(name, "cuDevicePrimaryCtxGetState")) return reinterpret_cast<void*>(context_state);
  if (name[0] == 'c' && name[1] == 'u' && std::isupper(name[2])) return reinterpret_cast<void*>(fine);
  return real(handle, name);
}

}  // extern "C"
