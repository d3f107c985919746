"""What grammars and predictions are worth, against a running server.

usage: forms.py schemas BASE_URL SCHEMAS.json SEEDS     each schema with so many seeds, with and without drafts, at temperature 1
       forms.py edits BASE_URL EDITS_DIR                each file edited plainly, with the suffix drafter, and with the file as prediction

Prints one JSON object; fails if an answer is not what its schema describes, or differs with drafts.
"""

import json
import pathlib
import sys
import time

import httpx
import jsonschema

client = httpx.Client(timeout=httpx.Timeout(1200))


def ask(base, **fields):
    start = time.monotonic()
    response = client.post(base + "/v1/chat/completions", json={"return_token_ids": True} | fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer, answer["choices"][0], time.monotonic() - start


def schemas(base, path, seeds):
    seen = {"answers": 0, "tokens": 0, "plain_s": 0.0, "drafted_s": 0.0, "drafted": 0, "accepted": 0, "forced": 0, "free_ms": 0.0, "row_ms": 0.0}
    free = {"tokens": 0, "s": 0.0}
    rows = 0
    for case in json.load(open(path, encoding="utf-8")):
        form = {"type": "json_schema", "json_schema": {"name": case["name"], "strict": True, "schema": case["schema"]}}
        validator = jsonschema.Draft202012Validator(case["schema"])
        for seed in range(int(seeds)):
            asked = {"messages": [{"role": "user", "content": case["prompt"]}], "seed": seed, "temperature": 1, "max_tokens": 400}
            plain, choice, seconds = ask(base, **asked, response_format=form, speculation=False)
            drafted, same, drafted_seconds = ask(base, **asked, response_format=form)
            assert choice["token_ids"] == same["token_ids"], (case["name"], seed)
            assert choice["finish_reason"] == "stop", (case["name"], seed, choice)
            validator.validate(json.loads(choice["message"]["content"]))
            seen["answers"] += 1
            seen["tokens"] += len(choice["token_ids"])
            seen["plain_s"] += plain["timings"]["decode_s"]
            seen["drafted_s"] += drafted["timings"]["decode_s"]
            seen["drafted"] += drafted["speculation"]["drafted"]
            seen["accepted"] += drafted["speculation"]["accepted"]
            seen["forced"] += drafted["speculation"]["sources"].get("grammar", {"accepted": 0})["accepted"]
            # What drawing a token takes with the grammar, the one that ends the answer too.
            seen["row_ms"] += plain["timings"]["target"]["sample_s"] * 1000
            rows += len(choice["token_ids"]) + 1
        text, choice, _ = ask(base, **asked | {"max_tokens": 40}, speculation=False)
        free["tokens"] += len(choice["token_ids"])
        free["s"] += text["timings"]["target"]["sample_s"]
    seen["row_ms"] /= rows
    seen["free_ms"] = free["s"] * 1000 / free["tokens"]
    print(json.dumps(seen))


def edits(base, path):
    folder = pathlib.Path(path)
    seen = []
    for case in json.load(open(folder / "edits.json", encoding="utf-8")):
        text = (folder / case["file"]).read_text(encoding="utf-8")
        said = "%s Answer with the whole file and nothing else.\n\n```\n%s```" % (case["instruction"], text)
        asked = {"messages": [{"role": "user", "content": said}], "temperature": 0, "max_tokens": 2000}
        ways = {
            "plain": {"speculation": False},
            "suffix": {"speculation": {"drafter": "suffix"}},
            "predicted": {"prediction": {"type": "content", "content": "```\n%s```" % text}},
        }
        row = {"file": case["file"], "lines": text.count("\n")}
        tokens = None
        for name, fields in ways.items():
            answer, choice, seconds = ask(base, **asked, **fields)
            assert tokens in (None, choice["token_ids"]), "the tokens differ"
            tokens = choice["token_ids"]
            row[name] = seconds
            row["decode_" + name] = answer["timings"]["decode_s"]
        details = answer["usage"]["completion_tokens_details"]
        row |= {"tokens": len(tokens), "accepted": details["accepted_prediction_tokens"], "rejected": details["rejected_prediction_tokens"]}
        row |= {"rounds": answer["speculation"]["rounds"], "prompt": answer["usage"]["prompt_tokens"]}
        print(json.dumps(row), file=sys.stderr, flush=True)
        seen.append(row)
    print(json.dumps(seen))


mode, base, *rest = sys.argv[1:]
{"schemas": schemas, "edits": edits}[mode](base, *rest)
