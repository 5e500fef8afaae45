// Two functions of libcuda (cuda.h) that launch kernels; without a device they launch nothing.
extern "C" int cuLaunchKernel(void*, unsigned, unsigned, unsigned) { return 0; }

extern "C" int cuLaunchKernelEx(const void*, void*, void**, void**) { return 1; }
