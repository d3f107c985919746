"""The official OpenAI package for Python against a running server, feature by feature.

usage: client.py BASE_URL KEY
The server asks for KEY. What is sent and what comes back is checked against the server's own OpenAPI document.
"""

import json
import sys
import urllib.request

import jsonschema
import openai

BASE, KEY = sys.argv[1:]
client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0)
MODEL = client.models.list().data[0].id
COLOURS = [{"role": "user", "content": "Name three colours, separated by commas."}]


def document():
    request = urllib.request.Request(BASE + "/openapi.json", headers={"Authorization": "Bearer " + KEY})
    return json.load(urllib.request.urlopen(request))


DOCUMENT = document()


def valid(name, value):
    """Whether a value is what the document says."""
    schema = {"$ref": "#/components/schemas/" + name, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


def ask(**fields):
    """A chat answer, as sent and as the package reads it."""
    fields = {"model": MODEL, "messages": COLOURS, "seed": 1, "max_tokens": 12} | fields
    raw = client.chat.completions.with_raw_response.create(**fields)
    valid("ChatCompletion", json.loads(raw.text))
    return raw.parse()


def refused(kind, call, param=None):
    """Whether a request is refused as it should be."""
    try:
        call()
    except kind as error:
        if isinstance(error.response.json(), dict):
            valid("Error", error.response.json())
        assert param is None or error.param == param, (error.param, param)
        return error
    raise AssertionError("not refused: %s %s" % (kind, param))


def test_whole_and_streamed_are_the_same():
    whole = ask()
    assert whole.object == "chat.completion" and whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert whole.model_extra["speculation"]["lossless"] and whole.model_extra["timings"]["decode_s"] > 0
    stream = client.chat.completions.create(
        model=MODEL, messages=COLOURS, seed=1, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    for chunk in chunks:
        valid("ChatCompletionChunk", chunk.model_dump(mode="json", exclude_unset=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[-1].usage.completion_tokens == 12 and chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason == "length"
    assert whole.system_fingerprint == chunks[0].system_fingerprint


def test_choices_and_seeds():
    one, many = ask(temperature=1), ask(temperature=1, n=3)
    assert len(many.choices) == 3 and many.choices[0].message.content == one.choices[0].message.content
    assert len({c.message.content for c in many.choices}) > 1
    assert ask(temperature=1, seed=2).choices[0].message.content != one.choices[0].message.content
    assert ask(temperature=1).choices[0].message.content == one.choices[0].message.content


def test_drafts_change_nothing():
    plain = ask(max_tokens=40, extra_body={"speculation": False, "return_token_ids": True})
    for speculation in [True, {"drafter": "suffix"}, {"drafter": "recycling", "max": 2}, {"max": 1}]:
        drafted = ask(max_tokens=40, extra_body={"speculation": speculation, "return_token_ids": True})
        assert drafted.choices[0].model_extra["token_ids"] == plain.choices[0].model_extra["token_ids"]


def test_drafts_are_told():
    fields = {"max_tokens": 40, "temperature": 0, "extra_body": {"return_drafts": True}}
    text = lambda rounds: "".join(piece["text"] for round in rounds for piece in round["text"])
    told = ask(**fields).choices[0]
    assert text(told.model_extra["drafts"]) == told.message.content
    stream = client.chat.completions.create(model=MODEL, messages=COLOURS, seed=1, stream=True, **fields)
    chunks = [valid("ChatCompletionChunk", c.model_dump(mode="json", exclude_unset=True)) for c in stream]
    assert text(r for c in chunks for r in c["choices"][0].get("drafts", [])) == told.message.content


def test_stops():
    whole = ask(max_tokens=30, temperature=0).choices[0].message.content
    stop = whole[6:8]
    cut = ask(max_tokens=30, temperature=0, stop=[stop])
    assert cut.choices[0].message.content == whole.split(stop)[0] and cut.choices[0].finish_reason == "stop"
    assert ask(max_tokens=30, temperature=0, stop=stop).choices[0].message.content == whole.split(stop)[0]
    assert ask(max_tokens=None, max_completion_tokens=3).usage.completion_tokens == 3


def test_logprobs():
    choice = ask(logprobs=True, top_logprobs=3, temperature=0, max_tokens=8).choices[0]
    tokens = choice.logprobs.content
    assert len(tokens) == 8 and "".join(t.token for t in tokens) == choice.message.content
    for token in tokens:
        assert token.logprob == token.top_logprobs[0].logprob <= 0 and len(token.top_logprobs) == 3
        assert bytes(token.bytes).decode(errors="replace") == token.token
    # Of the raw distribution: temperature, filters and bias do not show.
    biased = ask(logprobs=True, temperature=0, max_tokens=1, top_p=0.1, presence_penalty=1, frequency_penalty=1)
    assert abs(biased.choices[0].logprobs.content[0].logprob - tokens[0].logprob) < 1e-6


def test_sampling():
    first = ask(logprobs=True, temperature=0, max_tokens=1, extra_body={"return_token_ids": True}).choices[0]
    banned = first.model_extra["token_ids"][0]
    other = ask(temperature=0, max_tokens=1, logit_bias={str(banned): -100}, extra_body={"return_token_ids": True})
    assert other.choices[0].model_extra["token_ids"][0] != banned
    greedy = ask(temperature=0).choices[0].message.content
    assert ask(temperature=2, extra_body={"top_k": 1}).choices[0].message.content == greedy
    assert ask(temperature=2, extra_body={"min_p": 1.0}).choices[0].message.content == greedy
    assert ask(temperature=2, top_p=1e-6).choices[0].message.content == greedy
    assert ask(temperature=0, extra_body={"repeat_penalty": 1.8}).usage.completion_tokens > 0


def test_messages():
    system = [{"role": "system", "content": "Answer in one word."}] + COLOURS
    developer = [{"role": "developer", "content": "Answer in one word."}] + COLOURS
    parts = [
        {"role": "system", "content": [{"type": "text", "text": "Answer in "}, {"type": "text", "text": "one word."}]}
    ] + COLOURS
    answers = {ask(messages=m, temperature=0).choices[0].message.content for m in (system, developer, parts)}
    assert len(answers) == 1, answers
    turns = COLOURS + [{"role": "assistant", "content": "Red"}, {"role": "user", "content": "More."}]
    assert ask(messages=turns).usage.prompt_tokens > ask().usage.prompt_tokens
    # A control token's name in a message is text.
    assert ask(messages=[{"role": "user", "content": "<|im_end|>"}]).usage.prompt_tokens > 5


def test_prefixes_are_cached():
    story = [{"role": "user", "content": "Go on with this story. " + "The lighthouse keeper climbed the stairs. " * 20}]
    ask(messages=story, max_tokens=2)
    usage = ask(messages=story, max_tokens=2).usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_without_effect():
    ask(
        user="ann",
        metadata={"a": "b"},
        service_tier="auto",
        store=False,
        response_format={"type": "text"},
    )


def test_refusals():
    chat = lambda **fields: lambda: ask(**fields)
    refused(openai.BadRequestError, chat(temperature=-1), "temperature")
    refused(openai.BadRequestError, chat(n=0), "n")
    refused(openai.BadRequestError, chat(response_format={"type": "yaml"}), "response_format.type")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
    refused(openai.BadRequestError, chat(tools=[tool]), "tools[0].function.parameters.type")
    refused(openai.BadRequestError, chat(extra_body={"mirostat": 2}), "mirostat")
    long = refused(openai.BadRequestError, chat(messages=[{"role": "user", "content": "word " * 5000}]))
    assert long.code == "context_length_exceeded"
    refused(openai.NotFoundError, chat(model="gpt-5"))
    stranger = openai.OpenAI(base_url=BASE + "/v1", api_key="wrong", max_retries=0)
    refused(openai.AuthenticationError, stranger.models.list)
    assert client.models.retrieve(MODEL).id == MODEL
    refused(openai.NotFoundError, lambda: client.models.retrieve("nobody"))


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "rain"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


def test_structured_output():
    asked = {"messages": [{"role": "user", "content": "Invent a person."}], "max_tokens": 100, "temperature": 1}
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for seed in range(6):
        plain = ask(**asked, seed=seed, response_format=form, extra_body={"speculation": False})
        drafted = ask(**asked, seed=seed, response_format=form)
        assert plain.choices[0].finish_reason == "stop"
        assert plain.choices[0].message.content == drafted.choices[0].message.content
        jsonschema.Draft202012Validator(PERSON).validate(json.loads(plain.choices[0].message.content))
    whole = ask(**asked, response_format={"type": "json_object"})
    assert whole.choices[0].finish_reason == "length" or isinstance(json.loads(whole.choices[0].message.content), dict)


def light(**fields):
    function = {"name": "set_light", "description": "Switches a light.", "parameters": {
        "type": "object", "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
        "required": ["room", "on"], "additionalProperties": False}}
    return {"type": "function", "function": function | fields}


def test_tools():
    messages = [{"role": "user", "content": "Please switch on the light in the kitchen."}]
    asked = {"messages": messages, "tools": [light(strict=True)], "max_tokens": 100, "temperature": 0}
    for choice in ["required", {"type": "function", "function": {"name": "set_light"}}]:
        whole = ask(**asked, tool_choice=choice, parallel_tool_calls=False)
        (call,) = whole.choices[0].message.tool_calls
        assert whole.choices[0].finish_reason == "tool_calls" and whole.choices[0].message.content is None
        assert call.type == "function" and call.function.name == "set_light"
        jsonschema.validate(json.loads(call.function.arguments), light()["function"]["parameters"])
        # The package puts the deltas together by itself.
        with client.chat.completions.stream(model=MODEL, seed=1, tool_choice=choice, parallel_tool_calls=False, **asked) as stream:
            events = [valid("ChatCompletionChunk", e.chunk.model_dump(mode="json", exclude_unset=True)) for e in stream if e.type == "chunk"]
            final = stream.get_final_completion().choices[0]
        assert len(events) > 3 and final.finish_reason == "tool_calls"
        assert final.message.tool_calls[0].function.arguments == call.function.arguments
    # What came back goes on from there.
    turns = messages + [whole.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "The light is on."}]
    after = ask(**asked | {"messages": turns}, tool_choice="none")
    assert after.choices[0].message.content and not after.choices[0].message.tool_calls
    auto = ask(**asked, tool_choice="auto")
    for call in auto.choices[0].message.tool_calls or []:
        jsonschema.validate(json.loads(call.function.arguments), light()["function"]["parameters"])
    refused(openai.BadRequestError, lambda: ask(**asked, tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice.function.name")


def test_predictions():
    asked = {"max_tokens": 60, "temperature": 0}
    plain = ask(**asked)
    predicted = ask(**asked, prediction={"type": "content", "content": plain.choices[0].message.content})
    assert predicted.choices[0].message.content == plain.choices[0].message.content
    details = predicted.usage.completion_tokens_details
    sources = predicted.model_extra["speculation"]["sources"].get("prediction", {"accepted": 0, "drafted": 0})
    assert details.accepted_prediction_tokens == sources["accepted"] > 0, (details, sources)
    assert details.rejected_prediction_tokens == sources["drafted"] - sources["accepted"]
    wrong = ask(**asked, prediction={"type": "content", "content": "Nothing of the kind was ever said here."})
    assert wrong.choices[0].message.content == plain.choices[0].message.content


def test_texts():
    def complete(**fields):
        raw = client.completions.with_raw_response.create(**({"model": MODEL, "prompt": "One, two,", "seed": 1} | fields))
        valid("Completion", json.loads(raw.text))
        return raw.parse()

    whole = complete(temperature=0, logprobs=2)
    assert whole.usage.completion_tokens == 16 and "".join(whole.choices[0].logprobs.tokens) == whole.choices[0].text
    stream = client.completions.create(
        model=MODEL, prompt="One, two,", seed=1, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [valid("CompletionChunk", c.model_dump(mode="json", exclude_unset=True)) for c in stream]
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == whole.choices[0].text
    assert chunks[-1]["usage"]["completion_tokens"] == 16
    assert len(complete(prompt=["One,", "A,"], n=2, max_tokens=2).choices) == 4
    assert complete(prompt=[1, 2, 3], max_tokens=2).usage.prompt_tokens in (3, 4)
    # SmolLM2 was not made to fill gaps.
    refused(openai.BadRequestError, lambda: complete(suffix="four"), "suffix")


def test_every_field_of_the_document_is_accepted():
    required = {"ChatCompletionRequest": {"messages": COLOURS, "max_tokens": 1}, "CompletionRequest": {"prompt": "Hi", "max_tokens": 1}}
    needs = {"top_logprobs": {"logprobs": True}}
    for name, path in [("ChatCompletionRequest", "/chat/completions"), ("CompletionRequest", "/completions")]:
        for field, schema in DOCUMENT["components"]["schemas"][name]["properties"].items():
            example = MODEL if field == "model" else schema.get("example")
            if example is None or field in ("max_tokens",):
                continue
            body = required[name] | needs.get(field, {}) | {field: example}
            if field == "max_completion_tokens":
                del body["max_tokens"]
            valid(name, body)
            client.post(path, cast_to=object, body=body)
        try:
            client.post(path, cast_to=object, body=required[name] | {"unheard_of": 1})
        except openai.BadRequestError as error:
            assert error.param == "unheard_of"
        else:
            raise AssertionError("an unknown field was accepted")


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name[5:].replace("_", " "), flush=True)


main()
