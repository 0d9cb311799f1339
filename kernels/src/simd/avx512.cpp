#define AMPGNN_ISA avx512
#include "kernels.inl"
