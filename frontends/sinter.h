#pragma once
// Everything a program that trains a model needs: `#include <sinter/sinter.h>`.
//
//   Model, Scope      describe entry graphs; parameters are declared where they are used
//   operators, ops    on Value, each op with the caller's file and line   (ir/ops.h)
//   nn::…             layers and whole models
//   grad, jvp, …      derivatives of functions of values, vmap, scan (frontends/dsl/derivatives.h)
//   minimize          asks for gradients and an optimizer's update
//   Program           compiles a model and runs its graphs

#include <sinter/frontends/dsl/check_grads.h>
#include <sinter/frontends/dsl/derivatives.h>
#include <sinter/frontends/dsl/model.h>
#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/frontends/dsl/program.h>
#include <sinter/frontends/nn/gpt.h>
#include <sinter/frontends/nn/layers.h>
#include <sinter/ir/ops.h>
