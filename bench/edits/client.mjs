// The official OpenAI package for Node against a running server.
//
// usage: node client.mjs BASE_URL KEY

import assert from "node:assert/strict";
import OpenAI from "openai";

const [base, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: base + "/v1", apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Name three colours, separated by commas." }];
const ask = (fields) => client.chat.completions.create({ model, messages, seed: 1, max_tokens: 12, ...fields });

const tests = {
  async "whole and streamed are the same"() {
    const whole = await ask({});
    let text = "";
    let usage = null;
    for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, 12);
    assert.equal(whole.usage.completion_tokens, 12);
    assert.equal(whole.choices[0].finish_reason, "length");
    assert.ok(whole.speculation.lossless && whole.timings.decode_s > 0);
  },

  async "choices, seeds and drafts"() {
    const many = await ask({ n: 2, temperature: 1 });
    const one = await ask({ temperature: 1, speculation: false });
    assert.equal(many.choices.length, 2);
    assert.equal(many.choices[0].message.content, one.choices[0].message.content);
  },

  async "log-probabilities, stops and bias"() {
    const choice = (await ask({ logprobs: true, top_logprobs: 2, temperature: 0, return_token_ids: true })).choices[0];
    assert.equal(choice.logprobs.content.length, 12);
    assert.equal(choice.logprobs.content[0].top_logprobs.length, 2);
    const stop = choice.message.content.slice(4, 6);
    const cut = (await ask({ temperature: 0, stop: [stop] })).choices[0];
    assert.equal(cut.message.content, choice.message.content.split(stop)[0]);
    const biased = await ask({ temperature: 0, max_tokens: 1, logit_bias: { [choice.token_ids[0]]: -100 }, return_token_ids: true });
    assert.notEqual(biased.choices[0].token_ids[0], choice.token_ids[0]);
  },

  async "a stream that is dropped"() {
    const stream = await ask({ stream: true, max_tokens: 1000 });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta?.content) break;
    }
    stream.controller.abort();
    assert.ok((await ask({ max_tokens: 1 })).usage.completion_tokens === 1);
  },

  async "texts"() {
    const whole = await client.completions.create({ model, prompt: "One, two,", seed: 1, temperature: 0 });
    let text = "";
    for await (const chunk of await client.completions.create({ model, prompt: "One, two,", seed: 1, temperature: 0, stream: true })) {
      text += chunk.choices[0]?.text ?? "";
    }
    assert.equal(text, whole.choices[0].text);
    assert.equal(whole.usage.completion_tokens, 16);
  },

  async "refusals"() {
    await assert.rejects(ask({ temperature: -1 }), (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
    await assert.rejects(ask({ reasoning_effort: "high" }), (error) => error.param === "reasoning_effort");
    await assert.rejects(ask({ model: "gpt-5" }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: base + "/v1", apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log("ok", name);
}
