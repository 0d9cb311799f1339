#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace ampgnn {
namespace {

std::vector<const Kernels*> supported() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back(&avx512bf16_kernels());
    if (avx512) found.push_back(&avx512_kernels());
    if (avx2) found.push_back(&avx2_kernels());
#endif
    found.push_back(&generic_kernels());
    return found;
}

const Kernels* find(const std::string& name) {
    std::string known;
    for (const Kernels* k : supported()) {
        if (name == k->isa) return k;
        known += std::string(known.empty() ? "" : ", ") + k->isa;
    }
    throw std::invalid_argument("AMPGNN_KERNELS_ISA: '" + name + "' is not one of what this CPU runs: " + known);
}

std::atomic<const Kernels*>& current() {
    static std::atomic<const Kernels*> chosen{[] {
        const char* forced = std::getenv("AMPGNN_KERNELS_ISA");
        return forced && *forced ? find(forced) : supported().front();
    }()};
    return chosen;
}

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Kernels* k : supported()) names.push_back(k->isa);
    return names;
}

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }
void set_isa(const std::string& name) { current() = find(name); }

}  // namespace ampgnn
