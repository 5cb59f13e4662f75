"""Trains one GPT-2 in sinter and in PyTorch and compares the losses, step by step.

    train_bf16.py --train-gpt build/carry/bin/train_gpt --out DIR
                  [--text DIR] [--megabytes 24] [--model gpt2-124m] [--batch 32] [--steps 200]
                  [--dtype bf16] [--device cuda] [--modes eager,compile]

Both start from the same weights (a safetensors file that this script writes) and see the same
batches of bytes of Python sources, the same schedule, clipping and AdamW. PyTorch runs eager and
compiled; how far those two are apart is the measure. A step passes when sinter is within
max(0.5 %, 3 x that spread) of PyTorch eager, the validation loss within max(0.2 %, the spread).

Leaves DIR/result.json and DIR/losses.svg. Exit status 1: a rule is broken. Needs PyTorch and numpy.
"""

import argparse
import json
import math
import pathlib
import struct
import subprocess
import sys
import sysconfig
import time

import numpy as np
import torch
import torch.nn.functional as F

PRESETS = {
    "gpt2-124m": dict(layers=12, heads=12, width=768, vocab=50257, context=1024),
    "small": dict(layers=6, heads=6, width=384, vocab=256, context=256),
    "tiny": dict(layers=4, heads=4, width=128, vocab=256, context=128),
}
EPS = 1e-5
BLOCK, PER_VALIDATION = 4096, 10
BATCH_SITE = 0xFFFFFFFF


# ---- data, as frontends/data/text.cpp cuts and draws it


def collect(folders, size):
    """The first `size` bytes of the *.py files below the folders, sorted; without ones twice."""
    text, seen = bytearray(), set()
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            if len(text) >= size:
                break
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if hash(content) not in seen:
                seen.add(hash(content))
                text += content
    return bytes(text[:size])


def split(text):
    if len(text) < PER_VALIDATION * BLOCK:
        cut = len(text) - len(text) // PER_VALIDATION
        return text[:cut], text[cut:]
    parts = [bytearray(), bytearray()]
    for i, start in enumerate(range(0, len(text), BLOCK)):
        parts[i % PER_VALIDATION == PER_VALIDATION - 1] += text[start : start + BLOCK]
    return bytes(parts[0]), bytes(parts[1])


def philox(key, counter):
    """Philox4x32-10 (Salmon et al., 2011)."""
    k, c, mask = list(key), list(counter), 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


assert philox((0, 0), (0, 0, 0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def windows(stream, starts, length):
    rows = np.stack([stream[s : s + length + 1] for s in starts])
    return rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)


def batch(training, rows, length, seed, step):
    places, starts = len(training) - length, []
    for row in range(rows):
        w = philox((seed & 0xFFFFFFFF, seed >> 32), (row, 0, BATCH_SITE, step))
        starts.append((w[0] | w[1] << 32) % places)
    return windows(training, starts, length)


# ---- weights


def make_weights(c, seed):
    rng = np.random.default_rng(seed)
    normal = lambda shape, deviation: rng.normal(0, deviation, shape).astype(np.float32)
    zeros = lambda n: np.zeros(n, np.float32)
    w, out = c["width"], 0.02 / math.sqrt(2 * c["layers"])
    weights = {"wte.weight": normal((c["vocab"], w), 0.02),
               "wpe.weight": normal((c["context"], w), 0.02)}
    for i in range(c["layers"]):
        b = f"blocks.{i}."
        for name, rows, columns, deviation in [("attn.qkv", w, 3 * w, 0.02), ("attn.proj", w, w, out),
                                               ("mlp.fc", w, 4 * w, 0.02), ("mlp.proj", 4 * w, w, out)]:
            weights[b + name + ".weight"] = normal((rows, columns), deviation)
            weights[b + name + ".bias"] = zeros(columns)
        for name in ("ln1", "ln2"):
            weights[b + name + ".weight"], weights[b + name + ".bias"] = zeros(w) + 1, zeros(w)
    weights["ln_f.weight"], weights["ln_f.bias"] = zeros(w) + 1, zeros(w)
    return weights


def write_safetensors(path, tensors):
    header, at, data = {}, 0, []
    for name in sorted(tensors):
        content = np.ascontiguousarray(tensors[name]).tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape),
                        "data_offsets": [at, at + len(content)]}
        at += len(content)
        data.append(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for content in data:
            file.write(content)


# ---- PyTorch


def forward(p, c, ids, targets, dtype, reduction):
    b, t = ids.shape
    heads, width = c["heads"], c["width"]

    def norm(x, name):
        return F.layer_norm(x, (width,), p[name + ".weight"], p[name + ".bias"], EPS)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"].t(), p[name + ".bias"])

    x = F.embedding(ids, p["wte.weight"]) + p["wpe.weight"][:t]
    if dtype is not None:
        x = x.to(dtype)  # the residual stream
    for i in range(c["layers"]):
        block = f"blocks.{i}."
        qkv = linear(norm(x, block + "ln1"), block + "attn.qkv")
        q, k, v = qkv.view(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(b, t, width), block + "attn.proj")
        h = F.gelu(linear(norm(x, block + "ln2"), block + "mlp.fc"), approximate="tanh")
        x = x + linear(h, block + "mlp.proj")
    logits = F.linear(norm(x, "ln_f"), p["wte.weight"])
    return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1),
                           reduction=reduction)


def rate(a, step):
    """train::LearningRate::at of a cosine."""
    if step < a.warmup:
        return a.lr * (step + 1) / a.warmup
    done = min(max((step - a.warmup) / max(a.steps - a.warmup, 1), 0.0), 1.0)
    return a.lr * (1 - 0.9 * (0.5 - 0.5 * math.cos(math.pi * done)))


def train_torch(a, c, mode, weights, training, validation):
    device = torch.device(a.device)
    dtype = {"bf16": torch.bfloat16, "f32": None}[a.dtype]
    torch.backends.cuda.matmul.allow_tf32 = False
    p = {n: torch.tensor(w, device=device).requires_grad_() for n, w in weights.items()}
    groups = [{"params": [v for v in p.values() if (v.dim() >= 2) == decays],
               "weight_decay": a.weight_decay if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-8)

    def loss_of(ids, targets, reduction="mean"):
        with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            return forward(p, c, ids, targets, dtype, reduction)

    run = loss_of if mode == "eager" else torch.compile(loss_of)
    losses, begin = [], time.time()
    for step in range(a.steps):
        ids, targets = (torch.from_numpy(x).to(device)
                        for x in batch(training, a.batch, c["context"], a.seed, step))
        for group in optimizer.param_groups:
            group["lr"] = rate(a, step)
        loss = run(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), a.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    seconds = time.time() - begin
    total, count, length = 0.0, len(validation) - 1, c["context"]
    with torch.no_grad():
        for first in range(0, count, length * a.batch):
            starts = [s for s in range(first, min(first + length * a.batch, count), length)]
            whole = [s for s in starts if s + length <= count]
            if whole:
                total += loss_of(*(torch.from_numpy(x).to(device)
                                   for x in windows(validation, whole, length)), "sum").item()
            for s in starts[len(whole):]:
                total += loss_of(*(torch.from_numpy(x).to(device)
                                   for x in windows(validation, [s], count - s)), "sum").item()
    return {"losses": losses, "val_loss": total / count, "seconds": seconds}


# ---- sinter


def train_sinter(a, c, text, weights, out):
    sizes = [f for n in ("layers", "heads", "width", "vocab", "context") for f in (f"--{n}", str(c[n]))]
    command = [a.train_gpt, "--data", text, "--init", weights, "--out", out, *sizes, "--batch", a.batch,
               "--steps", a.steps, "--lr", a.lr, "--schedule", "cosine", "--warmup", a.warmup,
               "--weight-decay", a.weight_decay, "--clip", a.clip, "--dropout", 0, "--dtype", a.dtype,
               "--seed", a.seed, "--device", a.device, "--sample", 0, *a.train_gpt_flags.split()]
    begin = time.time()
    subprocess.run([str(x) for x in command], check=True)
    seconds = time.time() - begin
    lines = [json.loads(l) for l in open(pathlib.Path(out) / "metrics.jsonl")]
    return {"losses": [l["loss"] for l in lines if "loss" in l],
            "val_loss": [l["val_loss"] for l in lines if "val_loss" in l][-1], "seconds": seconds}


# ---- the rule, and what is left of it


def judge(runs):
    eager, sinter = runs["eager"], runs["sinter"]
    other = runs.get("compile", eager)
    steps, broken = [], []
    for i, (e, o, s) in enumerate(zip(eager["losses"], other["losses"], sinter["losses"])):
        spread, off = abs(e - o) / e, abs(s - e) / e
        allowed = max(0.005, 3 * spread)
        steps.append({"step": i + 1, "off": off, "spread": spread, "allowed": allowed})
        if not off <= allowed:
            broken.append(f"step {i + 1}: {off:.4%} off, {allowed:.4%} allowed")
    e, o, s = eager["val_loss"], other["val_loss"], sinter["val_loss"]
    validation = {"off": abs(s - e) / e, "spread": abs(e - o) / e}
    validation["allowed"] = max(0.002, validation["spread"])
    if not validation["off"] <= validation["allowed"]:
        broken.append(f"validation: {validation['off']:.4%} off, {validation['allowed']:.4%} allowed")
    if len(sinter["losses"]) != len(eager["losses"]):
        broken.append(f"sinter made {len(sinter['losses'])} steps of {len(eager['losses'])}")
    return {"steps": steps, "validation": validation, "broken": broken}


def plot(path, runs, verdict):
    width, height, left, top, gap = 760, 250, 60, 30, 60
    colours = {"eager": "#1f77b4", "compile": "#2ca02c", "sinter": "#d62728", "allowed": "#999999"}

    def chart(y0, title, series, unit):
        n = max(len(v) for v in series.values())
        low = min(min(v) for v in series.values())
        high = max(max(v) for v in series.values())
        high = high if high > low else low + 1
        x = lambda i: left + i * (width - left - 20) / max(n - 1, 1)
        y = lambda v: y0 + height - (v - low) * height / (high - low)
        lines = [f'<text x="{left}" y="{y0 - 8}">{title}</text>',
                 f'<rect x="{left}" y="{y0}" width="{width - left - 20}" height="{height}" '
                 'fill="none" stroke="#ccc"/>']
        for k in range(5):
            v = low + (high - low) * k / 4
            lines.append(f'<text x="{left - 6}" y="{y(v) + 4}" text-anchor="end">{v * unit:.3g}</text>')
        for j, (name, values) in enumerate(series.items()):
            points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[name]}" '
                         'stroke-width="1.3"/>')
            lines.append(f'<text x="{width - 100}" y="{y0 + 18 + 16 * j}" '
                         f'fill="{colours[name]}">{name}</text>')
        return lines

    losses = {n: runs[n]["losses"] for n in runs}
    off = {"sinter": [s["off"] for s in verdict["steps"]], "allowed": [s["allowed"] for s in verdict["steps"]]}
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{2 * height + top + 2 * gap}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    svg += chart(top, "training loss, by step", losses, 1)
    svg += chart(top + height + gap, "off PyTorch eager, percent, by step", off, 100)
    open(path, "w").write("\n".join(svg + ["</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train-gpt", required=True)
    parser.add_argument("--train-gpt-flags", default="", help="further ones, in one string")
    parser.add_argument("--out", required=True)
    parser.add_argument("--text", action="append", help="a folder of Python sources; Python's own if not given")
    for name, value in [("megabytes", 24.0), ("lr", 3e-4), ("weight-decay", 0.1), ("clip", 1.0)]:
        parser.add_argument("--" + name, type=float, default=value)
    for name, value in [("batch", 32), ("steps", 200), ("warmup", 20), ("seed", 1)]:
        parser.add_argument("--" + name, type=int, default=value)
    for name in PRESETS["tiny"]:
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--model", default="gpt2-124m", choices=PRESETS)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--modes", default="eager,compile", help="of PyTorch")
    a = parser.parse_args()
    c = {n: getattr(a, n) or v for n, v in PRESETS[a.model].items()}
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    text = collect(a.text or [sysconfig.get_path(n) for n in ("stdlib", "purelib")], int(a.megabytes * 1e6))
    (out / "text.bin").write_bytes(text)
    training, validation = (np.frombuffer(part, np.uint8) for part in split(text))
    weights = make_weights(c, a.seed)
    write_safetensors(out / "init.safetensors", weights)
    runs = {m: train_torch(a, c, m, weights, training, validation) for m in a.modes.split(",")}
    runs["sinter"] = train_sinter(a, c, out / "text.bin", out / "init.safetensors", out / "sinter")
    verdict = judge(runs)
    settings = {**vars(a), **c, "text_bytes": len(text), "torch_version": torch.__version__,
                "card": torch.cuda.get_device_name() if a.device == "cuda" else "cpu"}
    (out / "result.json").write_text(json.dumps({"settings": settings, "runs": runs, "verdict": verdict},
                                                indent=1, default=str) + "\n")
    plot(out / "losses.svg", runs, verdict)
    worst = max(verdict["steps"], key=lambda s: s["off"] / s["allowed"])
    print(f"{len(text)} bytes of text; loss {runs['eager']['losses'][0]:.4f} to {runs['eager']['losses'][-1]:.4f}")
    print(f"worst step {worst['step']}: {worst['off']:.4%} off, {worst['allowed']:.4%} allowed")
    print("validation: " + ", ".join(f"{n} {r['val_loss']:.5f}" for n, r in runs.items()))
    for line in verdict["broken"]:
        print("broken: " + line)
    sys.exit(bool(verdict["broken"]))


if __name__ == "__main__":
    main()
