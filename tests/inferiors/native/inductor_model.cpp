// A library as AOTInductor makes one: kernels by their own names, and a function that holds handles of tensors and
// passes bare pointers to the kernels. It is read beside the library, as Inductor's source is.
#include <cstdint>

extern "C"  void  cpp_fused_scale_1(const float* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0,
                       const int64_t ks0,
                       const double ks1)
{
  for (int64_t i = 0; i < ks0; ++i) out_ptr0[i] = in_ptr0[i] * in_ptr1[i] * ks1;
}

struct Handle {
  void* tensor;
  float* elements;
  float* data_ptr() const { return elements; }
};

extern "C" void* AOTInductorModelContainerCreate() { return nullptr; }

// Handles of the input, of a constant (by reference, as constants are held) and of the result.
extern "C" void run(void** handles, float** elements, const Handle& weight, long s77, double scale) {
    Handle arg0_1{handles[0], elements[0]};
    Handle buf0{handles[1], elements[1]};
    asm volatile("" ::"r"(&arg0_1), "r"(&buf0), "r"(&weight) : "memory");
    cpp_fused_scale_1((const float*)(arg0_1.data_ptr()), (const float*)(weight.data_ptr()), (float*)(buf0.data_ptr()), s77, scale);
    asm volatile("" ::"r"(&arg0_1), "r"(&buf0), "r"(&weight) : "memory");
}
