"""The peer of `train_gpt`: the same GPT in PyTorch, f32 without TF32, AdamW, random bytes.

    torch_gpt.py [--layers 6 --heads 6 --width 384 --context 256 --batch 64] [--modes eager,compile]

Prints one JSON line a mode: milliseconds of a step (median of 50 after 10), tokens a second, seconds
up to the end of the first step, and the peak of device memory.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, context, vocab=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    for name, value in [("layers", 6), ("heads", 6), ("width", 384), ("context", 256), ("batch", 64)]:
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--modes", default="eager,compile")
    a = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    for mode in a.modes.split(","):
        torch._dynamo.reset()
        torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = Gpt(a.layers, a.heads, a.width, a.context)
            data = torch.randint(0, 256, (8, a.batch, a.context + 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
        f = model if mode == "eager" else torch.compile(model)

        def step(i):
            d = data[i % 8]
            loss = f(d[:, :-1].contiguous(), d[:, 1:].contiguous())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        start = time.time()
        step(0)
        torch.cuda.synchronize()
        first = time.time() - start
        times = []
        for i in range(60):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step(i)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        ms = statistics.median(times[10:])
        print(json.dumps({"peer": "torch " + torch.__version__, "mode": mode, "ms": round(ms, 2),
                          "tokens_per_s": round(a.batch * a.context / ms * 1e3),
                          "first_step_s": round(first, 2),
                          "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}), flush=True)


if __name__ == "__main__":
    main()
