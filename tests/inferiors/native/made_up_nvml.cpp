// made_up_nvml: the functions of NVIDIA's management library for two devices, whose figures the test knows. The second
// one is under MIG, and tells neither its utilization nor its power.
// GDBEXT_NVML: "waits" (nvmlInit sleeps for ever), "fails" (it returns 9).
//
// Declarations: nvml.h of CUDA 12. Arguments that nobody reads are left out.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace {

enum { WELL = 0, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9 };
int tells(void *device, unsigned *place, unsigned value) {
    if (device == nullptr)
        return NOT_SUPPORTED;
    *place = value;
    return WELL;
}
int first;

}  // namespace

extern "C" {

int nvmlInit_v2() {
    const char *mode = getenv("GDBEXT_NVML");
    if (mode != nullptr && !strcmp(mode, "waits"))
        for (;;)
            pause();
    return mode != nullptr && !strcmp(mode, "fails") ? DRIVER_NOT_LOADED : WELL;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.65"), WELL; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, WELL; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) {
    *device = number ? nullptr : &first;
    return WELL;
}
int nvmlDeviceGetName(void *, char *text, unsigned size) { return snprintf(text, size, "made up"), WELL; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { return *minor = device == nullptr ? 4 : 3, WELL; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    return *now = *later = device == nullptr, WELL;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    return tells(device, rates, 100) ? NOT_SUPPORTED : tells(device, rates + 1, 7);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { return tells(device, milliwatts, 118000); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { return tells(device, milliwatts, 700000); }
int nvmlDeviceGetClockInfo(void *, int kind, unsigned *megahertz) { return *megahertz = kind == 1 ? 1980 : 2619, WELL; }
int nvmlDeviceGetMemoryInfo(void *, uint64_t *memory) {
    memory[0] = uint64_t(80) << 30, memory[1] = uint64_t(50) << 30, memory[2] = uint64_t(30) << 30;
    return WELL;
}
int nvmlDeviceGetTotalEccErrors(void *, int kind, int since, uint64_t *count) {
    return *count = uint64_t(kind == 1 && since == 0 ? 2 : 99), WELL;
}

}  // extern "C"
