#!/usr/bin/env python3
"""Makes tests/golden/all_ops.safetensors: ops and losses with a counterpart in PyTorch, forward and
reverse, in float64.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install torch numpy safetensors
    /tmp/venv/bin/python tests/parity/make_op_golden.py [--check]

The tests read the file and need no Python. Inputs are not stored: they follow the rule F(shape, s),

    value = (((37 i i + (53 + 2 s) i + 101 s) mod 97) - 48) / 32    for the flat index i,

scaled and shifted by numbers that keep them exact in f32 and bf16.

CASE is an f64 vector: the elements of every result, then of the gradient of every input that has
one, of the loss sum(F(shape of result k, 50 + k) * result k) over the float results. The entry CASE
of the metadata says how to build it, line by line:

    %y = softmax %x {axis = 1} : f32[2,3]    the op as module text
    x f32[2,3] 1 2.0 0.5                     an input: F(shape, 1) * 2.0 + 0.5
    ids i32[4] 3 5 -1                        an integer or bool input: (97-valued part of F) mod 5 - 1
    grad x                                   the inputs with gradients
    bf16 ulp                                 (or: contraction) also in bf16, and held to what

Ops without an entry have a line in tests/golden/without_golden.txt, which says why.
"""

import math
import sys

import numpy as np
import torch
import torch.nn.functional as F
import torch.special as S

from make_gpt2_golden import attention, cross_entropy, norm, rope, run


def raw(shape, s):
    i = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    return ((37 * i * i + (53 + 2 * s) * i + 101 * s) % 97).reshape(shape)


def fill(shape, s):
    return np.asarray((raw(shape, s) - 48) / 32.0)


class Input:
    def __init__(self, dtype, shape, s, scale, shift):
        self.dtype, self.shape, self.s, self.scale, self.shift = dtype, shape, s, scale, shift

    def tensor(self):
        if self.dtype == "f32":
            return torch.from_numpy(np.asarray(fill(self.shape, self.s) * self.scale + self.shift))
        values = raw(self.shape, self.s) % self.scale + self.shift
        if self.dtype == "bool":
            return torch.from_numpy(np.asarray(values != 0))
        return torch.from_numpy(np.asarray(values))

    def text(self, name):
        shape = ",".join(str(n) for n in self.shape)
        return f"{name} {self.dtype}[{shape}] {self.s} {self.scale} {self.shift}"


def f(shape, s=1, scale=1.0, shift=0.0):
    return Input("f32", shape, s, float(scale), float(shift))


def ints(shape, s, modulo, shift=0):
    return Input("i32", shape, s, modulo, shift)


def bools(shape, s):
    return Input("bool", shape, s, 2, 0)


class Cases:
    def __init__(self):
        self.golden, self.texts = {}, {}

    def add(self, text, inputs, function, bf16=None, grad=True, results="%y"):
        """`text` is the op without result types. `grad`: which float inputs have a gradient."""
        op = text.split()[0]
        number = 0
        while f"{op}.{number}" in self.texts:
            number += 1
        leaves = {name: spec.tensor() for name, spec in inputs.items()}
        wanted = [name for name, spec in inputs.items()
                  if spec.dtype == "f32" and (grad is True or grad and name in grad)]
        for name in wanted:
            leaves[name].requires_grad_()
        outputs = function(*leaves.values())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss, types, parts = torch.zeros((), dtype=torch.float64), [], []
        for k, y in enumerate(outputs):
            shape = ",".join(str(n) for n in y.shape)
            kind = ("f32" if y.is_floating_point() else "bool" if y.dtype == torch.bool else "i32")
            types.append(f"{kind}[{shape}]")
            parts.append(y.detach().double().numpy().reshape(-1))
            if y.is_floating_point():
                loss = loss + (torch.from_numpy(fill(list(y.shape), 50 + k)) * y).sum()
        if wanted:
            grads = torch.autograd.grad(loss, [leaves[n] for n in wanted], allow_unused=True)
            for name, g in zip(wanted, grads):
                g = torch.zeros_like(leaves[name]) if g is None else g
                parts.append(g.numpy().reshape(-1))
        values = np.concatenate(parts)
        assert np.isfinite(values).all(), (text, values)
        lines = [f"{results} = {text} : {', '.join(types)}"]
        lines += [spec.text(name) for name, spec in inputs.items()]
        if wanted:
            lines.append("grad " + " ".join(wanted))
        if bf16:
            lines.append(f"bf16 {bf16}")
        self.golden[f"{op}.{number}"] = values
        self.texts[f"{op}.{number}"] = "\n".join(lines)


def pointwise(c):
    x = f([3, 7], 1, 2)  # ±3
    positive = f([3, 7], 2, 0.5, 1.0)  # 0.25..1.75
    unit = f([3, 7], 3, 0.5)  # ±0.75

    def unary(op, function, x=x, bf16="ulp", attrs=""):
        c.add(f"{op} %x{attrs}", {"x": x}, function, bf16)

    unary("neg", torch.neg)
    unary("abs", torch.abs)
    unary("square", torch.square)
    unary("sqrt", torch.sqrt, positive)
    unary("rsqrt", torch.rsqrt, positive)
    unary("exp", torch.exp)
    unary("expm1", torch.expm1)
    unary("log", torch.log, positive)
    unary("sin", torch.sin)
    unary("cos", torch.cos)
    unary("tanh", torch.tanh)
    unary("floor", torch.floor, f([3, 7], 1, 2, 0.03125))
    unary("relu", torch.relu)
    unary("sigmoid", torch.sigmoid)
    unary("silu", F.silu)
    unary("softplus", F.softplus)
    unary("gelu", F.gelu)
    unary("gelu", lambda x: F.gelu(x, approximate="tanh"), attrs=' {approximate = "tanh"}')
    unary("clamp", lambda x: x.clamp(-0.75, 1.25), attrs=" {min = -0.75, max = 1.25}")
    unary("stop_gradient", lambda x: x.detach() + 0 * x)

    def binary(op, function, a=x, b=f([3, 7], 4, 2), bf16="ulp"):
        c.add(f"{op} %a, %b", {"a": a, "b": b}, function, bf16)

    binary("add", lambda a, b: a + b)
    binary("sub", lambda a, b: a - b)
    binary("mul", lambda a, b: a * b)
    binary("div", lambda a, b: a / b, b=f([3, 7], 5, 0.5, 1.0))
    binary("maximum", torch.maximum)
    binary("minimum", torch.minimum)
    binary("pow", torch.pow, positive)
    for op in ["eq", "ne", "lt", "le", "gt", "ge"]:
        c.add(f"{op} %a, %b", {"a": ints([4, 6], 1, 4), "b": ints([4, 6], 2, 4)},
              getattr(torch, op))
    for op in ["logical_and", "logical_or"]:
        c.add(f"{op} %a, %b", {"a": bools([4, 6], 1), "b": bools([4, 6], 2)}, getattr(torch, op))
    c.add("logical_not %a", {"a": bools([4, 6], 1)}, torch.logical_not)
    c.add("where %c, %a, %b", {"c": bools([3, 7], 1), "a": x, "b": f([3, 7], 4)}, torch.where, "ulp")
    c.add("add_n %a, %b, %d", {"a": x, "b": f([3, 7], 4), "d": f([3, 7], 5)},
          lambda a, b, d: a + b + d, "ulp")
    c.add("grad_mul %a, %b", {"a": x, "b": positive}, lambda a, b: a * b, "ulp", grad=False)


def views(c):
    x = f([2, 3, 4], 1)

    def view(text, function, x=x):
        c.add(text, {"x": x}, function, "ulp")

    view("broadcast %x", lambda x: x.expand(2, 3, 4), f([3, 1], 1))
    view("reshape %x", lambda x: x.reshape(4, 6))
    view("permute %x {axes = [2, 0, 1]}", lambda x: x.permute(2, 0, 1))
    view("slice %x {start = [0, 1, 0], limit = [2, 3, 4], stride = [1, 1, 2]}",
         lambda x: x[:, 1:3, ::2])
    view("pad %x {low = [0, 1, 2], high = [1, 0, 1], value = 0.5}",
         lambda x: F.pad(x, (2, 1, 1, 0, 0, 1), value=0.5))
    view("squeeze %x {axes = [0, 2]}", lambda x: x.squeeze((0, 2)), f([1, 3, 1, 2], 1))
    view("unsqueeze %x {axes = [0, 2]}", lambda x: x[None, :, None], f([3, 2], 1))
    view("reverse %x {axes = [0, 2]}", lambda x: x.flip(0, 2))
    view("roll %x {shift = [1, -2], axes = [1, 2]}", lambda x: x.roll((1, -2), (1, 2)))
    view("repeat %x {count = 3, axis = 1}", lambda x: x.repeat_interleave(3, 1))
    view("tile %x {counts = [1, 2, 3]}", lambda x: x.tile(1, 2, 3))
    view("tril %x {diagonal = 1}", lambda x: x.tril(1))
    view("triu %x {diagonal = -1}", lambda x: x.triu(-1))
    view("diagonal %x {offset = 1}", lambda x: x.diagonal(1, -2, -1))
    view("diagonal %x {offset = -1, axis1 = 0, axis2 = 2}", lambda x: x.diagonal(-1, 0, 2))
    pair = {"a": f([2, 3], 1), "b": f([2, 4], 2)}
    c.add("concat %a, %b {axis = 1}", pair, lambda a, b: torch.cat([a, b], 1), "ulp")
    pair = {"a": f([2, 3], 1), "b": f([2, 3], 2)}
    c.add("stack %a, %b {axis = 1}", pair, lambda a, b: torch.stack([a, b], 1), "ulp")
    c.add("split %x {sizes = [1, 3], axis = 2}", {"x": x}, lambda x: x.split([1, 3], 2), "ulp",
          results="%y, %z")
    c.add("one_hot %ids", {"ids": ints([2, 3], 1, 5)},
          lambda ids: F.one_hot(ids, 5).double(), "ulp")


def reductions(c):
    x = f([3, 4, 5], 1, 2)

    def reduce(op, function, x=x, bf16="ulp"):
        c.add(f"{op} %x {{axes = [1]}}", {"x": x}, lambda x: function(x, (1,), False), bf16)
        c.add(f"{op} %x {{axes = [0, 2], keep = true}}", {"x": x},
              lambda x: function(x, (0, 2), True), bf16)
        c.add(f"{op} %x", {"x": x}, lambda x: function(x, (0, 1, 2), False), bf16)

    reduce("sum", lambda x, a, k: x.sum(a, k))
    reduce("mean", lambda x, a, k: x.mean(a, k))
    reduce("max", lambda x, a, k: x.amax(a, k))
    reduce("min", lambda x, a, k: x.amin(a, k))
    reduce("norm", lambda x, a, k: norm(x, a, k))
    reduce("logsumexp", lambda x, a, k: x.logsumexp(a, k))


def contractions(c):
    def matmul(text, a, b, function):
        c.add(text, {"a": a, "b": b}, function, "contraction")

    matmul("matmul %a, %b", f([5, 7], 1), f([7, 3], 2), torch.matmul)
    matmul("matmul %a, %b {transpose_a = true}", f([7, 5], 1), f([7, 3], 2), lambda a, b: a.T @ b)
    matmul("matmul %a, %b {transpose_b = true}", f([2, 5, 7], 1), f([2, 3, 7], 2),
           lambda a, b: a @ b.mT)
    c.add("matmul %a, %b, c=%c", {"a": f([4, 6], 1), "b": f([6, 3], 2), "c": f([4, 3], 3)},
          lambda a, b, c: torch.addmm(c, a, b), "contraction")


def indexing(c):
    c.add("embedding %table, %ids", {"table": f([6, 4], 1), "ids": ints([2, 5], 2, 6)},
          lambda table, ids: F.embedding(ids, table), "ulp")


def normalisations(c):
    x = f([3, 4, 6], 1, 2)
    for axis in [2, 0]:
        c.add(f"softmax %x {{axis = {axis}}}", {"x": x}, lambda x, a=axis: x.softmax(a), "ulp")
        c.add(f"log_softmax %x {{axis = {axis}}}", {"x": x}, lambda x, a=axis: x.log_softmax(a),
              "ulp")
    w = f([6], 2, 0.5, 1.0)
    c.add("layer_norm %x, %w, %b", {"x": x, "w": w, "b": f([6], 3)},
          lambda x, w, b: F.layer_norm(x, [6], w, b, 1e-5), "ulp")
    c.add("rms_norm %x, %w", {"x": x, "w": w}, lambda x, w: F.rms_norm(x, [6], w, 1e-5), "ulp")


def attentions(c):
    q, k, v = f([2, 4, 5, 6], 1), f([2, 2, 5, 6], 2), f([2, 2, 5, 6], 3)
    offset = ints([], 1, 1, 3)
    c.add("rope %x, %offset", {"x": q, "offset": offset},
          lambda x, offset: rope(x, "half", 10000.0, int(offset)), "ulp")
    c.add('rope %x, %offset {form = "interleaved", base = 500.0}', {"x": q, "offset": offset},
          lambda x, offset: rope(x, "interleaved", 500.0, int(offset)), "ulp")
    c.add("attention %q, %k, %v {causal = true}", {"q": q, "k": k, "v": v},
          lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
          "contraction")
    c.add("attention %q, %k, %v, mask=%m {scale = 0.25}",
          {"q": q, "k": f([2, 4, 7, 6], 2), "v": f([2, 4, 7, 6], 3), "m": bools([2, 4, 5, 7], 4)},
          lambda q, k, v, m: attention(q, k, v, 0.25, mask=m), "contraction")


def losses(c):
    z, t = f([5, 7], 1, 2), ints([5], 3, 7)
    for reduction in ["mean", "sum", "none"]:
        c.add(f'cross_entropy %z, %t {{reduction = "{reduction}", ignore_index = 2}}',
              {"z": z, "t": t},
              lambda z, t, r=reduction: (cross_entropy(z, t, r, 2), (t != 2).sum()), "loss",
              results="%y, %count")


def make():
    c = Cases()
    for family in [pointwise, views, reductions, contractions, indexing, normalisations, attentions,
                   losses]:
        family(c)
    return [("all_ops", c.golden, c.texts)]


if __name__ == "__main__":
    sys.exit(run(__doc__, make))
