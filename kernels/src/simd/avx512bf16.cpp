#define AMPGNN_ISA avx512bf16
#include "kernels.inl"
