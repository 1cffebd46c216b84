"use strict";
const $ = (id) => document.getElementById(id);
const HISTORY = 300; // samples of a curve
let history = []; // [{at, models: {name: {tokens, waiting, running}}}]
let chosen = "";
let talk = [];
let answering = null; // AbortController of the answer that streams

function headers(more) {
  const key = sessionStorage.getItem("key");
  return key ? { ...more, authorization: `Bearer ${key}` } : { ...more };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = { name: "message", data: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) event.name = line.slice(7);
        if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      yield event;
    }
  }
}

function health(text, good) {
  const place = $("health");
  if (place.textContent !== text) place.textContent = text; // announced once
  place.className = good ? "good" : "bad";
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function box(title, lines, className, share) {
  const made = element("li", undefined, className);
  made.append(element("b", title));
  if (share !== undefined) {
    const meter = element("meter");
    meter.value = share;
    meter.setAttribute("aria-label", `${title} busy`);
    made.append(meter);
  }
  for (const line of lines) made.append(element("small", line));
  return made;
}

function drawPipeline(model) {
  const decoder = model.decoder;
  const boxes = [decoder
    ? box("decoder", [decoder.waits_for ? `waits for ${decoder.waits_for}` : `${decoder.state}, epoch ${decoder.epoch}`,
      `${decoder.steps_in_flight} steps in flight`, `${decoder.host}:${decoder.pid}`], decoder.running ? "busy" : "")
    : box("decoder", ["missing: start decoder-run"], "missing")];
  for (const stage of model.stages) {
    const name = `stage ${stage.stage}`;
    boxes.push(stage.state === "missing"
      ? box(name, ["missing: start stage-run"], "missing")
      : box(name, [`${stage.state}, ${Math.round(stage.busy_share * 100)}% busy`, `${stage.waiting} steps wait`,
        `${stage.step_ms_p50.toFixed(1)} ms a step`, `${stage.host}:${stage.pid} on ${stage.device}`],
      stage.busy_share > 0.05 ? "busy" : "", stage.busy_share));
  }
  for (const spare of model.spares) boxes.push(box(`stage ${spare.stage}, spare`, [spare.state, `${spare.host}:${spare.pid}`], ""));
  $("pipeline").replaceChildren(...boxes);
}

function drawCurve(id, values, unit) {
  const most = Math.max(1, ...values);
  const points = values.map((value, i) => `${300 - (values.length - 1 - i) * (300 / (HISTORY - 1))},${78 - (value / most) * 74}`);
  $(id).firstElementChild.setAttribute("points", points.join(" "));
  const now = values.length ? values[values.length - 1] : 0;
  $(`${id}-now`).textContent = `${+now.toFixed(1)} ${unit} now, ${+Math.max(0, ...values).toFixed(1)} at most in ${values.length} s`;
}

function drawFigures(model) {
  const decoder = model.decoder;
  const rows = [];
  if (decoder) {
    const { checked, accepted } = decoder.speculation;
    const cache = decoder.prefix_cache;
    rows.push(["running", decoder.running], ["waiting at the decoder", decoder.waiting],
      ["tokens since start", decoder.tokens],
      ["drafts accepted", checked ? `${Math.round((accepted / checked) * 100)}% of ${checked}` : "none drafted"],
      ["prompt tokens saved", cache.saved_tokens],
      ["cache blocks free", `${decoder.free_blocks} of ${decoder.blocks}`], ["replays", decoder.replays]);
  }
  if (model.prompts) rows.push(["durable prompts", `${model.prompts.pending} wait, ${model.prompts.dead} dead`]);
  $("figures").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", name), element("dd", String(value))]));
}

function drawCalls(calls) {
  $("calls").replaceChildren(...calls.map((call) => {
    const row = element("tr");
    row.append(element("td", call.id), element("td", call.key || call.endpoint), element("td", String(call.tokens)), element("td", call.seconds.toFixed(1)));
    return row;
  }));
  $("no-calls").hidden = calls.length > 0;
}

let shownFaults = "";
function drawFaults(faults) {
  const id = JSON.stringify(faults);
  if (id === shownFaults) return; // a screen reader says each one once
  shownFaults = id;
  $("faults").replaceChildren(...faults.slice().reverse().map((fault) => {
    const row = element("li");
    row.append(element("time", new Date(fault.at * 1000).toLocaleTimeString()), fault.text);
    return row;
  }));
  $("no-faults").hidden = faults.length > 0;
}

function chooseModel(names) {
  const select = $("model");
  if (names.join() !== [...select.options].map((option) => option.value).join()) {
    select.replaceChildren(...names.map((name) => element("option", name)));
    if (names.includes(chosen)) select.value = chosen;
  }
  chosen = select.value;
  $("model-choice").hidden = names.length === 0;
}

function draw(sample) {
  chooseModel(Object.keys(sample.models).sort());
  drawCalls(sample.calls);
  drawFaults(sample.faults);
  const model = sample.models[chosen];
  if (!sample.broker) health("the broker is not reachable", false);
  else if (!model) health("no model is heard: start stage-run and decoder-run", false);
  else health(model.outage ? `not serving: ${model.outage}` : "serving", !model.outage);
  const values = (name) => history.map((one) => one.models[chosen]?.[name] ?? 0);
  drawCurve("tokens", values("tokens"), "tokens/s");
  drawCurve("waiting", values("waiting"), "waiting");
  if (!model) return;
  drawPipeline(model);
  drawFigures(model);
}

function curve(model) {
  return { tokens: model.decoder?.tokens_per_second ?? 0, running: model.decoder?.running ?? 0,
    waiting: (model.decoder?.waiting ?? 0) + (model.prompts?.pending ?? 0) };
}

async function watch() {
  for (;;) {
    try {
      const response = await fetch("/live", { headers: headers() });
      $("key-form").hidden = response.status !== 401;
      if (response.status === 401) {
        health("an API key is needed", false);
        return; // the form begins again
      }
      for await (const event of events(response)) {
        const value = JSON.parse(event.data);
        if (event.name === "history") {
          history = value;
          continue;
        }
        const models = Object.fromEntries(Object.entries(value.models).map(([name, model]) => [name, curve(model)]));
        if (!history.length || history[history.length - 1].at < value.at) history.push({ at: value.at, models });
        history = history.slice(-HISTORY);
        draw(value);
      }
    } catch (error) {
      console.warn(error);
    }
    health("the gateway is not reachable; trying again", false);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function say(role, text) {
  const place = $("talk");
  const made = element("p", text, role);
  place.append(made);
  place.scrollTop = place.scrollHeight;
  return made;
}

async function ask(question) {
  talk.push({ role: "user", content: question });
  say("user", question);
  const shown = say("assistant", "…");
  answering = new AbortController();
  $("send").disabled = !($("stop").disabled = false);
  let text = "";
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", signal: answering.signal, headers: headers({ "content-type": "application/json" }),
      body: JSON.stringify({ model: chosen, messages: talk, stream: true, max_tokens: Number($("max-tokens").value) || 200 }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.data === "[DONE]") break;
      const chunk = JSON.parse(event.data);
      if (chunk.error) throw new Error(chunk.error.message);
      text += chunk.choices[0]?.delta.content ?? "";
      shown.textContent = text || "…";
      $("talk").scrollTop = $("talk").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") say("bad", error.message);
  }
  shown.textContent = text || "(no text)";
  if (text) talk.push({ role: "assistant", content: text });
  else talk.pop(); // the question was not answered: two in a row would confuse a chat template
  answering = null;
  $("send").disabled = !($("stop").disabled = true);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || answering) return;
  $("question").value = "";
  ask(question);
});
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
$("stop").addEventListener("click", () => answering?.abort());
$("clear").addEventListener("click", () => {
  answering?.abort();
  talk = [];
  $("talk").replaceChildren();
});
$("model").addEventListener("change", () => { chosen = $("model").value; });
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value);
  $("key").value = "";
  watch();
});
watch();
