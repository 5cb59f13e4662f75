#!/usr/bin/env python3
"""Makes the golden files that sinter's results are compared with, in float64, with PyTorch.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install torch numpy safetensors
    /tmp/venv/bin/python tests/parity/make_gpt2_golden.py            # writes tests/golden/
    /tmp/venv/bin/python tests/parity/make_gpt2_golden.py --check    # compares instead of writing

The tests read the files and need no Python. All inputs come from a counter-based generator written
out below, so that another version of numpy or PyTorch makes the same inputs; results then agree to
a few units in the last place of a double, which is what --check allows for.

tests/golden/gpt2_2layer.safetensors: one forward and backward pass of a small GPT-2.
    Layers 2, heads 2, width C = 16, vocabulary V = 13, context T = 8, batch B = 2, no dropout.
    Learned positions, LayerNorm with eps 1e-5, gelu in its tanh form, biases everywhere, the output
    projection tied to wte (logits = x @ wte^T). The loss is the mean cross-entropy over the targets
    that are not -100; one target is -100.
    Weights are [in, out], as in GPT-2's Conv1D: y = x @ weight + bias. q, k and v are the three
    consecutive parts of qkv, each C wide; heads are consecutive chunks of C / heads.
      ids, targets                          i32 [B,T]
      wte.weight [V,C]  wpe.weight [T,C]    f32, like every parameter
      blocks.N.ln1.weight, .bias            [C]
      blocks.N.attn.qkv.weight [C,3C], .bias [3C]
      blocks.N.attn.proj.weight [C,C], .bias [C]
      blocks.N.ln2.weight, .bias            [C]
      blocks.N.mlp.fc.weight [C,4C], .bias [4C]
      blocks.N.mlp.proj.weight [4C,C], .bias [C]
      ln_f.weight, .bias                    [C]
      loss                                  f64 []
      logits                                f64 [B,T,V]
      grad.NAME                             f64, shape of the parameter NAME
    Parameters are exact in f32; every computation is in f64.

tests/golden/gpt2_2layer_adamw.safetensors: three AdamW steps from that start on that batch.
    lr 1e-3, betas 0.9 and 0.95, eps 1e-8, decoupled weight decay 0.1 on parameters of two axes and
    none on those of one (torch.optim.AdamW, whose eps is outside the root, after bias correction).
      losses                                f64 [3], each before its update
      NAME                                  f64, the parameter after the third update
    The gradient of the key part of a qkv bias is zero in exact arithmetic, so AdamW scales up what
    rounding left: that part agrees within 1e-11 in f64, and in f32 only within the learning rate.

tests/golden/ops_golden.safetensors: single ops, forward and backward.
      OP.CASE.input.NAME                    f64, or i32 / bool for ids, targets and masks
      OP.CASE.output                        f64
      OP.CASE.count                         i32 [], the second result of cross_entropy
      OP.CASE.upstream                      f64, weights of the loss L = sum(upstream * output)
      OP.CASE.grad.NAME                     f64, dL/dNAME
    The entry OP.CASE of the file's metadata is the op as module text, `%y = softmax %x {axis = 1}`,
    over values named like the inputs.
"""

import argparse
import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open

LAYERS, HEADS, WIDTH, VOCAB, CONTEXT, BATCH = 2, 2, 16, 13, 8, 2
EPS = 1e-5
IGNORE = -100


def splitmix64(index):
    """The well-known mixer, over uint64 arrays; wraps on purpose."""
    z = index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Source:
    """Numbered draws; each call takes the next stream."""

    def __init__(self, first):
        self.stream = first

    def bits(self, shape):
        self.stream += 1
        count = int(np.prod(shape, dtype=np.int64))
        index = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(self.stream << 32)
        return splitmix64(index).reshape(shape)

    def uniform(self, shape, scale=1.0, shift=0.0):
        """shift + scale * u, u in [-1, 1), rounded to f32 so that both precisions start equal."""
        u = (self.bits(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        return np.asarray(shift + scale * u).astype(np.float32).astype(np.float64)

    def integers(self, shape, limit):
        return (self.bits(shape) % np.uint64(limit)).astype(np.int32)


# --- The model ---------------------------------------------------------------------------------


def make_parameters(source):
    parameters = {
        "wte.weight": source.uniform([VOCAB, WIDTH], 0.6),
        "wpe.weight": source.uniform([CONTEXT, WIDTH], 0.3),
    }

    def norm(name):
        parameters[f"{name}.weight"] = source.uniform([WIDTH], 0.3, 1.0)
        parameters[f"{name}.bias"] = source.uniform([WIDTH], 0.2)

    def linear(name, inputs, outputs):
        scale = 1.5 / math.sqrt(inputs)
        parameters[f"{name}.weight"] = source.uniform([inputs, outputs], scale)
        parameters[f"{name}.bias"] = source.uniform([outputs], 0.2)

    for layer in range(LAYERS):
        norm(f"blocks.{layer}.ln1")
        linear(f"blocks.{layer}.attn.qkv", WIDTH, 3 * WIDTH)
        linear(f"blocks.{layer}.attn.proj", WIDTH, WIDTH)
        norm(f"blocks.{layer}.ln2")
        linear(f"blocks.{layer}.mlp.fc", WIDTH, 4 * WIDTH)
        linear(f"blocks.{layer}.mlp.proj", 4 * WIDTH, WIDTH)
    norm("ln_f")
    return parameters


def gpt2(p, ids):
    def norm(x, name):
        return F.layer_norm(x, [WIDTH], p[f"{name}.weight"], p[f"{name}.bias"], EPS)

    def linear(x, name):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def heads(x):
        return x.reshape(BATCH, CONTEXT, HEADS, WIDTH // HEADS).transpose(1, 2)

    future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
    x = p["wte.weight"][ids] + p["wpe.weight"]
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        qkv = linear(norm(x, f"{block}.ln1"), f"{block}.attn.qkv")
        q, k, v = (heads(part) for part in qkv.split(WIDTH, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH)
        x = x + linear(mixed, f"{block}.attn.proj")
        hidden = F.gelu(linear(norm(x, f"{block}.ln2"), f"{block}.mlp.fc"), approximate="tanh")
        x = x + linear(hidden, f"{block}.mlp.proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def train(values, model, ids, targets):
    """Loss, logits and gradients of a language model; and three AdamW steps from there."""
    ids_t, targets_t = torch.from_numpy(ids).long(), torch.from_numpy(targets).long()

    def leaves():
        return {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in values.items()}

    def loss_of(p):
        logits = model(p, ids_t)
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), targets_t.reshape(-1),
                               ignore_index=IGNORE)
        return loss, logits

    p = leaves()
    loss, logits = loss_of(p)
    loss.backward()
    golden = {k: v.astype(np.float32) for k, v in values.items()}
    golden["ids"], golden["targets"] = ids, targets
    golden["loss"], golden["logits"] = loss.detach().numpy(), logits.detach().numpy()
    for name, leaf in p.items():
        golden[f"grad.{name}"] = leaf.grad.numpy()

    p = leaves()
    groups = [
        {"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": 0.1},
        {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss, _ = loss_of(p)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    trained = {k: v.detach().numpy() for k, v in p.items()}
    trained["losses"] = np.array(losses)
    return golden, trained


def make_model():
    source = Source(1000)
    values = make_parameters(source)
    ids = source.integers([BATCH, CONTEXT], VOCAB)
    targets = source.integers([BATCH, CONTEXT], VOCAB)
    targets[1, 2] = IGNORE
    return train(values, gpt2, ids, targets)


# --- Single ops ----------------------------------------------------------------------------------


def rope(x, form, base, offset):
    """Rotates pairs of the last axis by position * base^(-2 i / d); positions run along the axis
    before it, from offset. half pairs (i, i + d/2), interleaved (2 i, 2 i + 1)."""
    length, d = x.shape[-2], x.shape[-1]
    frequency = base ** (-2.0 * np.arange(d // 2) / d)
    angle = torch.from_numpy((offset + np.arange(length))[:, None] * frequency)
    cos, sin = angle.cos(), angle.sin()
    if form == "half":
        x1, x2 = x[..., : d // 2], x[..., d // 2 :]
    else:
        x1, x2 = x[..., 0::2], x[..., 1::2]
    y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    if form == "half":
        return torch.cat([y1, y2], -1)
    return torch.stack([y1, y2], -1).reshape(x.shape)


def attention(q, k, v, scale, causal=False, mask=None):
    """Composed attention. causal is aligned at the bottom right; a row that sees no key gives 0."""
    sq, sk = q.shape[-2], k.shape[-2]
    visible = torch.ones(sq, sk, dtype=torch.bool)
    if causal:
        visible = visible.tril(sk - sq)
    if mask is not None:
        visible = visible & mask
    visible = visible.expand(*q.shape[:-1], sk)
    some = visible.any(-1, keepdim=True)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~visible & some, -math.inf)
    return torch.where(some, scores.softmax(-1), torch.zeros((), dtype=scores.dtype)) @ v


def cross_entropy(z, t, reduction, ignore):
    loss = F.cross_entropy(z, t.long(), reduction=reduction, ignore_index=ignore)
    if reduction == "mean" and not bool((t != ignore).any()):
        return z.sum() * 0.0  # no valid target: loss 0 and gradient 0, where PyTorch gives NaN
    return loss


def layer_norm(x, gamma, beta):
    """Of the deviations: PyTorch's own backward subtracts large sums where the mean is large."""
    centered = x - x.mean(-1, keepdim=True)
    return centered * (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gamma + beta


def norm(x, axes, keep=False):
    return torch.linalg.vector_norm(x, dim=axes, keepdim=keep)


def op_cases(source):
    """Yields op, case, text, inputs, function. Float inputs are differentiated."""
    u = source.uniform
    wide = np.array([-120.0, -89.0, -20.0, -3.0, -0.5, 0.0, 0.25, 2.0, 20.0, 120.0])

    yield "softmax", "last", "softmax %x", {"x": u([3, 5], 3.0)}, lambda x: x.softmax(-1)
    yield ("softmax", "middle", "softmax %x {axis = 1}", {"x": u([2, 4, 3], 3.0)},
           lambda x: x.softmax(1))
    yield ("softmax", "large", "softmax %x", {"x": np.array([[1000.0, 999.0, -1000.0]])},
           lambda x: x.softmax(-1))
    yield ("log_softmax", "last", "log_softmax %x", {"x": u([3, 5], 3.0)},
           lambda x: x.log_softmax(-1))
    yield ("log_softmax", "first", "log_softmax %x {axis = 0}", {"x": u([4, 3], 3.0)},
           lambda x: x.log_softmax(0))
    yield ("log_softmax", "large", "log_softmax %x", {"x": np.array([[1000.0, 999.0, -1000.0]])},
           lambda x: x.log_softmax(-1))

    yield ("layer_norm", "rows", "layer_norm %x, %gamma, %beta {eps = 1e-5}",
           {"x": u([3, 2, 7], 2.0), "gamma": u([7], 0.5, 1.0), "beta": u([7], 0.5)},
           layer_norm)
    yield ("layer_norm", "large_mean", "layer_norm %x, %gamma, %beta {eps = 1e-5}",
           {"x": (4096.0 + np.arange(8) / 256.0).reshape(1, 8), "gamma": u([8], 0.5, 1.0),
            "beta": u([8], 0.5)},
           layer_norm)
    yield ("rms_norm", "rows", "rms_norm %x, %w {eps = 1e-6}",
           {"x": u([2, 3, 6], 2.0), "w": u([6], 0.5, 1.0)},
           lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w)
    yield ("rms_norm", "zero_row", "rms_norm %x, %w {eps = 1e-5}",
           {"x": np.stack([np.zeros(4), u([4])]), "w": u([4], 0.5, 1.0)},
           lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w)

    yield ("gelu", "none", 'gelu %x {approximate = "none"}', {"x": np.append(wide, u([6], 4.0))},
           lambda x: F.gelu(x))
    yield ("gelu", "tanh", 'gelu %x {approximate = "tanh"}', {"x": np.append(wide, u([6], 4.0))},
           lambda x: F.gelu(x, approximate="tanh"))
    yield "silu", "wide", "silu %x", {"x": np.append(wide, u([6], 4.0))}, lambda x: F.silu(x)
    yield ("softplus", "wide", "softplus %x", {"x": np.append(wide, u([6], 4.0))},
           lambda x: torch.logaddexp(x, torch.zeros((), dtype=x.dtype)))

    targets = np.array([2, IGNORE, 4, 0], dtype=np.int32)
    for reduction in ["mean", "sum", "none"]:
        yield ("cross_entropy", reduction, f'cross_entropy %z, %t {{reduction = "{reduction}"}}',
               {"z": u([4, 5], 3.0), "t": targets},
               lambda z, t, r=reduction: cross_entropy(z, t, r, IGNORE))
    yield ("cross_entropy", "all_ignored", "cross_entropy %z, %t",
           {"z": u([3, 4], 3.0), "t": np.full([3], IGNORE, dtype=np.int32)},
           lambda z, t: cross_entropy(z, t, "mean", IGNORE))
    yield ("cross_entropy", "ignore_class", "cross_entropy %z, %t {ignore_index = 1}",
           {"z": u([4, 3], 3.0), "t": np.array([0, 1, 2, 1], dtype=np.int32)},
           lambda z, t: cross_entropy(z, t, "mean", 1))

    def qkv(sq, sk, d, batch=(2, 2)):
        lengths = {"q": sq, "k": sk, "v": sk}
        return {name: u([*batch, length, d], 1.5) for name, length in lengths.items()}

    def attend(**options):
        return lambda q, k, v, mask=None: attention(q, k, v, mask=mask, **options)

    yield ("attention", "plain", "attention %q, %k, %v {scale = 0.5}", qkv(3, 5, 4),
           attend(scale=0.5))
    yield ("attention", "causal", "attention %q, %k, %v {causal = true, scale = 0.5}", qkv(5, 5, 4),
           attend(scale=0.5, causal=True))
    yield ("attention", "causal_short", "attention %q, %k, %v {causal = true, scale = 0.5}",
           qkv(3, 6, 4), attend(scale=0.5, causal=True))
    yield ("attention", "causal_long", "attention %q, %k, %v {causal = true, scale = 0.5}",
           qkv(6, 3, 4), attend(scale=0.5, causal=True))
    mask = source.bits([2, 2, 4, 5]) % np.uint64(3) != 0
    mask[0, 1, 2, :] = False
    yield ("attention", "mask", "attention %q, %k, %v, mask=%mask {scale = 0.5}",
           {**qkv(4, 5, 4), "mask": mask}, attend(scale=0.5))
    mask = source.bits([2, 2, 4, 6]) % np.uint64(3) != 0
    mask[1, 0, 0, :3] = False
    yield ("attention", "causal_mask",
           "attention %q, %k, %v, mask=%mask {causal = true, scale = 0.5}",
           {**qkv(4, 6, 4), "mask": mask}, attend(scale=0.5, causal=True))

    offset = np.zeros([], dtype=np.int32)
    for form in ["half", "interleaved"]:
        for name, start in [("start", 0), ("offset", 37)]:
            attrs = "" if form == "half" else ' {form = "interleaved"}'
            yield ("rope", f"{form}_{name}", f"rope %x, %offset{attrs}",
                   {"x": u([2, 2, 4, 6]), "offset": offset + np.int32(start)},
                   lambda x, offset, f=form: rope(x, f, 10000.0, int(offset)))
    yield ("rope", "base", "rope %x, %offset {base = 500000.0}",
           {"x": u([1, 5, 4]), "offset": offset + np.int32(3)},
           lambda x, offset: rope(x, "half", 500000.0, int(offset)))

    ids = np.array([[2, 0, 2], [2, 1, 5]], dtype=np.int32)
    yield ("embedding", "repeated", "embedding %table, %ids", {"table": u([6, 3]), "ids": ids},
           lambda table, ids: table[ids.long()])

    yield ("logsumexp", "last", "logsumexp %x {axes = [1]}", {"x": u([3, 5], 3.0)},
           lambda x: x.logsumexp([1]))
    yield ("logsumexp", "outer", "logsumexp %x {axes = [0, 2], keep = true}",
           {"x": u([2, 3, 4], 3.0)}, lambda x: x.logsumexp([0, 2], keepdim=True))
    yield ("logsumexp", "infinite", "logsumexp %x {axes = [1]}",
           {"x": np.array([[-math.inf, 1.0, -math.inf], [0.5, -math.inf, 2.0]])},
           lambda x: x.logsumexp([1]))
    yield "norm", "last", "norm %x {axes = [1]}", {"x": u([3, 5], 3.0)}, lambda x: norm(x, [1])
    yield ("norm", "outer", "norm %x {axes = [0, 2], keep = true}", {"x": u([2, 3, 4], 3.0)},
           lambda x: norm(x, [0, 2], True))
    yield ("norm", "zero_row", "norm %x {axes = [1]}", {"x": np.stack([np.zeros(3), u([3])])},
           lambda x: norm(x, [1]))


def make_ops():
    source = Source(2000)
    golden, texts = {}, {}
    for op, case, text, inputs, function in op_cases(source):
        key = f"{op}.{case}"
        assert key not in texts, key
        texts[key] = f"%y, %count = {text}" if op == "cross_entropy" else f"%y = {text}"
        leaves = {k: torch.from_numpy(np.array(v, order="C")) for k, v in inputs.items()}
        for leaf in leaves.values():
            leaf.requires_grad_(leaf.is_floating_point())
        output = function(**leaves)
        upstream = np.asarray(source.uniform(list(output.shape)))
        output.backward(torch.from_numpy(upstream))
        for name, leaf in leaves.items():
            golden[f"{key}.input.{name}"] = leaf.detach().numpy()
            if leaf.requires_grad:
                grad = leaf.grad.numpy()
                assert np.isfinite(grad).all(), (key, name)
                golden[f"{key}.grad.{name}"] = grad
        golden[f"{key}.output"] = output.detach().numpy()
        golden[f"{key}.upstream"] = upstream
        if op == "cross_entropy":
            ignore = 1 if case == "ignore_class" else IGNORE
            golden[f"{key}.count"] = np.array(int((inputs["t"] != ignore).sum()), dtype=np.int32)
    return golden, texts


# --- Files ---------------------------------------------------------------------------------------

DTYPES = {"float64": "F64", "float32": "F32", "int32": "I32", "bool": "BOOL"}


def write(path, tensors, texts):
    """A safetensors file with everything in a fixed order, so that equal results are equal bytes."""
    header, offset = {"__metadata__": texts} if texts else {}, 0
    for name, value in tensors.items():
        end = offset + value.nbytes
        header[name] = {"dtype": DTYPES[value.dtype.name], "shape": list(value.shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(value.tobytes() for value in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def differences(path, tensors, texts):
    """What differs between the file and new results, beyond the last places of a double."""
    with safe_open(path, "np") as file:
        if (file.metadata() or {}) != (texts or {}):
            yield "metadata"
        if set(file.keys()) != set(tensors):
            yield f"names {sorted(set(file.keys()) ^ set(tensors))}"
            return
        for name in file.keys():
            old, new = file.get_tensor(name), tensors[name]
            exact = new.dtype != np.float64 or ".input." in name or name.endswith(".upstream")
            if old.dtype != new.dtype or old.shape != new.shape:
                yield f"{name}: type or shape"
            elif exact and not np.array_equal(old, new):
                yield f"{name}: an input"
            elif not exact:
                finite = np.abs(new[np.isfinite(new)])
                limit = 1e-12 * max(1.0, finite.max(initial=0.0))
                if not np.allclose(old, new, rtol=1e-12, atol=limit):
                    yield f"{name}: {np.abs(old - new).max()}"


def run(description, make):
    """The command line of a generator; `make` gives the name, tensors and texts of each file."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).resolve().parent.parent / "golden"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)

    failed = False
    for name, tensors, metadata in make():
        path = options.out / f"{name}.safetensors"
        # Wide types first: then every tensor is aligned to its own size.
        tensors = {k: np.array(v, order="C") for k, v in tensors.items()}
        tensors = dict(sorted(tensors.items(), key=lambda t: (-t[1].itemsize, t[0])))
        if options.check:
            found = list(differences(path, tensors, metadata))
            failed |= bool(found)
            print(f"{path.name}: {len(tensors)} tensors, {len(found)} differ", *found, sep="\n  ")
        else:
            options.out.mkdir(parents=True, exist_ok=True)
            write(path, tensors, metadata)
            print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")
    return 1 if failed else 0


def make():
    model, trained = make_model()
    ops, texts = make_ops()
    return [
        ("gpt2_2layer", model, None),
        ("gpt2_2layer_adamw", trained, None),
        ("ops_golden", ops, texts),
    ]


if __name__ == "__main__":
    sys.exit(run(__doc__, make))
