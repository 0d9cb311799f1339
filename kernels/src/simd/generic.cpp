#define AMPGNN_ISA generic
#include "kernels.inl"
