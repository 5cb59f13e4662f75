#pragma once
// Functions and operators that build ops on values: the vocabulary of the DSL, of derivatives and
// of expansions.
//
// Each function puts its op at the insertion point of its operands' graph and gives it the caller's
// file and line. Pointwise functions broadcast operands to a common shape (right-aligned) and take
// C++ numbers, which get the other operand's type; mixed dtypes are refused. Errors throw
// sinter::Error with op, operands, shapes and the caller's place.

#include <sinter/ir/graph.h>
#include <sinter/ir/ops/activation.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/ir/ops/bitwise.h>
#include <sinter/ir/ops/call.h>
#include <sinter/ir/ops/channel_norm.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/contraction.h>
#include <sinter/ir/ops/conv.h>
#include <sinter/ir/ops/elementary.h>
#include <sinter/ir/ops/elementwise_loss.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/ir/ops/index.h>
#include <sinter/ir/ops/loss.h>
#include <sinter/ir/ops/normalization.h>
#include <sinter/ir/ops/operand.h>
#include <sinter/ir/ops/optimizer.h>
#include <sinter/ir/ops/pool.h>
#include <sinter/ir/ops/prefix.h>
#include <sinter/ir/ops/random.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/reduce_composite.h>
#include <sinter/ir/ops/scan.h>
#include <sinter/ir/ops/shape.h>
#include <sinter/ir/ops/sort.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/statistics.h>
#include <sinter/ir/ops/view.h>
