// The kernels of the instruction set in use.
#pragma once
#include <string>
#include <vector>

#include "args.h"

namespace ampgnn {

std::vector<std::string> supported_isas();  // best first
const Kernels& kernels();
void set_isa(const std::string& name);  // throws std::invalid_argument

}  // namespace ampgnn
