"""One round of llama.cpp's measurements, through the Python package xllamacpp.

usage: passes.py MODEL THREADS ROWS REPEAT TOKENS PROMPT_FILE
ROWS is a list of numbers with commas between them. Prints one JSON object: the version, the median milliseconds of a
prompt of n tokens for each n (logits of the last one alone), and the tokens per second of a greedy answer.
"""

import json
import statistics
import sys

import xllamacpp


def main():
    model, threads, rows, repeat, tokens, prompt = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 4096
    params.n_parallel = 1
    params.cpuparams.n_threads = int(threads)
    params.warmup = True
    params.verbosity = 0
    server = xllamacpp.Server(params)

    def timings(prompt, n_predict):
        request = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "cache_prompt": False}
        answer = server.handle_completions(request)
        return (answer if isinstance(answer, dict) else json.loads(answer))["timings"]

    counts = [int(n) for n in rows.split(",")]
    seen = {n: [] for n in counts}
    for _ in range(int(repeat)):
        for n in counts:
            seen[n].append(timings([785 + i for i in range(n)], 1)["prompt_ms"])
    with open(prompt, encoding="utf-8") as file:
        decoded = timings(file.read(), int(tokens))
    result = {
        "version": xllamacpp.__version__,
        "rows_ms": {n: statistics.median(ms) for n, ms in seen.items()},
        "decode_tps": decoded["predicted_per_second"],
    }
    print(json.dumps(result), flush=True)


main()
