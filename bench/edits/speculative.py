"""Answers of llama.cpp, each mode of drafting in a server of its own that stays loaded, through the Python package
xllamacpp.

usage: speculative.py TARGET DRAFT THREADS MODE...
MODE is plain, one of llama.cpp's names of drafters that need no model (ngram-simple, ngram-mod), or "draft-simple N"
for at most N tokens of the draft model. Prints the version as a JSON object once all servers are warm; then reads a
request from each line, {"mode", "text", "chat", "tokens"}, and prints an object for its answer.
"""

import json
import os
import sys

import xllamacpp


def server(target, draft, threads, mode):
    params = xllamacpp.CommonParams()
    params.model.path = target
    params.n_ctx = 4096
    params.n_parallel = 1
    params.cpuparams.n_threads = threads
    params.warmup = True
    params.verbosity = 0
    # No prompt is to be found in a cache.
    params.cache_ram_mib = 0
    kind, _, length = mode.partition(" ")
    if kind != "plain":
        name = "COMMON_SPECULATIVE_TYPE_" + kind.upper().replace("-", "_")
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
    if length:
        params.speculative.draft.mparams.path = draft
        params.speculative.draft.cpuparams.n_threads = threads
        params.speculative.draft.n_max = int(length)
    return xllamacpp.Server(params)


def answer(server, request):
    body = {"max_tokens": request["tokens"], "temperature": 0, "cache_prompt": False}
    if request["chat"]:
        message = {"role": "user", "content": request["text"]}
        said = server.handle_chat_completions({"messages": [message], **body})
    else:
        said = server.handle_completions({"prompt": request["text"], **body})
    said = said if isinstance(said, dict) else json.loads(said)
    if "error" in said:
        return {"error": said["error"]["message"]}
    timings = said["timings"]
    # The token that ends an answer is counted there, and not with us.
    ended = said["choices"][0]["finish_reason"] == "stop"
    return {
        "prompt_tokens": timings["prompt_n"],
        "tokens": timings["predicted_n"] - ended,
        # The time to the first token, and from there to the last.
        "prompt_s": timings["prompt_ms"] / 1e3,
        "decode_s": timings["predicted_ms"] / 1e3,
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
    }


def main():
    target, draft, threads, *modes = sys.argv[1:]
    # Standard output is for answers alone: whatever the library prints goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    servers = {}
    for mode in modes:
        servers[mode] = server(target, draft, int(threads), mode)
        answer(servers[mode], {"text": "One, two, three,", "chat": False, "tokens": 4})
    print(json.dumps({"version": xllamacpp.__version__}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(servers[request["mode"]], request)), file=out, flush=True)


main()
