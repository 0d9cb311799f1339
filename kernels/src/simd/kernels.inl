// The kernels for one instruction set: the file that includes this one names it and is compiled for it.
#include "../attention.h"
#include "../edge_softmax.h"
#include "../head_dot.h"
#include "../pair_attention.h"
#include "../sddmm.h"
#include "../spmm.h"

#define AMPGNN_STRING_(x) #x
#define AMPGNN_STRING(x) AMPGNN_STRING_(x)
#define AMPGNN_JOIN_(a, b) a##b
#define AMPGNN_JOIN(a, b) AMPGNN_JOIN_(a, b)

const ampgnn::Kernels& ampgnn::AMPGNN_JOIN(AMPGNN_ISA, _kernels)() {
    static constexpr Kernels kernels{AMPGNN_STRING(AMPGNN_ISA),
                                     ::spmm,
                                     ::sddmm,
                                     ::edge_softmax,
                                     ::attention,
                                     ::attention_backward,
                                     ::correct_grad_el,
                                     ::pair_attention,
                                     ::pair_backward_destinations,
                                     ::pair_backward_sources,
                                     ::arg_scatter,
                                     ::row_dot,
                                     ::head_dot,
                                     ::head_dot_backward};
    return kernels;
}
