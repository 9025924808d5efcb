// openai-node. `node client.mjs MODULES BASE_URL...`: MODULES is the folder with node_modules; one JSON line per result.
// SDK_MODEL is the model to ask for (default `sim`), SDK_API_KEY the key to send, SDK_OPERATIONS names the operations to
// run, with commas (default: all).

import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, ...baseUrls] = process.argv.slice(2);
const OpenAI = createRequire(join(modules, "package.json"))("openai");
const MODEL = process.env.SDK_MODEL ?? "sim";
const TIMEOUT_MS = 30_000;
const TOOLS = ["get_weather", "get_time"].map((name) => ({
  type: "function",
  function: { name, parameters: { type: "object", properties: {} } },
}));

const sdk = (url, maxRetries = 0) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.SDK_API_KEY ?? "unused", maxRetries, timeout: TIMEOUT_MS });

const ask = (scenario, more = {}) => ({
  model: MODEL,
  messages: [{ role: "user", content: scenario }],
  temperature: 0,
  max_tokens: 64,
  ...more,
});

const described = (error) => ({
  error: error.constructor.name,
  status: error.status ?? null,
  code: error.code ?? null,
  type: error.type ?? null,
  param: error.param ?? null,
  message: error.error?.message ?? error.message,
  retry_after: error.headers?.get?.("retry-after") ?? null,
});

// What a stream yielded, and the error that ended it, if one did.
async function partly(events) {
  const taken = [];
  try {
    for await (const event of events) taken.push(event);
  } catch (error) {
    return { taken, ...described(error) };
  }
  return { taken };
}

const streamed = async (url, scenario, more = {}) =>
  partly(await sdk(url).chat.completions.create(ask(scenario, { stream: true, ...more })));

const whole = (url, scenario, more = {}, retries = 0) => sdk(url, retries).chat.completions.create(ask(scenario, more));

const operations = {
  stream: (url) => streamed(url, "plain"),
  stream_usage: (url) => streamed(url, "plain", { stream_options: { include_usage: true } }),
  stream_byte_by_byte: (url) => streamed(url, "byte_by_byte"),
  whole: (url) => whole(url, "plain"),
  tools: (url) => sdk(url).chat.completions.stream(ask("tools", { tools: TOOLS })).finalChatCompletion(),
  several: (url) => sdk(url).chat.completions.stream(ask("several", { n: 2 })).finalChatCompletion(),
  completions: async (url) => partly(await sdk(url).completions.create({ model: MODEL, prompt: "plain", temperature: 0, max_tokens: 64, stream: true })),
  embeddings: (url) => sdk(url).embeddings.create({ model: MODEL, input: ["plain", "plain"] }),
  models: async (url) => (await sdk(url).models.list()).data.map((model) => [model.id, model.object]),
  model_with_slash: async (url) => {
    const found = await sdk(url).models.retrieve("org/sim");
    return [found.id, found.object];
  },
  error_404: (url) => whole(url, "plain", { model: "nope" }),
  error_400_context: (url) => whole(url, "context"),
  error_429: (url) => whole(url, "limited"),
  retry_429: (url) => whole(url, "limited_once", {}, 2),
  retry_503: (url) => whole(url, "busy_once", {}, 2),
  abandoned: async (url) => {
    const stream = await sdk(url).chat.completions.create(ask("abandoned", { stream: true }));
    const taken = [];
    for await (const event of stream) {
      taken.push(event);
      if (taken.length === 2) break;
    }
    stream.controller.abort();
    return taken;
  },
  in_band_error: (url) => streamed(url, "in_band"),
  responses_stream: async (url) => partly(await sdk(url).responses.create({ model: MODEL, input: "plain", temperature: 0, max_output_tokens: 64, stream: true })),
  cut: (url) => streamed(url, "cut"),
  responses: (url) => sdk(url).responses.create({ model: MODEL, input: "plain", temperature: 0, max_output_tokens: 64 }),
  unfinished: (url) => streamed(url, "unfinished"),
  request_id: async (url) => Boolean((await whole(url, "plain"))._request_id),
};

const chosen = process.env.SDK_OPERATIONS?.split(",") ?? Object.keys(operations);

for (const [target, url] of baseUrls.entries()) {
  for (const operation of chosen) {
    const run = operations[operation];
    const began = performance.now();
    let result;
    try {
      result = await run(url);
    } catch (error) {
      result = error instanceof OpenAI.OpenAIError ? described(error) : { defect: String(error), trace: error.stack };
    }
    console.log(JSON.stringify({ target, operation, result, seconds: (performance.now() - began) / 1000 }));
  }
}
