#!/usr/bin/env python3
"""Makes speculator.json: what MLP speculators compute, written down from the paper's formulas (arXiv 2404.19124) and not from the engine.

    python speculator.py > speculator.json

Everything is computed in double precision, so no package is needed. Weights are not kept: they are whole numbers over 256, which f16 has
exactly, from SplitMix64 with a seed for each tensor, and the test makes the same ones.

For each case: the weight of the token's embedding beside the state, and from a state and a token the tokens that the heads choose in
turn, with every 17th of their logits.
"""
import json
from itertools import product
from math import erf, sqrt

VOCAB, HIDDEN = 271, 24
PARTS = ["proj", "ln.weight", "ln.bias", "emb", "head"]


class Random:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    def weight(self):
        return ((self.next() >> 56) - 128) / 256


class Speculator:
    def __init__(self, case, heads, inner, tied, scaled):
        self.case, self.heads, self.tied, self.scaled = case, heads, tied, scaled
        self.inner = inner or HIDDEN

    def tensor(self, part, head, rows, cols):
        if self.tied:
            head = min(head, 1) if part == "proj" else 0
        random = Random(1000 * self.case + 10 * head + PARTS.index(part))
        one = 1 if part == "ln.weight" else 0
        return [[one + random.weight() for _ in range(cols)] for _ in range(rows)]

    def alpha(self):
        keep = 0.5 ** (0.5 / self.heads)
        return sqrt((1 - keep**2) * self.inner / 2) / keep

    def step(self, head, state, token):
        m = self.inner
        if head == 0 and self.scaled:
            state = [x / sqrt(2) for x in normed(state)]
        mixed = times(self.tensor("proj", head, m, len(state)), state)
        embedding = self.tensor("emb", head, VOCAB, m)[token]
        mixed = [a + self.alpha() * b for a, b in zip(mixed, embedding)]
        weight, bias = (self.tensor(part, head, 1, m)[0] for part in ["ln.weight", "ln.bias"])
        state = [gelu(x * w + b) for x, w, b in zip(normed(mixed), weight, bias)]
        return state, times(self.tensor("head", head, VOCAB, m), state)


def normed(x):
    scale = 1 / sqrt(sum(v * v for v in x) / len(x) + 1e-6)
    return [v * scale for v in x]


def times(matrix, x):
    return [sum(a * b for a, b in zip(row, x)) for row in matrix]


def gelu(x):
    return x * 0.5 * (1 + erf(x / sqrt(2)))


cases = [(heads, 20, tied, scaled) for heads, tied, scaled in product([3, 4, 5], [False, True], [False, True])]
cases.append((3, 0, False, True))
golden = []
for case, (heads, inner, tied, scaled) in enumerate(cases):
    speculator = Speculator(case, heads, inner, tied, scaled)
    random = Random(1000 * case + 999)
    state, token = [8 * random.weight() for _ in range(HIDDEN)], random.next() % VOCAB
    steps = []
    for head in range(heads):
        state, logits = speculator.step(head, state, token)
        token = logits.index(max(logits))
        steps.append({"token": token, "logits": [round(x, 7) for x in logits[::17]]})
    golden.append(
        {"heads": heads, "inner": inner, "tied": tied, "scaled": scaled, "alpha": round(speculator.alpha(), 7), "steps": steps}
    )
print(json.dumps(golden, separators=(",", ":")).replace('},{"heads', '},\n{"heads'))
