#!/usr/bin/env python3
"""Makes the golden files beside this script with llama.cpp, through the Python package xllamacpp.

    pip install xllamacpp
    python generate.py MODEL.gguf OUT.json

Greedy text: 64 tokens for each prompt of bench/prompts.json (raw, special tokens parsed, nothing put in
front), with the ten likeliest tokens of each position and their log-probabilities over the whole vocabulary.

Perplexity: the log-probability of each of the first 2,000 tokens of bench/perplexity.txt after all those
before it (the first has none). The server gives no probabilities for a prompt, so each token is asked for
as the one-token completion of its prefix; a logit bias makes the server choose it, and what it reports is
the log-probability before bias. The prefix comes from its cache, so one request costs one token.
"""
import json, sys, urllib.request
from pathlib import Path
import xllamacpp

BENCH = Path(__file__).resolve().parents[4] / "bench"
model, out = sys.argv[1], sys.argv[2]
params = xllamacpp.CommonParams()
params.model.path = model
params.n_ctx, params.n_parallel, params.cpuparams.n_threads, params.verbosity = 4096, 1, 1, 0
server = xllamacpp.Server(params)


def post(path, body):
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def tokenize(text):
    return post("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]


def complete(tokens, **options):
    body = {"prompt": tokens, "temperature": 0, "cache_prompt": True, "return_tokens": True, **options}
    return post("/completion", body)


greedy = {}
for name, prompt in json.loads((BENCH / "prompts.json").read_text()).items():
    tokens = tokenize(prompt)
    answer = complete(tokens, n_predict=64, n_probs=10)
    steps = answer["completion_probabilities"]
    greedy[name] = {
        "prompt": tokens,
        "tokens": [step["id"] for step in steps],
        "top": [[[top["id"], round(top["logprob"], 4)] for top in step["top_logprobs"]] for step in steps],
    }

tokens = tokenize((BENCH / "perplexity.txt").read_text())[:2000]
logprobs = []
for at in range(1, len(tokens)):
    answer = complete(tokens[:at], n_predict=1, n_probs=1, logit_bias=[[tokens[at], 1e9]])
    step = answer["completion_probabilities"][0]
    assert step["id"] == tokens[at]
    logprobs.append(round(step["logprob"], 4))

golden = {
    "made_with": "llama.cpp in xllamacpp " + xllamacpp.__version__,
    "model": Path(model).name,
    "greedy": greedy,
    "text": {"tokens": tokens, "logprobs": logprobs},
}
Path(out).write_text(json.dumps(golden, separators=(",", ":")).replace('},"', '},\n"') + "\n")
