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
    bf16 ulp                                 also in bf16; what it is held to:

ulp: results to one unit in the last place of the value, gradients to two. row: gradients, which are
differences of rounded numbers along a row, to 2^-7 of the largest instead. attention: results too.
contraction: both to 2^-7 sum |a b|. loss: as ulp, with f32 results.

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
    unary("clamp", lambda x: x.clamp(-0.703125, 1.296875),
          attrs=" {min = -0.703125, max = 1.296875}")
    unary("stop_gradient", lambda x: x.detach() + 0 * x)

    off = f([3, 7], 1, 2, 0.015625)  # none at a kink
    unary("exp2", torch.exp2)
    unary("log2", torch.log2, positive)
    unary("log1p", torch.log1p, unit)
    unary("cbrt", lambda x: x.sign() * x.abs() ** (1 / 3), off)
    unary("tan", torch.tan, unit)
    unary("sinh", torch.sinh)
    unary("cosh", torch.cosh)
    unary("asin", torch.asin, unit)
    unary("acos", torch.acos, unit)
    unary("atan", torch.atan)
    unary("erf", torch.erf)
    unary("erfc", torch.erfc)
    unary("erfc_inv", lambda x: S.erfinv(1 - x), positive)
    unary("norm_cdf", S.ndtr)
    unary("reciprocal", torch.reciprocal, positive)
    unary("ceil", torch.ceil, off)
    unary("round", torch.round)
    unary("trunc", torch.trunc, off)
    unary("sign", torch.sign)
    for op in ["isfinite", "isnan", "isinf"]:
        c.add(f"{op} %x", {"x": x}, getattr(torch, op), grad=False)
    unary("logsigmoid", F.logsigmoid)
    unary("softsign", F.softsign)
    unary("mish", F.mish)
    unary("elu", lambda x: F.elu(x, 0.75), off, attrs=" {alpha = 0.75}")
    unary("selu", F.selu, off)
    unary("leaky_relu", lambda x: F.leaky_relu(x, 0.125), off, attrs=" {slope = 0.125}")
    wide = f([3, 7], 1, 6, 0.03125)  # ±9
    unary("relu6", F.relu6, wide)
    unary("hardtanh", lambda x: F.hardtanh(x, -1, 1.5), off, attrs=" {max = 1.5}")
    # PyTorch's own multiplies by a rounded sixth.
    unary("hardsigmoid", lambda x: (x + 3).clamp(0, 6) / 6, wide)
    unary("hardswish", F.hardswish, wide)

    def binary(op, function, a=x, b=f([3, 7], 4, 2), bf16="ulp"):
        c.add(f"{op} %a, %b", {"a": a, "b": b}, function, bf16)

    binary("add", lambda a, b: a + b)
    binary("sub", lambda a, b: a - b)
    binary("mul", lambda a, b: a * b)
    binary("div", lambda a, b: a / b, b=f([3, 7], 5, 0.5, 1.0))
    binary("maximum", torch.maximum)
    binary("minimum", torch.minimum)
    binary("pow", torch.pow, positive)
    binary("atan2", torch.atan2, off)
    binary("hypot", torch.hypot, off)
    binary("remainder", torch.remainder, off, f([3, 7], 4, 1, 2.0))
    binary("logaddexp", torch.logaddexp)
    three = {"a": x, "b": f([3, 7], 4, 2), "d": positive}
    c.add("lerp %a, %b, %d", three, torch.lerp, "ulp")
    c.add("fma %a, %b, %d", three, lambda a, b, d: a * b + d, "ulp")
    for op in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
        c.add(f"{op} %a, %b", {"a": ints([4, 6], 1, 97, -40), "b": ints([4, 6], 2, 97, -40)},
              getattr(torch, op))
    c.add("bitwise_not %a", {"a": ints([4, 6], 1, 97, -40)}, torch.bitwise_not)
    for op, there in [("shift_left", "left"), ("shift_right", "right")]:
        c.add(f"{op} %a, %b", {"a": ints([4, 6], 1, 97, -40), "b": ints([4, 6], 2, 6)},
              getattr(torch, f"bitwise_{there}_shift"))
    for op in ["eq", "ne", "lt", "le", "gt", "ge"]:
        c.add(f"{op} %a, %b", {"a": ints([4, 6], 1, 4), "b": ints([4, 6], 2, 4)},
              getattr(torch, op))
    for op in ["logical_and", "logical_or", "logical_xor"]:
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
    view('pad %x {low = [0, 0, 2], high = [0, 0, 3], mode = "edge"}',
         lambda x: F.pad(x, (2, 3), mode="replicate"))
    view('pad %x {low = [0, 0, 2], high = [0, 0, 3], mode = "reflect"}',
         lambda x: F.pad(x, (2, 3), mode="reflect"))
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


    def prod(x, axes, keep):
        for axis in sorted(axes, reverse=True):
            x = x.prod(axis, keepdim=keep)
        return x

    reduce("prod", prod, f([3, 4, 2], 1, 0.25, 1.0), None)
    for correction in [1, 0]:
        for op, function in [("var", torch.var), ("std", torch.std)]:
            c.add(f"{op} %x {{axes = [0, 2], correction = {correction}}}", {"x": x},
                  lambda x, g=function, k=correction: g(x, (0, 2), correction=k), "row")
            c.add(f"{op} %x {{axes = [1], keep = true, correction = {correction}}}", {"x": x},
                  lambda x, g=function, k=correction: g(x, 1, correction=k, keepdim=True), "row")
    for op in ["argmax", "argmin"]:
        c.add(f"{op} %x {{axes = [1]}}", {"x": x}, lambda x, o=op: getattr(x, o)(1), grad=False)
        c.add(f"{op} %x {{axes = [2], keep = true}}", {"x": x},
              lambda x, o=op: getattr(x, o)(2, keepdim=True), grad=False)
        c.add(f"{op} %x", {"x": x}, lambda x, o=op: getattr(x, o)(), grad=False)
    for op in ["any", "all"]:
        c.add(f"{op} %x {{axes = [0, 2]}}", {"x": bools([2, 5, 2], 3)},
              lambda x, o=op: getattr(torch, o)(x, (0, 2)))
    for op, function in [("cumsum", torch.cumsum), ("cumprod", torch.cumprod)]:
        v = x if op == "cumsum" else f([3, 4, 5], 1, 0.25, 1.0)
        bf16 = "row" if op == "cumsum" else None
        c.add(f"{op} %x {{axis = 1}}", {"x": v}, lambda x, g=function: g(x, 1), bf16)
        c.add(f"{op} %x {{axis = 2, reverse = true}}", {"x": v},
              lambda x, g=function: g(x.flip(2), 2).flip(2), bf16)
    c.add("cumsum %x {axis = 1, exclusive = true}", {"x": x}, lambda x: x.cumsum(1) - x, "row")


def contractions(c):
    def matmul(text, a, b, function):
        c.add(text, {"a": a, "b": b}, function, "contraction")

    matmul("matmul %a, %b", f([5, 7], 1), f([7, 3], 2), torch.matmul)
    matmul("matmul %a, %b {transpose_a = true}", f([7, 5], 1), f([7, 3], 2), lambda a, b: a.T @ b)
    matmul("matmul %a, %b {transpose_b = true}", f([2, 5, 7], 1), f([2, 3, 7], 2),
           lambda a, b: a @ b.mT)
    c.add("matmul %a, %b, c=%c", {"a": f([4, 6], 1), "b": f([6, 3], 2), "c": f([4, 3], 3)},
          lambda a, b, c: torch.addmm(c, a, b), "contraction")


    c.add("dot_general %a, %b {a_batch = [0], b_batch = [1], a_contract = [2], b_contract = [0]}",
          {"a": f([2, 3, 4], 1), "b": f([4, 2, 5], 2)},
          lambda a, b: torch.einsum("bik,kbj->bij", a, b), "contraction")
    c.add("outer %a, %b", {"a": f([3], 1), "b": f([5], 2)}, torch.outer, "contraction")
    c.add("linear %x, %w", {"x": f([2, 3, 6], 1), "w": f([6, 4], 2)}, lambda x, w: x @ w,
          "contraction")
    c.add("linear %x, %w, bias=%b", {"x": f([2, 3, 6], 1), "w": f([6, 4], 2), "b": f([4], 3)},
          lambda x, w, b: F.linear(x, w.T, b), "contraction")
    c.add('einsum %a, %b {equation = "bij,kj->bik"}', {"a": f([2, 3, 4], 1), "b": f([5, 4], 2)},
          lambda a, b: torch.einsum("bij,kj->bik", a, b), "contraction")
    c.add('einsum %a, %b, %d {equation = "ij,jk,kl->li"}',
          {"a": f([2, 3], 1), "b": f([3, 4], 2), "d": f([4, 5], 3)},
          lambda a, b, d: torch.einsum("ij,jk,kl->li", a, b, d))
    c.add("conv1d %x, %w {stride = [2], padding = [1], dilation = [2]}",
          {"x": f([2, 3, 9], 1), "w": f([4, 3, 3], 2)},
          lambda x, w: F.conv1d(x, w, stride=2, padding=1, dilation=2), "contraction")
    c.add("conv2d %x, %w, bias=%b {padding = [1, 0]}",
          {"x": f([2, 3, 4, 5], 1), "w": f([2, 3, 3, 2], 2), "b": f([2], 3)},
          lambda x, w, b: F.conv2d(x, w, b, padding=(1, 0)), "contraction")
    c.add("conv2d %x, %w {stride = [2, 1], groups = 2}",
          {"x": f([1, 4, 5, 4], 1), "w": f([6, 2, 2, 3], 2)},
          lambda x, w: F.conv2d(x, w, stride=(2, 1), groups=2), "contraction")
    def columns(x):  # [N, C*K, L] to [C, kernel…, N, outputs…]
        return F.unfold(x, (2, 3), stride=(2, 1), padding=(1, 0)).reshape(2, 3, 2, 3, 3, 3).permute(
            1, 2, 3, 0, 4, 5)

    c.add("im2col %x {kernel = [2, 3], stride = [2, 1], padding = [1, 0]}",
          {"x": f([2, 3, 4, 5], 1)}, columns, "ulp")
    c.add("col2im %x {extents = [4, 5], stride = [2, 1], padding = [1, 0]}",
          {"x": f([3, 2, 3, 2, 3, 3], 1)},
          lambda x: F.fold(x.permute(3, 0, 1, 2, 4, 5).reshape(2, 18, 9), (4, 5), (2, 3),
                           stride=(2, 1), padding=(1, 0)), "ulp")


def pools(c):
    x = f([2, 2, 5, 4], 10)  # no ties within a window
    c.add("max_pool %x {kernel = [2, 2]}", {"x": x}, lambda x: F.max_pool2d(x, 2), "ulp")
    c.add("max_pool %x {kernel = [3, 2], stride = [1, 2], padding = [1, 0]}", {"x": x},
          lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0)), "ulp")
    c.add("avg_pool %x {kernel = [2, 2]}", {"x": x}, lambda x: F.avg_pool2d(x, 2), "ulp")
    for counted in ["true", "false"]:
        c.add(f"avg_pool %x {{kernel = [3, 2], stride = [1, 2], padding = [1, 0], "
              f"count_padding = {counted}}}", {"x": x},
              lambda x, k=counted: F.avg_pool2d(x, (3, 2), (1, 2), (1, 0),
                                                count_include_pad=k == "true"), "row")


def indexing(c):
    c.add("embedding %table, %ids", {"table": f([6, 4], 1), "ids": ints([2, 5], 2, 6)},
          lambda table, ids: F.embedding(ids, table), "ulp")


    x = f([3, 5, 2], 1)
    ids = ints([4], 2, 5)
    c.add("gather %x, %ids {axis = 1}", {"x": x, "ids": ids}, lambda x, i: x[:, i], "ulp")
    c.add("gather %x, %ids", {"x": x, "ids": ints([2, 2], 3, 3)}, lambda x, i: x[i], "ulp")
    c.add("scatter %x, %ids, %u {axis = 1}", {"x": x, "ids": ints([2], 1, 5), "u": f([3, 2, 2], 2)},
          lambda x, i, u: x.index_copy(1, distinct(i), u), "ulp")
    c.add("scatter_add %x, %ids, %u {axis = 1}", {"x": x, "ids": ids, "u": f([3, 4, 2], 2)},
          lambda x, i, u: x.index_add(1, i, u), "ulp")
    c.add("take_along_axis %x, %ids {axis = 1}", {"x": x, "ids": ints([3, 4, 2], 2, 5)},
          lambda x, i: x.gather(1, i), "ulp")
    c.add("masked_fill %x, %m {value = 0.5}", {"x": x, "m": bools([3, 5, 2], 2)},
          lambda x, m: x.masked_fill(m, 0.5), "ulp")

    def window(x, start, sizes):
        begin = [max(0, min(int(s), n - k)) for s, n, k in zip(start, x.shape, sizes)]
        return tuple(slice(b, b + k) for b, k in zip(begin, sizes))

    def update(x, u, start):
        y = x.clone()
        y[window(x, start, u.shape)] = u
        return y

    for s in [1, 2]:
        start = ints([3], s, 4)
        c.add("dynamic_slice %x, %start {sizes = [2, 3, 1]}", {"x": x, "start": start},
              lambda x, i: x[window(x, i, (2, 3, 1))], "ulp")
        c.add("dynamic_update_slice %x, %u, %start", {"x": x, "u": f([2, 3, 1], 2), "start": start},
              update, "ulp")
    x = f([3, 7, 2], 5)
    for descending in ["false", "true"]:
        c.add(f"sort %x {{axis = 1, descending = {descending}}}", {"x": x},
              lambda x, d=descending: tuple(x.sort(dim=1, descending=d == "true", stable=True)), "ulp",
              results="%y, %places")
        c.add(f"argsort %x {{axis = 1, descending = {descending}}}", {"x": x},
              lambda x, d=descending: x.argsort(dim=1, descending=d == "true", stable=True), grad=False)
    for largest in ["true", "false"]:
        c.add(f"topk %x {{k = 3, axis = 1, largest = {largest}}}", {"x": x},
              lambda x, w=largest: tuple(x.topk(3, 1, w == "true")), "ulp", results="%y, %places")


def distinct(ids):
    assert len(set(ids.reshape(-1).tolist())) == ids.numel(), ids
    return ids


def normalisations(c):
    x = f([3, 4, 6], 1, 2)
    for axis in [2, 0]:
        c.add(f"softmax %x {{axis = {axis}}}", {"x": x}, lambda x, a=axis: x.softmax(a), "row")
        c.add(f"log_softmax %x {{axis = {axis}}}", {"x": x}, lambda x, a=axis: x.log_softmax(a),
              "row")
    w = f([6], 2, 0.5, 1.0)
    c.add("layer_norm %x, %w, %b", {"x": x, "w": w, "b": f([6], 3)},
          lambda x, w, b: F.layer_norm(x, [6], w, b, 1e-5), "ulp")
    c.add("rms_norm %x, %w", {"x": x, "w": w}, lambda x, w: F.rms_norm(x, [6], w, 1e-5), "ulp")


    c.add("l2_normalize %x {axis = 1}", {"x": x}, lambda x: F.normalize(x, dim=1, eps=1e-12), "row")
    x, w, b = f([2, 4, 3, 2], 1, 2), f([4], 2, 0.5, 1.0), f([4], 3)
    c.add("group_norm %x, %w, %b {groups = 2}", {"x": x, "w": w, "b": b},
          lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), "row")
    axes = (0, 2, 3)
    c.add("batch_norm %x, %w, %b", {"x": x, "w": w, "b": b},
          lambda x, w, b: (F.batch_norm(x, None, None, w, b, True, 0, 1e-5), x.mean(axes),
                           x.var(axes, correction=0)), results="%y, %mean, %var")

    def inference(x, w, b, mean, var):
        column = [part.reshape(4, 1, 1) for part in (w, b, mean, var)]
        return (x - column[2]) * (column[3] + 1e-5).rsqrt() * column[0] + column[1]

    c.add("batch_norm_inference %x, %w, %b, %m, %v",
          {"x": x, "w": w, "b": b, "m": f([4], 4), "v": f([4], 5, 0.5, 1.0)}, inference)


def attentions(c):
    q, k, v = f([2, 4, 5, 6], 1), f([2, 2, 5, 6], 2), f([2, 2, 5, 6], 3)
    offset = ints([], 1, 1, 3)
    c.add("rope %x, %offset", {"x": q, "offset": offset},
          lambda x, offset: rope(x, "half", 10000.0, int(offset)), "ulp")
    c.add('rope %x, %offset {form = "interleaved", base = 500.0}', {"x": q, "offset": offset},
          lambda x, offset: rope(x, "interleaved", 500.0, int(offset)), "ulp")
    c.add("attention %q, %k, %v {causal = true}", {"q": q, "k": k, "v": v},
          lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
          "attention")
    c.add("attention %q, %k, %v, mask=%m {scale = 0.25}",
          {"q": q, "k": f([2, 4, 7, 6], 2), "v": f([2, 4, 7, 6], 3), "m": bools([2, 4, 5, 7], 4)},
          lambda q, k, v, m: attention(q, k, v, 0.25, mask=m), "attention")


    def capped(q, k, v, bias):
        scores = 2 * torch.tanh(q @ k.mT / math.sqrt(6) / 2) + bias
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    c.add("attention %q, %k, %v, bias=%b {softcap = 2.0, lse = true}",
          {"q": q, "k": f([2, 4, 7, 6], 2), "v": f([2, 4, 7, 3], 3), "b": f([2, 4, 5, 7], 4)},
          capped, results="%y, %lse")
    near = torch.ones(5, 5, dtype=torch.bool).tril() & torch.ones(5, 5, dtype=torch.bool).triu(-1)
    c.add("attention %q, %k, %v {causal = true, window = 2}",
          {"q": q, "k": f([2, 4, 5, 6], 2), "v": f([2, 4, 5, 6], 3)},
          lambda q, k, v: attention(q, k, v, 1 / math.sqrt(6), mask=near), "attention")
    def packed(q, k, v, bounds):
        place, same = torch.arange(5), []
        for cuts in bounds:
            number = (place[:, None] >= cuts).sum(-1)
            same.append((number[:, None] == number) & (number > 0)[:, None] & (number < 3)[:, None])
        return attention(q, k, v, 0.5, mask=torch.stack(same)[:, None])

    # Boundaries 0 2 3 and 1 1 3: some places are in no document.
    c.add("attention %q, %k, %v, boundaries=%b {scale = 0.5}",
          {"q": q, "k": f([2, 4, 5, 6], 2), "v": f([2, 4, 5, 6], 3), "b": ints([2, 3], 38, 5)},
          packed, "attention")
    distance = (torch.arange(3)[:, None] + 4 - torch.arange(7)).abs()

    def alibi(q, k, v, slopes):
        scores = q @ k.mT / math.sqrt(6) - slopes[:, None, None] * distance
        return scores.masked_fill(torch.arange(7) > torch.arange(4, 7)[:, None], -math.inf
                                  ).softmax(-1) @ v

    c.add("attention %q, %k, %v, slopes=%s {causal = true}",
          {"q": f([2, 4, 3, 6], 1), "k": f([2, 4, 7, 6], 2), "v": f([2, 4, 7, 6], 3),
           "s": f([4], 4, 0.25, 0.5)}, alibi)


def losses(c):
    z, t = f([5, 7], 1, 2), ints([5], 3, 7)
    for reduction in ["mean", "sum", "none"]:
        c.add(f'cross_entropy %z, %t {{reduction = "{reduction}", ignore_index = 2}}',
              {"z": z, "t": t},
              lambda z, t, r=reduction: (cross_entropy(z, t, r, 2), (t != 2).sum()), "loss",
              results="%y, %count")
    def valid(t):
        return (t != 2).sum()

    weight = f([7], 4, 0.5, 1.0)
    c.add("cross_entropy %z, %t {ignore_index = 2, label_smoothing = 0.125}", {"z": z, "t": t},
          lambda z, t: (F.cross_entropy(z, t, ignore_index=2, label_smoothing=0.125), valid(t)),
          "loss", results="%y, %count")
    c.add("cross_entropy %z, %t, weight=%w {ignore_index = 2, label_smoothing = 0.125}",
          {"z": z, "t": t, "w": weight},
          lambda z, t, w: (F.cross_entropy(z, t, w, ignore_index=2, label_smoothing=0.125),
                           valid(t)), grad=["z"], results="%y, %count")
    c.add("cross_entropy %z, %t {ignore_index = 2, z_loss = 0.25}", {"z": z, "t": t},
          lambda z, t: (F.cross_entropy(z, t, ignore_index=2)
                        + 0.25 * (z.logsumexp(-1).square() * (t != 2)).sum() / valid(t), valid(t)),
          "loss", results="%y, %count")
    for reduction in ["mean", "sum", "none"]:
        attrs = f'{{reduction = "{reduction}"}}'
        c.add(f'nll %z, %t {{reduction = "{reduction}", ignore_index = 2}}', {"z": z, "t": t},
              lambda z, t, r=reduction: (F.nll_loss(z, t, ignore_index=2, reduction=r), valid(t)),
              results="%y, %count")
        x, y = f([4, 6], 1, 2), f([4, 6], 2)
        for op, function in [("mse", F.mse_loss), ("l1", F.l1_loss)]:
            c.add(f"{op} %x, %y {attrs}", {"x": x, "y": y},
                  lambda x, y, g=function, r=reduction: g(x, y, reduction=r), results="%l")
        c.add(f'huber %x, %y {{delta = 0.75, reduction = "{reduction}"}}', {"x": x, "y": y},
              lambda x, y, r=reduction: F.huber_loss(x, y, reduction=r, delta=0.75), results="%l")
        p = f([4, 6], 3, 0.25, 0.5)
        whole = {"mean": torch.mean, "sum": torch.sum, "none": lambda each: each}[reduction]
        c.add(f"kl_div %x, %y {attrs}", {"x": x, "y": p},
              lambda x, y, g=whole: g(F.kl_div(x, y, reduction="none")), results="%l")
        c.add(f"binary_cross_entropy_with_logits %x, %y {attrs}", {"x": x, "y": p},
              lambda x, y, r=reduction: F.binary_cross_entropy_with_logits(x, y, reduction=r),
              results="%l")
    c.add("kl_div %x, %y {log_target = true}", {"x": x, "y": y},
          lambda x, y: F.kl_div(x, y, reduction="none", log_target=True).mean(), results="%l")
    c.add("binary_cross_entropy_with_logits %x, %y, weight=%w, pos_weight=%p",
          {"x": x, "y": p, "w": f([4, 6], 5, 0.5, 1.0), "p": f([6], 6, 0.5, 1.0)},
          lambda x, y, w, q: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=q),
          grad=["x"], results="%l")


def make():
    c = Cases()
    for family in [pointwise, views, reductions, contractions, pools, indexing, normalisations,
                   attentions, losses]:
        family(c)
    return [("all_ops", c.golden, c.texts)]


if __name__ == "__main__":
    sys.exit(run(__doc__, make))
