"use strict";

const KEPT_S = 600;
const WAITING_MS = { ok: 2000, failed: 5000 };
const ALL = ""; // no model has this name
const GOOD = new Set(["READY"]);
const BAD = new Set(["FAILED", "BACKOFF", "UNHEALTHY"]);

const $ = (id) => document.getElementById(id);
let samples = [];
let keysRequired = false;
let conversation = [];
let controller = null;

// --- small builders: text never becomes markup ---------------------------------------------------------------------

function element(tag, classes, ...children) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const digits = value !== 0 && Math.abs(value) < 10 ? 1 : 0;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`;
}

function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// --- figures ---------------------------------------------------------------------------------------------------------

const SUMMED = ["in_flight", "queued", "requests_per_s", "failed_per_s", "output_tokens_per_s", "prompt_tokens_per_s"];
const WORST = ["ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms"];

function figures(sample) {
  const chosen = $("model").value;
  if (chosen !== ALL) return sample.models[chosen] ?? null;
  const all = Object.values(sample.models);
  const found = {};
  for (const name of SUMMED) found[name] = all.reduce((sum, each) => sum + each[name], 0);
  for (const name of WORST) {
    const known = all.map((each) => each[name]).filter((value) => value !== null);
    found[name] = known.length ? Math.max(...known) : null;
  }
  return found;
}

function tile(value, label, bad = false) {
  return element("div", bad ? "tile bad" : "tile", element("b", "", value), element("span", "", label));
}

function drawTiles() {
  const last = samples.length ? figures(samples[samples.length - 1]) : null;
  if (!last) return;
  const worst = $("model").value === ALL && $("model").options.length > 2 ? ", slowest model" : "";
  $("tiles").replaceChildren(
    tile(number(last.output_tokens_per_s), "output tokens/s"),
    tile(number(last.requests_per_s), "requests/s"),
    tile(number(last.in_flight), "in flight"),
    tile(number(last.queued), "waiting"),
    tile(milliseconds(last.ttft_p50_ms), `first token p50${worst}`),
    tile(milliseconds(last.ttft_p95_ms), `first token p95${worst}`),
    tile(milliseconds(last.itl_p50_ms), `between tokens p50${worst}`),
    tile(number(last.failed_per_s), "failed/s", last.failed_per_s > 0),
  );
}

function drawChart(id, names) {
  const width = 600, height = 110, now = samples[samples.length - 1].at_unix_s;
  const shown = Math.min(KEPT_S, Math.max(60, now - samples[0].at_unix_s));
  const rows = samples.map((sample) => [sample.at_unix_s, figures(sample)]).filter((row) => row[1]);
  const values = rows.flatMap(([, row]) => names.map((name) => row[name])).filter((value) => value !== null);
  const top = Math.max(...values, 1e-9);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${names.join(", ")}, at most ${number(values.length ? top : 0)}` });
  for (const y of [1, height / 2, height - 1]) svg.append(shape("line", { x1: 0, x2: width, y1: y, y2: y, class: "grid" }));
  names.forEach((name, index) => {
    let path = "", pen = "M";
    for (const [at, row] of rows) {
      if (row[name] === null) { pen = "M"; continue; }
      const x = width - ((now - at) / shown) * width, y = height - 2 - (row[name] / top) * (height - 4);
      path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
    }
    if (path) svg.append(shape("path", { d: path, class: "ab"[index] }));
  });
  const scale = element("div", "scale", element("span", "", `${span(shown).replace(" 0 s", "")} ago`), element("span", "", values.length ? `top: ${number(top)}` : "no traffic"), element("span", "", "now"));
  $(id).replaceChildren(svg, scale);
}

function drawCharts() {
  if (!samples.length) return;
  drawChart("chart-tokens", ["output_tokens_per_s"]);
  drawChart("chart-ttft", ["ttft_p50_ms", "ttft_p95_ms"]);
  drawChart("chart-itl", ["itl_p50_ms", "itl_p95_ms"]);
  drawChart("chart-flight", ["in_flight", "queued"]);
}

// --- the fleet -------------------------------------------------------------------------------------------------------

function tone(state) {
  return GOOD.has(state) ? "good" : BAD.has(state) ? "bad" : "warn";
}

function bar(share) {
  const fill = element("i");
  fill.style.width = `${Math.round(Math.min(1, share) * 100)}%`;
  return element("div", "bar", fill);
}

function drawWorker(worker) {
  const state = worker.state.toUpperCase();
  const facts = [
    worker.model,
    `${span(worker.age_s)} in this state`,
    `${worker.in_flight} in flight`,
    worker.tokens_per_s === null ? null : `${number(worker.tokens_per_s)} tokens/s`,
    worker.kv_usage === null ? null : `KV cache ${Math.round(worker.kv_usage * 100)} %`,
    worker.restarts ? `restarted ${worker.restarts === 1 ? "once" : `${worker.restarts} times`}` : null,
    worker.pid === null ? (worker.static ? "started by somebody else" : null) : `pid ${worker.pid}`,
    worker.engine_version ? `vLLM ${worker.engine_version}` : null,
    worker.gpus.length ? `GPU ${worker.gpus.join(", ")}` : null,
  ].filter((fact) => fact !== null);
  const doing = worker.phase && !GOOD.has(state) ? element("p", "small", worker.phase) : null;
  return element("div", `worker ${tone(state)}`,
    element("div", "top", element("span", "", worker.name), element("span", "state", worker.state)),
    doing,
    element("div", "facts", ...facts.map((fact) => element("span", "", fact))),
    worker.progress !== null && !GOOD.has(state) ? bar(worker.progress) : null,
    worker.kv_usage !== null && GOOD.has(state) ? bar(worker.kv_usage) : null,
  );
}

function gibibytes(bytes) {
  return number(bytes / 2 ** 30);
}

function outOfUse(quarantine) {
  return quarantine ? element("p", "small", `Out of use: ${quarantine.reason}; ${quarantine.fix}.`) : null;
}

function drawGpu(gpu, quarantine) {
  return element("div", `worker ${quarantine ? "bad" : "good"}`,
    element("div", "top", element("span", "", `GPU ${gpu.index}`), element("span", "small muted", gpu.name)),
    outOfUse(quarantine),
    element("div", "facts", ...[
      `${gibibytes(gpu.used_bytes)} of ${gibibytes(gpu.total_bytes)} GiB`,
      gpu.utilization === null ? null : `${Math.round(gpu.utilization * 100)} % busy`,
      gpu.temperature_c === null ? null : `${number(gpu.temperature_c)} °C`,
      gpu.power_w === null ? null : `${number(gpu.power_w)} W`,
    ].filter((fact) => fact !== null).map((fact) => element("span", "", fact))),
    bar(gpu.used_bytes / gpu.total_bytes));
}

function drawGpus(gpus, quarantined) {
  const quarantines = new Map(quarantined.map((each) => [each.gpu, each]));
  const read = new Set(gpus.map((gpu) => gpu.index));
  // A driver that has lost a GPU may tell nothing of any.
  const unread = quarantined.filter((each) => !read.has(each.gpu)).map((each) => element("div", "worker bad",
    element("div", "top", element("span", "", `GPU ${each.gpu}`)), outOfUse(each)));
  $("gpu-section").hidden = !gpus.length && !quarantined.length;
  $("gpus").replaceChildren(...unread, ...gpus.map((gpu) => drawGpu(gpu, quarantines.get(gpu.index))));
}

function drawFailures(report, failures) {
  const items = report.workers.filter((worker) => worker.last_failure).map((worker) =>
    element("li", "", element("b", "", `${worker.name}: `), worker.last_failure));
  // By the gateway's clock alone: this one may be another machine's.
  const now = samples.length ? samples[samples.length - 1].at_unix_s : 0;
  for (const each of failures) {
    const verb = each.count === 1 ? "1 request" : `${number(each.count)} requests`;
    items.push(element("li", "", element("b", "", `${each.model}: `), `${verb} ${each.saying}`,
      element("span", "when", ` · last ${span(now - each.last_unix_s)} ago`)));
  }
  $("failures").replaceChildren(...(items.length ? items : [element("li", "muted", "None in the last ten minutes.")]));
}

function drawProcesses(report) {
  $("processes").replaceChildren(...report.gateway_processes.map((process) =>
    element("li", "", element("b", "", `${process.slot}: `),
      process.pid === null ? process.state : `pid ${process.pid}, ${process.state}, ${number(process.in_flight)} requests`,
      process.restarts ? `, restarted ${process.restarts} times` : "")));
}

function drawHead(report) {
  const ready = report.models.filter((model) => model.ready > 0).length;
  const health = $("health");
  const all = report.models.length;
  health.textContent = report.draining ? "stopping" : ready === all ? "serving" : `${ready} of ${all} models serve`;
  health.className = `pill ${report.draining ? "" : ready === all ? "good" : ready ? "" : "bad"}`;
  $("subtitle").textContent = `${report.version} · up ${span(report.uptime_s)} · clients: ${report.public_url}/v1`;
  const port = location.port || "8001";
  $("tunnel").textContent = `ssh -L ${port}:127.0.0.1:${port} USER@HOST`;
  $("local").textContent = `http://127.0.0.1:${port}/console`;
}

function offerModels(report) {
  const names = [...(report.models.length > 1 ? [ALL] : []), ...report.models.map((model) => model.name)];
  const select = $("model");
  if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => { const option = element("option", "", name === ALL ? "all models" : name); option.value = name; return option; }));
  if (names.includes(chosen)) select.value = chosen;
}

function draw(data) {
  const { report } = data;
  keysRequired = data.keys_required;
  $("key-row").hidden = !keysRequired;
  drawHead(report);
  offerModels(report);
  drawTiles();
  drawCharts();
  $("workers").replaceChildren(...report.workers.map(drawWorker));
  drawFailures(report, data.failures);
  drawProcesses(report);
  drawGpus(data.gpus, report.quarantined_gpus);
}

async function refresh() {
  let pause = WAITING_MS.ok;
  try {
    const since = samples.length ? samples[samples.length - 1].at_unix_s : 0;
    const answer = await fetch(`/console/data?since=${since}`);
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const data = await answer.json();
    samples.push(...data.samples);
    const oldest = (samples.length ? samples[samples.length - 1].at_unix_s : 0) - KEPT_S;
    samples = samples.filter((sample) => sample.at_unix_s >= oldest);
    $("offline").hidden = true;
    draw(data);
  } catch (error) {
    pause = WAITING_MS.failed;
    $("offline").hidden = false;
    $("offline").textContent = `The gateway does not answer (${error.message}). What is shown is old; trying again every few seconds.`;
    $("health").textContent = "no answer";
    $("health").className = "pill bad";
  }
  setTimeout(refresh, pause);
}

// --- chat ------------------------------------------------------------------------------------------------------------

function say(text, kind) {
  const said = element("div", `said ${kind}`, text);
  const box = $("conversation");
  if (!conversation.length) box.querySelector("p")?.remove();
  box.append(said);
  box.scrollTop = box.scrollHeight;
  return said;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function ask(question) {
  const chosen = $("model").value;
  const model = chosen === ALL ? $("model").options[1]?.value : chosen;
  if (!model) throw new Error("there is no model to ask");
  say(question, "you");
  conversation.push({ role: "user", content: question });
  const headers = { "content-type": "application/json", "x-console": "1" };
  if (keysRequired && $("key").value) headers["x-api-key"] = $("key").value;
  const began = performance.now();
  const body = { model, messages: conversation, stream: true, stream_options: { include_usage: true } };
  const answer = await fetch("/console/chat", { method: "POST", headers, body: JSON.stringify(body), signal: controller.signal });
  if (!answer.ok) {
    const said = await answer.json().catch(() => null);
    throw new Error(said?.error?.message ?? `HTTP ${answer.status}`);
  }
  const box = say("", "model");
  let text = "", first = null, usage = null;
  for await (const event of events(answer.body)) {
    if (event.error) throw new Error(event.error.message);
    usage = event.usage ?? usage;
    const delta = event.choices?.[0]?.delta;
    const piece = delta?.content ?? delta?.reasoning ?? delta?.reasoning_content ?? "";
    if (!piece) continue;
    first ??= performance.now() - began;
    text += piece;
    box.textContent = text;
    $("conversation").scrollTop = $("conversation").scrollHeight;
  }
  conversation.push({ role: "assistant", content: text });
  const took = (performance.now() - began) / 1000;
  const tokens = usage?.completion_tokens;
  $("timing").textContent = `${model}: first token after ${milliseconds(first)}, ${tokens ?? "?"} tokens in ${number(took)} s`
    + (tokens > 1 && took > first / 1000 ? ` (${number((tokens - 1) / (took - first / 1000))} tokens/s)` : "");
}

async function submit(event) {
  event.preventDefault();
  if (controller) { controller.abort(); return; }
  const field = $("question");
  const question = field.value.trim() || field.placeholder;
  field.value = "";
  controller = new AbortController();
  $("send").textContent = "Stop";
  $("timing").textContent = "waiting for the first token …";
  try {
    await ask(question);
  } catch (error) {
    conversation.pop();
    $("timing").textContent = "";
    say(error.name === "AbortError" ? "Stopped." : error.message, "error");
  } finally {
    controller = null;
    $("send").textContent = "Ask";
  }
}

$("chat").addEventListener("submit", submit);
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("chat").requestSubmit(); }
});
$("model").addEventListener("change", () => { drawTiles(); drawCharts(); });
refresh();
