#pragma once
// Timing of products: which of the heuristic's algorithms is the fastest for a shape.

#include <sinter/runtime/cuda/cublaslt.h>
#include <sinter/runtime/tuning.h>

namespace sinter::cuda {

// Times the heuristic's first algorithms for each product that the record has no choice for, on
// operands that do not stay in the cache, and adds the fastest one. The first one stays unless
// another is faster by more than the noise. Products of equal description share a choice.
void tune_products(Device& device, const std::vector<MatmulSpec>& products, TuningRecord& record);

}  // namespace sinter::cuda
