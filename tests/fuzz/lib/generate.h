#pragma once
// Random well-typed graphs, with gradients and tangents, drawn from the registry: no op is named.
// An op takes part through its samples, its type rule and its kind, so a new one does so by itself.
//
// While a graph grows, each op is run on the reference, in f64 and in its own types. An op that
// leaves the finite numbers, or a decent range, is not taken. Nor is one that jumps between nearly
// equal operands (floor, comparisons, arg max, and the slope of relu): executors that round
// differently would land on different sides. Such ops take *exact* operands only, made of the
// dyadic numbers of the inputs by ops that did not round. That an op may jump is read off its
// definition: a bool or integer made from floats, a slope that is zero everywhere, no slope at all,
// or samples that ask for a gap.

#include <sinter/tests/fuzz/lib/specimen.h>

namespace sinter::test {

struct GeneratorOptions {
  int most_ops = 14;            // forward; gradients come on top
  int64_t most_elements = 700;  // of one value
};

// The same graph for the same seed and registry.
Specimen generate(uint64_t seed, const GeneratorOptions& options = {});

// How often each op was taken into a graph by this process, for a look at coverage.
const std::map<std::string, int64_t>& generated_ops();

}  // namespace sinter::test
