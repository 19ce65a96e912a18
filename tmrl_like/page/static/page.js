"use strict";
// Two answers are polled: "workers" a few times a second, and "run" every few seconds (tmrl_like/page/watcher.py).

const $ = (id) => document.getElementById(id);
const RATE_OVER_S = 5, GONE_AFTER_S = 3, MAX_ROWS = 100;
const BAD = ["gone", "ended", "alarm"];
const COLOURS = { drives: "good", expert: "note", "safe action": "idle", "stands still": "idle", gone: "gone" };

const CHARTS = [
  { title: "Return", names: ["return", "return_test"], labels: ["training", "test"], wide: true },
  { title: "Training steps per sample",
    names: ["training_steps_per_env_step_round", "training_steps_per_env_step", "training_steps_per_env_step_limit"],
    labels: ["of the round", "so far", "limit"] },
  { title: "Critic loss", names: ["loss_critic", "loss_critic_held_out", "loss_quantiles", "loss_quantiles_held_out"],
    labels: ["trained on", "held out", "trained on", "held out"] },
  { title: "Actor loss", names: ["loss_actor", "loss_actor_held_out"], labels: ["trained on", "held out"] },
  { title: "Q: values and their targets", names: ["q_mean", "q_target_mean"], labels: ["values", "targets"] },
  { title: "Entropy", names: ["entropy_nats", "entropy_coef"], labels: ["nats", "coefficient"] },
  { title: "Sample age, s", names: ["sample_age_p50_s", "sample_age_p99_s"], labels: ["median", "99th percentile"] },
  { title: "Share of demonstrations", names: ["demonstration_share"], labels: ["of new samples"] },
];

const COLUMNS = ["worker", "state", "steps/s", "asked", "overruns", "action delay", "policy", "policy age",
  "kept", "last returns"];

let run = null, fleet = [], seenAt = 0, isAnswered = true;
const past = new Map();  // worker -> its recent counts, from which rates are computed

// -- numbers ----------------------------------------------------------------------------------------

function short(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1e6) return +(x / 1e6).toPrecision(3) + " M";
  if (size >= 1e4) return +(x / 1e3).toPrecision(3) + " k";
  if (Number.isInteger(x)) return String(x);
  return size >= 100 ? x.toFixed(0) : size >= 0.001 ? String(+x.toPrecision(3)) : x === 0 ? "0" : x.toExponential(1);
}

function seconds(x) {
  if (x === null || x === undefined) return "–";
  if (x < 1) return short(x * 1e3) + " ms";
  return x < 100 ? x.toFixed(1) + " s" : clock(x);
}

function clock(x) {
  const [h, m, s] = [Math.floor(x / 3600), Math.floor(x / 60) % 60, Math.floor(x) % 60];
  return (h ? h + ":" + String(m).padStart(2, "0") : m) + ":" + String(s).padStart(2, "0");
}

const percent = (x) => (x === null || x === undefined ? "–" : +(100 * x).toPrecision(3) + " %");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name);

function text(element, value, kind) {
  if (element.textContent !== value) element.textContent = value;
  if (kind !== undefined && element.className !== kind) element.className = kind;
}

function make(tag, parent, value, kind) {
  const element = parent.appendChild(document.createElement(tag));
  text(element, value || "", kind);
  return element;
}

// -- workers ----------------------------------------------------------------------------------------

function understand(workers) {
  const names = new Set();
  fleet = workers.map((w) => {
    names.add(w.worker);
    const at = seenAt - w.age_s;
    let before = past.get(w.worker);
    if (!before || before.at(-1).env_steps > w.env_steps) past.set(w.worker, before = []);
    if (!before.length || at - before.at(-1).at > 0.1) {
      before.push({ at, env_steps: w.env_steps, overruns: w.overruns, safe_steps: w.safe_steps });
    }
    while (before.length > 2 && before[1].at < at - RATE_OVER_S) before.shift();
    const first = before[0], span = before.at(-1).at - first.at;
    w.rate = span > 0.3 ? (w.env_steps - first.env_steps) / span : null;
    w.overrunning = w.overruns > first.overruns;
    w.state = w.age_s > GONE_AFTER_S ? "gone" : w.ended ? "ended" : w.alarm ? "alarm"
      : w.driver === "safe" || w.safe_steps > first.safe_steps ? "safe action"
      : ["human", "program"].includes(w.driver) ? w.driver + " has taken over"
      : w.rate === 0 ? "stands still" : w.expert ? "expert" : "drives";
    w.kind = COLOURS[w.state] || (BAD.includes(w.state) ? "bad" : "note");
    return w;
  });
  for (const name of past.keys()) if (!names.has(name)) past.delete(name);
  const urgent = (w) => (BAD.includes(w.state) ? 0 : w.state === "drives" ? 2 : 1);
  fleet.sort((a, b) => urgent(a) - urgent(b) || a.worker.localeCompare(b.worker, undefined, { numeric: true }));
}

function drawTiles() {
  const canvas = $("tiles"), width = canvas.clientWidth, ratio = devicePixelRatio;
  canvas.hidden = fleet.length < 2;
  if (canvas.hidden) return;
  const side = fleet.length > 300 ? 12 : 18, perRow = Math.max(1, Math.floor(width / side));
  const height = Math.ceil(fleet.length / perRow) * side;
  canvas.style.height = height + "px";
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const draw = canvas.getContext("2d"), colours = {};
  draw.scale(ratio, ratio);
  fleet.forEach((w, i) => {
    draw.fillStyle = colours[w.kind] ||= colour(w.kind);
    draw.globalAlpha = w.overrunning ? 0.55 : 1;
    draw.fillRect((i % perRow) * side, Math.floor(i / perRow) * side, side - 2, side - 2);
  });
  canvas.onclick = (event) => {
    const w = fleet[Math.floor(event.offsetY / side) * perRow + Math.floor(event.offsetX / side)];
    if (w) { $("filter").value = w.worker; drawWorkers(); }
  };
}

function newRow() {
  const row = make("tr", $("workers"));
  COLUMNS.forEach(() => make("td", row));
  return row;
}

function drawWorkers() {
  const wanted = $("filter").value.toLowerCase();
  const found = fleet.filter((w) => !wanted || (w.worker + " " + w.state).toLowerCase().includes(wanted));
  const shown = found.slice(0, MAX_ROWS), rows = $("workers").rows;
  while (rows.length > shown.length) rows[rows.length - 1].remove();
  shown.forEach((w, i) => {
    const cells = (rows[i] || newRow()).cells, why = w.ended || w.alarm;
    const values = [w.worker, why ? w.state + ": " + why : w.state, short(w.rate === null ? null : +w.rate.toFixed(1)),
      w.time_step_s ? short(1 / w.time_step_s) : "–", short(w.overruns), seconds(w.action_delay_s),
      short(w.policy_version), seconds(w.policy_age_s), short(w.unacknowledged_samples),
      w.returns.map((r) => short(r)).join("  ")];
    values.forEach((value, k) => text(cells[k], value, k === 1 ? w.kind : undefined));
    cells[1].title = why;
  });
  text($("more"), found.length > shown.length ? `${found.length - shown.length} more: filter by name or state` : "");
}

// -- the run ----------------------------------------------------------------------------------------

function drawCards() {
  const r = run.round, sum = (name) => fleet.reduce((total, w) => total + (w[name] || 0), 0);
  const drives = fleet.filter((w) => !["gone", "ended", "stands still"].includes(w.state)).length;
  const cards = [
    ["workers that drive", `${drives} of ${fleet.length}`], ["environment steps/s", short(Math.round(sum("rate")))],
    ["overruns, share of steps", percent(sum("overruns") / Math.max(1, sum("env_steps")))],
    ["safe steps", short(sum("safe_steps"))], ["samples kept by workers", short(sum("unacknowledged_samples"))],
    ["lost samples", short(sum("lost_samples"))],
    ["training time", clock(run.time_s)], ["samples", short(r.env_steps_total)],
    ["training steps", short(r.training_steps_total)], ["training steps/s", short(r.training_steps_per_s)],
    ["per sample, reached / limit",
      `${short(r.training_steps_per_env_step)} / ${short(r.training_steps_per_env_step_limit)}`],
    ["return, test", short(r.return_test_mean)], ["sample age", seconds(r.sample_age_p50_s)],
    ["of demonstrations", percent(r.demonstration_share)],
  ];
  const box = $("cards");
  cards.forEach(([name, value], i) => {
    const card = box.children[i] || make("div", box, "", "card");
    if (!card.firstChild) { make("b", card); make("span", card, name); }
    text(card.firstChild, value);
  });
}

function drawRun() {
  document.title = `${run.title} · tmrl_like`;
  text($("title"), run.title);
  const learning = run.round.learning || "";
  text($("learning"), learning, learning.startsWith("not") ? "bad" : "good");
  CHARTS.forEach((chart, i) => drawChart(chart, i));
  const list = $("incidents");
  list.replaceChildren();
  for (const [at, kind, what] of run.incidents.toReversed()) {
    const item = make("li", list);
    make("time", item, new Date(at * 1e3).toLocaleTimeString());
    make("span", item, what, kind);
  }
  if (!run.incidents.length) make("li", list, "none");
}

function drawChart(chart, i) {
  const box = $("charts").children[i] || make("div", $("charts"), "", chart.wide ? "chart wide" : "chart");
  if (!box.firstChild) {
    make("h3", box, chart.title);
    make("div", box, "", "legend");
    make("canvas", box).onmousemove = (event) => { chart.mouse = event.offsetX; drawChart(chart, i); };
    box.lastChild.onmouseleave = () => { chart.mouse = null; drawChart(chart, i); };
  }
  const lines = chart.names.map((name, k) => ({ curve: run.curves[name], label: chart.labels[k] })).filter((l) => l.curve?.length);
  const inks = ["a", "b", "c", "d"].map(colour), [, legend, canvas] = box.children, ratio = devicePixelRatio;
  box.hidden = !lines.length && chart.names[0] !== "return";
  if (box.hidden) return;
  const width = canvas.clientWidth, height = canvas.clientHeight, left = 46, bottom = height - 18, top = 6;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  draw.font = "11px system-ui, sans-serif";
  let low = Infinity, high = -Infinity, end = Math.max(1, run.time_s);
  for (const { curve } of lines) curve.forEach(([, v]) => { [low, high] = [Math.min(low, v), Math.max(high, v)]; });
  if (low > high) [low, high] = [0, 1];
  if (low === high) [low, high] = low ? [low - 0.5, high + 0.5] : [0, 1];
  const x = (t) => left + ((width - left - 6) * t) / end, y = (v) => bottom - ((bottom - top) * (v - low)) / (high - low);
  draw.fillStyle = colour("dim");
  draw.strokeStyle = colour("line");
  for (let k = 0; k <= 3; k++) {
    const value = low + ((high - low) * k) / 3, time = (end * k) / 3;
    draw.beginPath();
    draw.moveTo(left, y(value));
    draw.lineTo(width - 6, y(value));
    draw.stroke();
    draw.textAlign = "right";
    draw.fillText(short(value), left - 5, y(value) + 4);
    draw.textAlign = k === 3 ? "right" : "center";
    if (k) draw.fillText(clock(time), x(time), height - 4);
  }
  lines.forEach(({ curve }, k) => {
    draw.strokeStyle = draw.fillStyle = inks[k];
    draw.lineWidth = 1.6;
    draw.beginPath();
    curve.forEach(([t, v]) => draw.lineTo(x(t), y(v)));
    draw.stroke();
    if (curve.length < 40) curve.forEach(([t, v]) => draw.fillRect(x(t) - 1.5, y(v) - 1.5, 3, 3));
  });
  legend.replaceChildren();
  lines.forEach(({ curve, label }, k) => {
    const [t, v] = curve.findLast(([t]) => x(t) <= (chart.mouse ?? width)) ?? curve[0];
    const entry = make("span", legend);
    make("i", entry).style.background = inks[k];
    entry.append(`${label} ${short(v)}${chart.mouse != null ? " at " + clock(t) : ""}`);
  });
}

function drawState() {
  const silent = performance.now() / 1e3 - seenAt;
  const oldest = fleet.reduce((most, w) => (w.age_s < GONE_AFTER_S ? Math.max(most, w.age_s) : most), 0);
  if (!run || !isAnswered) text($("state"), "the page's process does not answer", "bad");
  else if (!run.connected) text($("state"), `no server answers at ${run.server}`, "bad");
  else text($("state"), `${run.server} · at most ${seconds(oldest + silent)} old`, silent > 2 ? "bad" : "");
}

// -- polling ----------------------------------------------------------------------------------------

async function poll(path, everyMs, draw) {
  const answer = await fetch(path).then((response) => response.json()).catch(() => null);
  setTimeout(poll, everyMs, path, everyMs, draw);
  isAnswered = answer !== null;
  if (isAnswered) draw(answer);
  drawState();
}

function takeRun(answer) {
  run = answer;
  drawRun();
  drawCards();
}

function takeWorkers(answer) {
  if (!run) return;
  seenAt = performance.now() / 1e3 - answer.age_s;
  understand(answer.workers);
  drawTiles();
  drawWorkers();
  drawCards();
}

COLUMNS.forEach((name) => make("th", $("columns"), name));
poll("run", 2000, takeRun);
poll("workers", 200, takeWorkers);
$("filter").addEventListener("input", drawWorkers);
addEventListener("resize", () => { if (run) { drawRun(); drawTiles(); } });
setInterval(drawState, 1000);
