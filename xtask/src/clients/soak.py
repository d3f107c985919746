"""Many clients at once against a running server: same answers as alone, faults survived, nothing leaked.

usage: soak.py together BASE_URL REQUESTS PROMPTS.json OUT.json    send all, twelve at a time, some cancelled
       soak.py alone BASE_URL REQUESTS PROMPTS.json OUT.json       send the same, one after the other, without drafts
       soak.py faults BASE_URL PID MINUTES                         load, nonsense, slow and vanishing clients

Prints one line of JSON about what was seen; fails if something was wrong.
"""

import asyncio
import json
import random
import statistics
import sys
import time

import httpx

CLIENTS = 12
SYSTEMS = ["You are a careful assistant who answers in short sentences.", "You write code. " * 12, "Answer like a sailor. " * 30]


def requests(count, path):
    """The same requests for the same count: lengths, temperatures, drafters and beginnings of all kinds."""
    texts = list(json.load(open(path, encoding="utf-8")).values())
    dice = random.Random(1)
    for number in range(count):
        text = dice.choice(texts)
        user = text[: dice.choice([40, 200, 800])] + (" (%d)" % number if dice.random() < 0.7 else "")
        yield {
            "messages": [
                {"role": "system", "content": dice.choice(SYSTEMS)},
                {"role": "user", "content": user},
            ],
            "seed": number,
            "max_tokens": dice.choice([4, 16, 48, 96]),
            "temperature": dice.choice([0, 0.7, 1.3]),
            "n": dice.choice([1, 1, 1, 2]),
            "speculation": dice.choice([True, False, {"drafter": "suffix"}, {"drafter": "recycling"}, {"drafter": "model"}, {"max": 3}]),
            "logprobs": dice.random() < 0.2,
            "stream": True,
            "return_token_ids": True,
        }


async def ask(client, url, body, most_chunks=None):
    """The tokens of each choice, whether it came to its end, and what was drafted."""
    choices, ends, drafted = [[] for _ in range(body["n"])], 0, 0
    seen = 0
    async with client.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            raise RuntimeError("%d: %s" % (response.status_code, await response.aread()))
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(line)
            choice = chunk["choices"][0]
            choices[choice["index"]] += choice.get("token_ids", [])
            ends += choice["finish_reason"] is not None
            drafted += chunk.get("speculation", {}).get("drafted", 0)
            seen += 1
            if most_chunks is not None and seen >= most_chunks:
                break
    return {"tokens": choices, "whole": ends == body["n"], "drafted": drafted}


async def run(base, count, path, out, clients):
    url = base + "/v1/chat/completions"
    dice = random.Random(2)
    waiting = list(enumerate(requests(count, path)))
    answers = [None] * count
    timeout = httpx.Timeout(600)
    async with httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_connections=clients)) as client:
        drafters = (await client.get(base + "/v1/models")).json()["data"][0]["drafters"]

        async def work():
            while waiting:
                number, body = waiting.pop(0)
                if clients == 1:
                    # What all the others are compared with is plain decoding.
                    body["speculation"] = False
                elif isinstance(body["speculation"], dict) and body["speculation"].get("drafter", drafters[0]) not in drafters:
                    body["speculation"] = True
                cancelled = clients > 1 and dice.random() < 0.15
                if clients > 1:
                    await asyncio.sleep(dice.random() * 0.3)
                answers[number] = await ask(client, url, body, dice.randint(1, 20) if cancelled else None)

        await asyncio.gather(*[work() for _ in range(clients)])
    json.dump(answers, open(out, "w", encoding="utf-8"))
    print(json.dumps({"answers": count, "drafted": sum(a["drafted"] for a in answers), "cancelled": sum(not a["whole"] for a in answers)}))


def resident(pid):
    for line in open("/proc/%s/status" % pid, encoding="ascii"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024


def nonsense(dice):
    """A body that is nearly right, or not at all."""
    values = [None, True, -1, 1e300, "x", [], {}, [[[]]], 1.5, 2**70, "\u0000", "x" * dice.choice([10, 10_000])]
    names = ["messages", "prompt", "n", "seed", "stop", "temperature", "stream", "speculation", "logit_bias", "tools", "model", "top_p"]
    body = json.dumps({dice.choice(names): dice.choice(values) for _ in range(dice.randint(0, 5))} | {"max_tokens": 1}).encode()
    kind = dice.randint(0, 5)
    if kind == 0:
        body = body[: dice.randint(0, len(body))]
    elif kind == 1:
        at = dice.randrange(len(body))
        body = body[:at] + bytes([dice.randrange(256)]) + body[at + 1 :]
    elif kind == 2:
        body = b"[" * dice.choice([10, 100_000])
    return body


async def faults(base, pid, minutes):
    dice = random.Random(3)
    host, port = base.removeprefix("http://").split(":")
    url = base + "/v1/chat/completions"
    end = time.monotonic() + 60 * float(minutes)
    counts = {"answers": 0, "refused": 0, "bad": 0, "vanished": 0, "slow": 0}
    memory = []
    body = lambda tokens: {"messages": [{"role": "user", "content": "Count. " * dice.randint(1, 60)}], "max_tokens": tokens, "n": 1, "stream": True}

    async def answers(client):
        while time.monotonic() < end:
            try:
                whole = await ask(client, url, body(dice.randint(1, 60)))
                assert whole["whole"], "an answer was lost"
                counts["answers"] += 1
            except RuntimeError as error:
                assert str(error).startswith("429"), error
                counts["refused"] += 1
                await asyncio.sleep(0.5)

    async def bad(client):
        while time.monotonic() < end or counts["bad"] < 10_000:
            path = dice.choice(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
            response = await client.post(base + path, content=nonsense(dice), headers={"content-type": "application/json"})
            assert response.status_code in (200, 400, 404, 413, 429), (response.status_code, response.text)
            counts["bad"] += 1
            if time.monotonic() < end:
                await asyncio.sleep(0.05)

    async def vanishing():
        while time.monotonic() < end:
            reader, writer = await asyncio.open_connection(host, int(port))
            text = json.dumps(body(500)).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
            message = head + text
            writer.write(message[: dice.choice([1, 40, len(head), len(message)])])
            await asyncio.sleep(dice.random())
            writer.transport.abort()
            counts["vanished"] += 1

    async def slow():
        while time.monotonic() < end:
            reader, writer = await asyncio.open_connection(host, int(port))
            text = json.dumps(body(200)).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
            got = b""
            while True:
                part = await reader.read(500)
                if not part:
                    break
                got += part
                await asyncio.sleep(0.05)
            assert b"[DONE]" in got or b" 429 " in got[:40], got[:200]
            counts["slow"] += 1

    async def watch():
        while time.monotonic() < end:
            await asyncio.sleep(10)
            memory.append(resident(pid))

    async with httpx.AsyncClient(timeout=httpx.Timeout(600)) as client:
        await asyncio.gather(answers(client), answers(client), answers(client), bad(client), vanishing(), slow(), watch())
    third = max(1, len(memory) // 3)
    early, late = statistics.median(memory[third : 2 * third] or memory), statistics.median(memory[-third:])
    print(json.dumps(counts | {"resident_mib": {"start": memory[0], "middle": early, "end": late}}))
    assert late - early < max(8, 0.02 * early), "memory grows: %s" % memory


mode, base, *rest = sys.argv[1:]
if mode == "faults":
    asyncio.run(faults(base, *rest))
else:
    asyncio.run(run(base, int(rest[0]), rest[1], rest[2], CLIENTS if mode == "together" else 1))
