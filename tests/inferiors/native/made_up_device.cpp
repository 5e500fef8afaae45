// made_up_device: a device, its driver and NCCL that do nothing, so that a wheel for CUDA makes NCCL's groups on any
// machine. Loaded before all others (LD_PRELOAD), as libcuda.so.1, too. Memory is the host's; nothing is computed.
// NCCL's operations end at once, but for those after the first GDBEXT_HANGS_AFTER, whose events are never reached.
// There are GDBEXT_DEVICES devices, else one.
// After fail_device() every call that waits or launches fails with that error, as all do once a kernel has failed. With
// GDBEXT_SILENT the driver does not answer when it is asked how many devices there are.
// What is on the stream of hang_stream() never ends; there are GDBEXT_DEVICE_MEMORY bytes of memory, where that is set.
// A stream is waited for asleep, an event awake, as the driver does by default.
//
// Declarations: cuda_runtime_api.h, cuda.h of CUDA 12 and 13; nccl.h of 2.30. Arguments that nobody reads are left out.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <pthread.h>

namespace {

enum { ENDED = 0, OUT_OF_MEMORY = 2, NOT_READY = 600, ASSERTED = 710, STREAM = 256 };
std::atomic<int> begun;

bool hangs() {
    const char *after = getenv("GDBEXT_HANGS_AFTER");
    return after != nullptr && begun > atoi(after);
}

std::atomic<void *> hung_stream;
std::atomic<size_t> taken;
std::atomic<int> failed;

thread_local int current_device;
std::atomic<void *> captured;

int captures(void *stream) { return stream != nullptr && stream == captured; }

std::atomic<void *> behind;  // a stream that waits for an event of the hung one

bool hangs(void *stream) { return hangs() || (stream != nullptr && (stream == hung_stream || stream == behind)); }

struct HostFunction {
    void (*function)(void *);
    void *argument;
};

void *run_host_function(void *raw) {
    HostFunction work = *static_cast<HostFunction *>(raw);
    work.function(work.argument);
    free(raw);
    return nullptr;
}

int wait_for_the_device() {
    while ((hangs() || hung_stream != nullptr) && !failed)
        poll(nullptr, 0, -1);
    return failed;
}

void *object() { return calloc(1, STREAM); }
int from_environment(const char *name) { return atoi(getenv(name)); }
int well(...) { return 0; }

}  // namespace

extern "C" {

int cudaGetDeviceCount(int *count) {
    while (getenv("GDBEXT_SILENT") != nullptr)
        poll(nullptr, 0, -1);
    const char *devices = getenv("GDBEXT_DEVICES");
    *count = devices != nullptr ? atoi(devices) : 1;
    return 0;
}
int cudaGetDevice(int *device) { *device = current_device; return 0; }
int cudaSetDevice(int device) { current_device = device; return 0; }
int cudaDeviceGetAttribute(int *value, int, int) { *value = 1; return 0; }
int cudaGetDeviceProperties(void *properties, int) { memset(properties, 0, 256); return 0; }
int cudaGetDeviceProperties_v2(void *properties, int) { memset(properties, 0, 256); return 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return 0; }
int cudaLaunchHostFunc(void *, void (*function)(void *), void *argument) {
    auto *work = static_cast<HostFunction *>(malloc(sizeof(HostFunction)));
    *work = {function, argument};
    pthread_t thread;
    return pthread_create(&thread, nullptr, run_host_function, work);
}
int cudaDeviceCanAccessPeer(int *can, int, int) { *can = 0; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13020; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13020; return 0; }
int cudaGetLastError() { return failed; }
int cudaPeekAtLastError() { return failed; }
const char *cudaGetErrorString(int error) { return error == ASSERTED ? "device-side assert triggered" : "made up"; }
const char *cudaGetErrorName(int) { return "made up"; }
int cudaDeviceSynchronize() { return wait_for_the_device(); }

void hang_stream(void *stream) { hung_stream = stream; }
void fail_device(int error) { failed = error; }

int cudaMalloc(void **place, size_t size) {
    const char *most = getenv("GDBEXT_DEVICE_MEMORY");
    if (most != nullptr && (taken += size) > size_t(atoll(most))) {
        taken -= size;
        return OUT_OF_MEMORY;
    }
    *place = aligned_alloc(512, (size + 511) / 512 * 512);
    return 0;
}
int cudaFree(void *) { return 0; }
int cudaHostAlloc(void **place, size_t size, unsigned) { *place = malloc(size); return 0; }
int cudaFreeHost(void *) { return 0; }
int cudaMemGetInfo(size_t *unused, size_t *all) { *unused = *all = size_t(8) << 30; return 0; }
int cudaMemset(void *place, int value, size_t size) { memset(place, value, size); return 0; }
int cudaMemsetAsync(void *place, int value, size_t size, void *) { memset(place, value, size); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int, void *) { memcpy(to, from, size); return 0; }
int cudaPointerGetAttributes(int *found, const void *) { memset(found, 0, 32); *found = 2; return 0; }
int __cudaPushCallConfiguration(...) { return 0; }
int __cudaPopCallConfiguration(...) { return 0; }
int cudaLaunchKernel(...) { return failed; }
int __cudaLaunchKernel(...) { return failed; }

int cudaStreamCreateWithPriority(void **stream, unsigned, int) { *stream = object(); return 0; }
int cudaStreamCreateWithFlags(void **stream, unsigned) { *stream = object(); return 0; }
int cudaStreamDestroy(void *) { return 0; }
int cudaStreamQuery(void *) { return 0; }
int cudaStreamSynchronize(void *stream) {
    while (hangs(stream) && !failed)
        poll(nullptr, 0, -1);
    return failed;
}
int cudaStreamWaitEvent(void *stream, int *event, unsigned) {
    if (*event != ENDED)
        behind = stream;
    return 0;
}
int cudaStreamBeginCapture(void *stream, int) { captured = stream; return 0; }
int cudaStreamEndCapture(void *, void **graph) { captured = nullptr; *graph = object(); return 0; }
int cudaStreamIsCapturing(void *stream, int *state) { *state = captures(stream); return 0; }
int cudaStreamGetCaptureInfo(void *stream, int *state, unsigned long long *id) {
    *state = captures(stream);
    if (id != nullptr)
        *id = 1;
    return 0;
}
int cudaStreamGetCaptureInfo_v2(void *stream, int *state, unsigned long long *id, ...) {
    return cudaStreamGetCaptureInfo(stream, state, id);
}
int cudaStreamGetCaptureInfo_v3(void *stream, int *state, unsigned long long *id, ...) {
    return cudaStreamGetCaptureInfo(stream, state, id);
}
int cudaThreadExchangeStreamCaptureMode(int *) { return 0; }
int cudaGraphGetNodes(void *, void *, size_t *count) { *count = 1; return 0; }
int cudaGraphInstantiate(void **executable, ...) { *executable = object(); return 0; }
int cudaGraphInstantiateWithFlags(void **executable, ...) { *executable = object(); return 0; }
int cudaGraphLaunch(void *, void *stream) { return cudaStreamSynchronize(stream); }  // as for a full queue, by a jump
int cudaGraphExecDestroy(void *) { return 0; }
int cudaGraphDestroy(void *) { return 0; }

int cudaEventCreateWithFlags(int **event, unsigned) { *event = static_cast<int *>(object()); return 0; }
int cudaEventDestroy(int *) { return 0; }
int cudaEventRecord(int *event, void *stream) { *event = hangs(stream) ? NOT_READY : ENDED; return 0; }
int cudaEventRecordWithFlags(int *event, void *stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventQuery(int *event) { return *event; }
int cudaEventSynchronize(volatile int *event) {
    while (*event != ENDED)
        __builtin_ia32_pause();
    return 0;
}
int cudaEventElapsedTime(float *time, int *, int *) { *time = 1; return 0; }

int cudaGetDriverEntryPointByVersion(const char *, void **function, unsigned, unsigned long long, int *status) {
    *function = reinterpret_cast<void *>(well);
    if (status != nullptr)
        *status = 0;
    return 0;
}
int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
int cuCtxGetCurrent(void **context) { *context = &begun; return 0; }
int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuGetErrorString(int, const char **text) { *text = "made up"; return 0; }
#define WELL(name) int name(...) { return 0; }
WELL(cuCtxFromGreenCtx) WELL(cuCtxPopCurrent) WELL(cuCtxPushCurrent) WELL(cuCtxSetCurrent)
WELL(cuDevResourceGenerateDesc) WELL(cuDevSmResourceSplitByCount) WELL(cuDeviceGet) WELL(cuDeviceGetAttribute)
WELL(cuDeviceGetDevResource) WELL(cuDevicePrimaryCtxRetain) WELL(cuFuncGetAttribute) WELL(cuFuncSetAttribute)
WELL(cuFuncSetCacheConfig) WELL(cuGreenCtxCreate) WELL(cuGreenCtxDestroy) WELL(cuGreenCtxStreamCreate)
WELL(cuLaunchCooperativeKernel) WELL(cuLaunchKernel) WELL(cuLinkAddData_v2) WELL(cuLinkComplete) WELL(cuLinkCreate_v2)
WELL(cuLogsRegisterCallback) WELL(cuLogsUnregisterCallback) WELL(cuMemAddressFree) WELL(cuMemAddressReserve)
WELL(cuMemCreate) WELL(cuMemExportToShareableHandle) WELL(cuMemGetAddressRange) WELL(cuMemGetAllocationGranularity)
WELL(cuMemGetAllocationPropertiesFromHandle) WELL(cuMemImportFromShareableHandle) WELL(cuMemMap) WELL(cuMemRelease)
WELL(cuMemRetainAllocationHandle) WELL(cuMemSetAccess) WELL(cuMemUnmap) WELL(cuMemsetD32Async)
WELL(cuModuleGetFunction) WELL(cuModuleLoad) WELL(cuModuleLoadData) WELL(cuModuleLoadDataEx) WELL(cuModuleUnload)
WELL(cuMulticastAddDevice) WELL(cuMulticastBindMem) WELL(cuMulticastCreate) WELL(cuMulticastUnbind)
WELL(cuOccupancyMaxActiveBlocksPerMultiprocessor) WELL(cuPointerGetAttribute) WELL(cuStreamWriteValue32)
WELL(cuTensorMapEncodeTiled)

int ncclGetVersion(int *version) { *version = 23007; return 0; }
const char *ncclGetErrorString(int) { return "made up"; }
const char *ncclGetLastError(void *) { return "made up"; }
int ncclGetUniqueId(char *id) { memset(id, 7, 128); return 0; }
int ncclCommInitRank(void **communicator, ...) { *communicator = object(); return 0; }
int ncclCommInitRankConfig(void **communicator, ...) { *communicator = object(); return 0; }
int ncclCommInitRankScalable(void **communicator, ...) { *communicator = object(); return 0; }
int ncclCommGetAsyncError(void *, int *error) { *error = 0; return 0; }
int ncclCommCount(void *, int *count) { *count = from_environment("WORLD_SIZE"); return 0; }
int ncclCommUserRank(void *, int *rank) { *rank = from_environment("RANK"); return 0; }
int ncclCommCuDevice(void *, int *device) { *device = 0; return 0; }
WELL(ncclCommRegister) WELL(ncclCommDeregister) WELL(ncclCommAbort) WELL(ncclCommDestroy) WELL(ncclCommFinalize)
WELL(ncclGroupStart) WELL(ncclGroupEnd)
#define OPERATION(name) int name(...) { begun++; return 0; }
OPERATION(ncclAllReduce) OPERATION(ncclBroadcast) OPERATION(ncclBcast) OPERATION(ncclReduce) OPERATION(ncclAllGather)
OPERATION(ncclReduceScatter) OPERATION(ncclSend) OPERATION(ncclRecv)

}  // extern "C"
