#define AMPGNN_ISA avx2
#include "kernels.inl"
