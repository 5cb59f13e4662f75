#!/usr/bin/env python3
"""Makes tests/golden/optimizers.safetensors: three steps of each optimizer, in float64.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install torch numpy safetensors
    /tmp/venv/bin/python tests/parity/make_optimizer_golden.py [--check]

The tests read the file and need no Python. Steps are those of torch.optim. Lion is not in it, and
its Muon iterates in bf16; both are written out below, and Muon is held against torch.optim's.

    CASE.p        the parameter at first; float32 values
    CASE.g        the three gradients [3, …]
    CASE.after    the parameter after each step [3, …]
    CASE.STATE    a state after the third step, by the name of the op's operand

The entry CASE of the file's metadata are the attributes of the graph, as text. lr is 0.01.
"""

import sys

import numpy as np
import torch

from make_gpt2_golden import Source, run

LR = 0.01


class Lion(torch.optim.Optimizer):
    """Chen et al., 2023, algorithm 2."""

    def __init__(self, params, lr, betas, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = (beta1 * m + (1 - beta1) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * direction)
                m.mul_(beta2).add_((1 - beta2) * p.grad)


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon in the parameter's own precision, for weights [inputs, outputs]."""

    def __init__(self, params, lr, weight_decay=0.0, momentum=0.95, nesterov=True, adjust="original"):
        super().__init__(params, {"lr": lr, "decay": weight_decay, "momentum": momentum,
                                  "nesterov": nesterov, "adjust": adjust})

    @staticmethod
    def orthogonal(x):
        tall = x.size(0) > x.size(1)
        x = x.T if tall else x
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(m, group["momentum"]) if group["nesterov"] else m
                inputs, outputs = p.shape
                scale = {"original": max(1, outputs / inputs) ** 0.5,
                         "match_rms_adamw": 0.2 * max(inputs, outputs) ** 0.5}[group["adjust"]]
                p.mul_(1 - group["lr"] * group["decay"])
                p.sub_(group["lr"] * scale * self.orthogonal(update))


def cases():
    """Yields case, attributes, shape, optimizer of [p], names of states here and there."""
    adam = {"m": "exp_avg", "v": "exp_avg_sq"}
    yield ("sgd", 'optimizer = "sgd"', [4], lambda p: torch.optim.SGD(p, LR), {})
    yield ("sgd_momentum", 'optimizer = "sgd", momentum = 0.9', [2, 3],
           lambda p: torch.optim.SGD(p, LR, momentum=0.9), {"m": "momentum_buffer"})
    yield ("sgd_nesterov",
           'optimizer = "sgd", momentum = 0.8, nesterov = true, weight_decay = 0.1', [2, 3],
           lambda p: torch.optim.SGD(p, LR, momentum=0.8, nesterov=True, weight_decay=0.1),
           {"m": "momentum_buffer"})
    yield "adam", 'optimizer = "adam"', [4], lambda p: torch.optim.Adam(p, LR), adam
    yield ("adam_decay", 'optimizer = "adam", beta1 = 0.8, beta2 = 0.95, weight_decay = 0.1', [4],
           lambda p: torch.optim.Adam(p, LR, betas=(0.8, 0.95), weight_decay=0.1), adam)
    yield ("adamw", 'optimizer = "adamw", weight_decay = 0.1, eps = 1e-6', [2, 3],
           lambda p: torch.optim.AdamW(p, LR, weight_decay=0.1, eps=1e-6), adam)
    yield ("lion", 'optimizer = "lion", weight_decay = 0.1', [5],
           lambda p: Lion(p, LR, (0.9, 0.99), 0.1), {"m": "m"})
    eps = float(np.finfo(np.float32).eps)
    yield ("adafactor_vector", 'optimizer = "adafactor"', [5],
           lambda p: torch.optim.Adafactor(p, LR, eps=(eps, 1e-3)), {"v": "variance"})
    yield ("adafactor_matrix", 'optimizer = "adafactor", weight_decay = 0.1', [3, 4],
           lambda p: torch.optim.Adafactor(p, LR, eps=(eps, 1e-3), weight_decay=0.1),
           {"r": "row_var", "c": "col_var"})
    yield ("adafactor_clipped",
           'optimizer = "adafactor", clip_step = 1.0625, beta2_decay = -0.5, eps2 = 2.0', [2, 2, 3],
           lambda p: torch.optim.Adafactor(p, LR, d=1.0625, beta2_decay=-0.5, eps=(eps, 2.0)),
           {"r": "row_var", "c": "col_var"})
    yield ("muon_wide", 'optimizer = "muon", weight_decay = 0.1', [3, 5],
           lambda p: Muon(p, LR, 0.1), {"m": "m"})
    yield ("muon_tall", 'optimizer = "muon", nesterov = false, momentum = 0.9', [5, 3],
           lambda p: Muon(p, LR, momentum=0.9, nesterov=False), {"m": "m"})
    yield ("muon_rms", 'optimizer = "muon", adjust = "match_rms_adamw"', [4, 4],
           lambda p: Muon(p, LR, adjust="match_rms_adamw"), {"m": "m"})


def check_muon(source):
    """That Muon above is torch.optim's, up to the latter's bf16, on the transposed weight."""
    start, g = (torch.from_numpy(source.uniform([3, 5])) for _ in range(2))
    p, q = start.clone().requires_grad_(), start.T.clone().requires_grad_()
    p.grad, q.grad = g, g.T.clone()
    Muon([p], 1.0, 0.1).step()
    torch.optim.Muon([q], 1.0, weight_decay=0.1).step()
    assert (p.T - q).norm() < 0.02 * q.norm(), (p, q)


def make():
    source = Source(3000)
    check_muon(source)
    golden, texts = {}, {}
    for case, attributes, shape, make_optimizer, states in cases():
        p = torch.from_numpy(source.uniform(shape)).requires_grad_()
        gradients = source.uniform([3, *shape], 0.5)
        gradients.reshape(3, -1)[0, -1] = 0.0
        golden[f"{case}.p"], golden[f"{case}.g"] = p.detach().numpy().copy(), gradients
        optimizer = make_optimizer([p])
        after = []
        for gradient in gradients:
            p.grad = torch.from_numpy(gradient.copy())
            optimizer.step()
            after.append(p.detach().numpy().copy())
        golden[f"{case}.after"] = np.stack(after)
        for here, there in states.items():
            golden[f"{case}.{here}"] = optimizer.state[p][there].numpy()
        texts[case] = attributes
    return [("optimizers", golden, texts)]


if __name__ == "__main__":
    sys.exit(run(__doc__, make))
