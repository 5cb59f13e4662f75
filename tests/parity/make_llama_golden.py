#!/usr/bin/env python3
"""Makes the golden files of a small Llama, in float64, with PyTorch.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install torch numpy safetensors
    /tmp/venv/bin/python tests/parity/make_llama_golden.py [--check]

The tests read the files and need no Python.

tests/golden/llama_2layer.safetensors: one forward and backward pass.
    Layers 2, 4 query heads and 2 key heads of 6, width C = 16, 20 hidden, vocabulary V = 13,
    context T = 8, batch B = 2. RMSNorm with eps 1e-5, also of the queries and keys of each head,
    rotary positions (base 10000; i and i + 3 are a pair), swiglu, no biases, a head of its own.
    Weights are [in, out]: y = x @ weight. qkv gives 4 x 6 queries, then 2 x 6 keys, then as many
    values; gate_up gives the gates, then what they act on. Query heads 0 and 1 read key head 0.
      ids, targets                          i32 [B,T]; one target is -100 and does not count
      embed.weight [V,C], head.weight [V,C] f32, like every parameter
      blocks.N.norm1.weight, norm2.weight   [C]
      blocks.N.attn.qkv.weight [C,48], .q_norm.weight [6], .k_norm.weight [6], .proj.weight [24,C]
      blocks.N.mlp.gate_up.weight [C,40], .down.weight [20,C]
      norm_f.weight                         [C]
      loss f64 [], logits f64 [B,T,V], grad.NAME f64

tests/golden/llama_2layer_adamw.safetensors: three AdamW steps, as in make_gpt2_golden.py.
"""

import math
import sys

import torch
import torch.nn.functional as F

from make_gpt2_golden import (BATCH, CONTEXT, EPS, IGNORE, LAYERS, VOCAB, WIDTH, Source, rope, run,
                              train)

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 6, 20


def make_parameters(source):
    parameters = {"embed.weight": source.uniform([VOCAB, WIDTH], 0.6)}

    def norm(name, width):
        parameters[f"{name}.weight"] = source.uniform([width], 0.3, 1.0)

    def linear(name, inputs, outputs):
        parameters[f"{name}.weight"] = source.uniform([inputs, outputs], 1.5 / math.sqrt(inputs))

    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        norm(f"{block}.norm1", WIDTH)
        linear(f"{block}.attn.qkv", WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        norm(f"{block}.attn.q_norm", HEAD_DIM)
        norm(f"{block}.attn.k_norm", HEAD_DIM)
        linear(f"{block}.attn.proj", HEADS * HEAD_DIM, WIDTH)
        norm(f"{block}.norm2", WIDTH)
        linear(f"{block}.mlp.gate_up", WIDTH, 2 * HIDDEN)
        linear(f"{block}.mlp.down", HIDDEN, WIDTH)
    norm("norm_f", WIDTH)
    parameters["head.weight"] = source.uniform([VOCAB, WIDTH], 0.4)
    return parameters


def llama(p, ids):
    def norm(x, name):
        return F.rms_norm(x, [x.shape[-1]], p[f"{name}.weight"], EPS)

    def heads(x, count):
        return x.reshape(BATCH, CONTEXT, count, HEAD_DIM)

    x = p["embed.weight"][ids]
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        qkv = norm(x, f"{block}.norm1") @ p[f"{block}.attn.qkv.weight"]
        q, k, v = qkv.split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], -1)
        q = norm(heads(q, HEADS), f"{block}.attn.q_norm").transpose(1, 2)
        k = norm(heads(k, KV_HEADS), f"{block}.attn.k_norm").transpose(1, 2)
        v = heads(v, KV_HEADS).transpose(1, 2)
        q, k = (rope(part, "half", 10000.0, 0) for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = y.transpose(1, 2).reshape(BATCH, CONTEXT, HEADS * HEAD_DIM)
        x = x + y @ p[f"{block}.attn.proj.weight"]
        gate, up = (norm(x, f"{block}.norm2") @ p[f"{block}.mlp.gate_up.weight"]).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ p[f"{block}.mlp.down.weight"]
    return norm(x, "norm_f") @ p["head.weight"].T


def make():
    source = Source(4000)
    values = make_parameters(source)
    ids = source.integers([BATCH, CONTEXT], VOCAB)
    targets = source.integers([BATCH, CONTEXT], VOCAB)
    targets[0, 5] = IGNORE
    golden, trained = train(values, llama, ids, targets)
    return [("llama_2layer", golden, None), ("llama_2layer_adamw", trained, None)]


if __name__ == "__main__":
    sys.exit(run(__doc__, make))
