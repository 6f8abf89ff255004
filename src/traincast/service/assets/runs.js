// Runs: what was asked and answered before, kept in this browser, named, opened again and compared side by side.
const RUNS_KEY = "traincast-runs", MOST_UNNAMED = 30, MOST_COMPARED = 4;
let runs = readRuns();
let compared = []; // keys of the runs side by side, the first is what the others are measured against
const MEASURED = [
  ["step", "step_s", showSeconds], ["90% from", "step_low_s", showSeconds], ["90% to", "step_high_s", showSeconds], ["samples/s", "samples_per_s", digits], ["tokens/s", "tokens_per_s", (value) => (value ? showCount(value) : "-")],
  ["whole job", "job_s", showSeconds], ["cost", "usd", showUsd], ["energy", "energy_joules", showEnergy], ["memory per device", "needed_bytes", showBytes], ["of", "capacity_bytes", showBytes],
  ["sure to fit", "fit_probability", (value) => percent(value)], ["utilization", "utilization", (value) => percent(value, 1)], ["GPUs", "num_devices", digits], ["samples per step", "global_batch", digits],
];

function readRuns() {
  try {
    const kept = JSON.parse(localStorage.getItem(RUNS_KEY));
    return Array.isArray(kept) ? kept.filter((run) => run && typeof run.key === "string" && typeof run.address === "string" && typeof run.name === "string") : [];
  } catch {
    return [];
  }
}

function keepRuns() {
  try {
    localStorage.setItem(RUNS_KEY, JSON.stringify(runs));
  } catch {
    say("This browser has no room for more runs; remove some.", { bad: true });
  }
}

const titleOf = (answer) => `${answer.workload} on ${answer.cluster}, ${answer.asked}`;

function figuresOf(answer) {
  const { step, memory, job } = answer, tokens = answer.settings?.seq;
  return { step_s: step.seconds, step_low_s: step.low_s, step_high_s: step.high_s, samples_per_s: answer.samples_per_s, tokens_per_s: tokens ? tokens * answer.samples_per_s : null, job_s: job.total.seconds,
    usd: answer.usd && answer.usd.value, energy_joules: answer.energy_joules, needed_bytes: answer.needed_bytes, capacity_bytes: memory.capacity_bytes, fit_probability: memory.fit_probability, fits: memory.fits,
    utilization: answer.utilization, num_devices: answer.num_devices, global_batch: answer.global_batch, command: answer.command };
}

// The newest stands first; what was named stays, of the rest the latest.
function keepRun({ kind, key, name, state, figures = null }) {
  const known = runs.find((run) => run.key === key), first = Boolean(known?.figures) && runs[0] === known;
  const run = Object.assign(known ?? {}, { kind, key, address: addressOf(state, { whole: true }), figures, at: Date.now(), name: known?.named ? known.name : name, named: Boolean(known?.named) });
  let unnamed = 0;
  runs = [run, ...runs.filter((each) => each.key !== key)].filter((each) => each.named || unnamed++ < MOST_UNNAMED);
  compared = compared.filter((each) => findRun(each));
  keepRuns();
  // What stands first already is not drawn again under somebody's hand.
  if (tab === "runs" && !first) showRuns();
  return run;
}

const findRun = (key) => runs.find((run) => run.key === key);

function keepForecast(state, request, answer) {
  return keepRun({ kind: "forecast", key: JSON.stringify(request), name: titleOf(answer), state: onlyForecast(state), figures: figuresOf(answer) });
}

function runsToCsv(chosen) {
  return toCsv([["name", ...MEASURED.map(([, key]) => key), "command"], ...chosen.map((run) => [run.name, ...MEASURED.map(([, key]) => run.figures[key]), run.figures.command])]);
}

function openRun(run) {
  setState(Object.fromEntries(new URLSearchParams(run.address)), run.kind);
  say(`${run.name} is open.`);
}

function renameRun(run, name) {
  run.name = name.trim() || run.name;
  run.named = true;
  keepRuns();
  showCompared();
  saveAddress();
}

function runLine(run) {
  const figures = run.figures || {}, chosen = compared.includes(run.key);
  const box = run.kind === "forecast" ? element("input", { type: "checkbox", class: "compare", "aria-label": `Compare ${run.name}`, onchange: (event) => compareRun(run, event.target.checked) }) : "";
  if (box) Object.assign(box, { checked: chosen, disabled: !chosen && compared.length >= MOST_COMPARED });
  const name = element("input", { class: "run-name", "aria-label": "Name of the run", maxlength: 120, onchange: (event) => renameRun(run, event.target.value) });
  name.value = run.name;
  return element("tr", {}, element("td", {}, box), element("td", { class: "left named" }, name), element("td", { class: "left" }, run.kind),
    element("td", {}, figures.step_s ? showSeconds(figures.step_s) : "-"), element("td", {}, figures.job_s ? showSeconds(figures.job_s) : "-"), element("td", {}, figures.job_s ? showUsd(figures.usd) : "-"),
    element("td", { class: figures.fits === false ? "bad" : null }, figures.needed_bytes ? showBytes(figures.needed_bytes) : "-"),
    element("td", {}, element("button", { type: "button", onclick: () => openRun(run), "aria-label": `Open ${run.name}` }, "Open")),
    element("td", {}, element("button", { type: "button", onclick: () => removeRun(run), "aria-label": `Remove ${run.name}` }, "Remove")));
}

function removeRun(run) {
  runs = runs.filter((each) => each !== run);
  compared = compared.filter((key) => key !== run.key);
  keepRuns();
  saveAddress();
  showRuns();
  say(`${run.name} is removed.`);
}

function compareRun(run, wanted) {
  compared = compared.filter((key) => key !== run.key);
  if (wanted) compared = [...compared, run.key].slice(0, MOST_COMPARED);
  for (const box of document.querySelectorAll("#runs .compare")) box.disabled = !box.checked && compared.length >= MOST_COMPARED;
  saveAddress();
  showCompared();
}

function showRuns() {
  const place = byId("panel-runs");
  if (!runs.length) {
    place.replaceChildren(element("div", { class: "card empty" }, "No run yet. Each forecast and each search is listed here and stays after a reload."));
    return;
  }
  const forecasts = () => runs.filter((run) => run.figures && run.kind === "forecast");
  place.replaceChildren(element("div", { class: "card" }, element("h2", {}, plural(runs.length, "run")),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of runs" }, element("table", { id: "runs" }, element("caption", {}, element("span", {}, `Kept in this browser. Choose up to ${MOST_COMPARED} to compare; a run with a name of yours stays.`)),
      element("thead", {}, element("tr", {}, ["compare", "name", "kind", "step", "job", "cost", "memory", "open", "remove"].map((name) => element("th", { scope: "col", class: ["name", "kind"].includes(name) ? "left" : null }, name)))),
      element("tbody", {}, runs.map(runLine)))),
    element("div", { class: "actions" }, element("button", { type: "button", id: "runs-json", onclick: () => download("traincast-runs.json", JSON.stringify(runs, null, 2), "application/json") }, "All as JSON"),
      element("button", { type: "button", id: "runs-csv", onclick: () => download("traincast-runs.csv", runsToCsv(forecasts()), "text/csv") }, "All as CSV"))),
  element("div", { id: "compared" }));
  showCompared();
}

function showCompared() {
  const place = byId("compared"), chosen = compared.map(findRun).filter((run) => run?.figures);
  if (!place) return;
  if (chosen.length < 2) {
    place.replaceChildren(chosen.length ? element("p", { class: "hint" }, "Choose one more run to compare.") : "");
    return;
  }
  const base = chosen[0].figures, settings = chosen.map((run) => ({ ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(run.address)) }));
  const differ = [...new Set(settings.flatMap(Object.keys))].filter((key) => !["tab", "model"].includes(key) && new Set(settings.map((state) => state[key] ?? "")).size > 1);
  const change = (value, first, at) => (at && first && Math.abs(value / first - 1) >= 0.005 ? element("span", { class: "hint" }, ` ${value > first ? "+" : ""}${percent(value / first - 1)}`) : "");
  place.replaceChildren(element("div", { class: "card" }, element("h2", {}, "Side by side"), element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs side by side" }, element("table", { id: "side-by-side" },
    element("thead", {}, element("tr", {}, element("td", {}, ""), chosen.map((run) => element("th", { scope: "col", class: "wrap" }, run.name)))),
    element("tbody", {}, MEASURED.map(([name, key, show]) => element("tr", {}, element("th", { scope: "row" }, name), chosen.map((run, at) => element("td", { class: key === "needed_bytes" && !run.figures.fits ? "bad" : null }, show(run.figures[key]), key !== "fit_probability" && change(run.figures[key], base[key], at))))),
      differ.map((key) => element("tr", { class: "setting" }, element("th", { scope: "row" }, key.replaceAll("_", " ")), settings.map((state) => element("td", {}, state[key] || "usual"))))))),
  element("p", { class: "hint" }, "Percentages are against the first; the last rows are the settings that differ."),
  element("div", { class: "actions" }, element("button", { type: "button", id: "compared-csv", onclick: () => download("traincast-comparison.csv", runsToCsv(chosen), "text/csv") }, "Comparison as CSV"))));
}

const comparedWords = () => (compared.length > 1 ? JSON.stringify(compared.map(findRun).filter(Boolean).map((run) => [run.name, run.address])) : "");

// A shared comparison names what was asked; here it is asked again where this browser does not know the answer.
async function openCompared(words) {
  let given;
  try {
    given = JSON.parse(words).slice(0, MOST_COMPARED).map(([name, address]) => [String(name), String(address)]);
  } catch {
    return;
  }
  const keys = [];
  for (const [name, address] of given) {
    const state = { ...blankState(), ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(address)) };
    try {
      const request = makeRequest(state), key = JSON.stringify(request);
      if (!findRun(key)?.figures) {
        const run = keepForecast(state, request, await call("POST", "forecast", { ...request, detail: false }));
        Object.assign(run, { name, named: true });
      }
      keys.push(key);
    } catch (error) {
      say(`${name}: ${error.message}`, { bad: true });
    }
  }
  compared = keys;
  keepRuns();
  saveAddress();
  if (tab === "runs") showRuns();
}
