"""Load on OpenAI-compatible servers, and llama.cpp's server (through the Python package xllamacpp).

usage: server.py serve MODEL THREADS PARALLEL CONTEXT     start llama.cpp's server, print its address, wait for the end of input
       server.py load URL CLIENTS TOKENS PROMPTS.json     ask all prompts, so many at a time
       server.py stall URL PROMPT_WORDS                   a stream, then a long prompt beside it, then a short request

Prints one JSON object (serve: one line, then waits).
"""

import asyncio
import json
import statistics
import sys
import time


def serve(model, threads, parallel, context):
    import os

    import xllamacpp

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = int(parallel)
    params.n_ctx = int(parallel) * int(context)
    params.cpuparams.n_threads = int(threads)
    params.warmup = True
    params.verbosity = 0
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"version": xllamacpp.__version__, "url": server.listening_address}), file=out, flush=True)
    sys.stdin.read()


async def ask(client, url, text, tokens, times=None):
    """Seconds to the first token, tokens, and the time of each chunk."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, first, usage = time.monotonic(), None, 0
    # A connection of its own: one that is quiet for long may be closed at any moment.
    headers = {"connection": "close"}
    async with client.stream("POST", url + "/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                now = time.monotonic()
                first = first or now - start
                if times is not None:
                    times.append(now)
            if chunk.get("usage"):
                usage = chunk["usage"]["completion_tokens"]
    return first or time.monotonic() - start, usage


async def load(url, clients, tokens, path):
    import httpx

    prompts = json.load(open(path, encoding="utf-8"))
    waiting, firsts, total, gaps = list(prompts), [], 0, []
    async with httpx.AsyncClient(timeout=httpx.Timeout(900)) as client:
        await ask(client, url, "Hi", 2)

        async def work():
            nonlocal total
            while waiting:
                times = []
                first, count = await ask(client, url, waiting.pop(0), int(tokens), times)
                firsts.append(first)
                total += count
                gaps.extend(b - a for a, b in zip(times, times[1:]))

        start = time.monotonic()
        await asyncio.gather(*[work() for _ in range(int(clients))])
        seconds = time.monotonic() - start
    print(json.dumps({"tokens": total, "seconds": seconds, "first_s": statistics.median(firsts), "largest_gap_s": max(gaps, default=0)}))


async def stall(url, words):
    import httpx

    long = "Summarise this. " + " ".join("item%d" % n for n in range(int(words)))
    async with httpx.AsyncClient(timeout=httpx.Timeout(900)) as client:
        times = []
        stream = asyncio.create_task(ask(client, url, "Count from 1 to 500, one number a line.", 400, times))
        while len(times) < 8:
            await asyncio.sleep(0.05)
        before = time.monotonic()
        reading = asyncio.create_task(ask(client, url, long, 2))
        await asyncio.sleep(1.5)
        short, _ = await ask(client, url, "Say hello to the people of this town.", 20)
        first, _ = await reading
        during = [b - a for a, b in zip(times, times[1:]) if before <= b <= before + first]
        await stream
    print(json.dumps({"prompt_first_s": first, "short_first_s": short, "largest_gap_s": max(during), "median_gap_s": statistics.median(during)}))


mode, *rest = sys.argv[1:]
if mode == "serve":
    serve(*rest)
else:
    asyncio.run({"load": load, "stall": stall}[mode](*rest))
