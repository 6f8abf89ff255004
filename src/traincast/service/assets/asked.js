// Everything that a question may say beside the fields of the form: made from the service's own list, as the command's options are.
const ASKED = JSON.parse(byId("asked").textContent);
const HELD = new Map([["workload", "batch seq precision optimizer"], ["cluster", "device node nodes devices_per_node inter price_per_device"],
  ["parallelism", "tensor pipeline context expert micro_batches zero recompute order sequence_parallel"], ["job", "steps stack compiled regime group_size prompt_tokens response_tokens reference teacher"]]
  .map(([section, names]) => [section, new Set(names.split(" "))]));
const MORE = ASKED.fields.filter((field) => !HELD.get(field.section)?.has(field.name)).map((field) => ({ ...field, id: field.section ? `${field.section}.${field.name}` : field.name }));
const UNITS = { count: { k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12 }, seconds: { s: 1, min: 60, h: 3600, d: 86400, days: 86400, day: 86400, w: 604800 },
  bytes: { b: 1, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 } };
const EXAMPLES = { count: "10k, 15B", seconds: "90s, 36h, 5days", bytes: "80GB, 512MiB" };

function fieldFor(field) {
  const words = field.name.replaceAll("_", " "), about = { id: field.id, name: field.id, title: field.help, autocomplete: "off", spellcheck: "false" };
  const control = field.kind === "bool" ? element("select", about, element("option", { value: "" }, "usual"), element("option", { value: "yes" }, "yes"), element("option", { value: "no" }, "no"))
    : element("input", { ...about, placeholder: EXAMPLES[field.unit] || "usual", inputmode: field.kind === "str" || field.unit ? null : "decimal" });
  return element("div", {}, element("label", { for: field.id }, words[0].toUpperCase() + words.slice(1)), control);
}

function placeAsked() {
  const placed = new Set();
  for (const place of document.querySelectorAll("[data-asked]"))
    for (const id of place.dataset.asked.split(" ")) {
      const field = MORE.find((each) => each.id === id);
      if (field) { place.append(fieldFor(field)); placed.add(id); }
    }
  const rest = MORE.filter((field) => !placed.has(field.id));
  for (const panel of new Set(rest.map((field) => field.panel)))
    byId("everything").append(element("fieldset", {}, element("legend", {}, panel), element("div", { class: "grid" }, rest.filter((field) => field.panel === panel).map(fieldFor))));
}

function readAmount(field, text) {
  if (field.kind === "bool") return text === "yes";
  if (field.kind === "str") return text;
  const [, number, unit] = text.replaceAll(",", "").match(/^([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([a-z]*)$/i) || [];
  const factor = unit ? UNITS[field.unit]?.[unit.toLowerCase()] : 1, value = Number(number) * factor;
  if (!Number.isFinite(value)) throw new Refusal(`${field.name.replaceAll("_", " ")} is "${text}"; write a number${EXAMPLES[field.unit] ? ` such as ${EXAMPLES[field.unit]}` : ""}.`);
  return field.kind === "int" ? Math.round(value) : value;
}

function addAsked(state, request) {
  for (const field of MORE) if (state[field.id]) (field.section ? request[field.section] : request)[field.name] = readAmount(field, state[field.id]);
  const { job } = request;
  // The job is as long as its tokens, samples or epochs say; the steps of the form are then left out.
  if (job.tokens !== undefined || job.samples !== undefined || job.epochs !== undefined) delete job.steps;
  return request;
}

// Configurations of other projects, as texts; they stay with this tab of the browser, and with the address where they are short.
let configs = [];
const CONFIGS_KEY = "traincast-configs", LONGEST_LINK = 6000;
const configWords = () => (configs.length ? JSON.stringify(configs) : "");

function setConfigs(found) {
  configs = found;
  byId("configs-label").textContent = found.length ? found.map((each) => each.name).join(", ") + (configWords().length > LONGEST_LINK ? " (too long for a link)" : "") : "Drop or choose configurations: DeepSpeed, Accelerate, Axolotl, Megatron ...";
  byId("configs-label").classList.toggle("set", found.length > 0);
  byId("configs-forget").hidden = !found.length;
  if (!found.length) byId("configs").value = "";
  try {
    if (found.length) sessionStorage.setItem(CONFIGS_KEY, JSON.stringify(found));
    else sessionStorage.removeItem(CONFIGS_KEY);
  } catch { /* They are then gone after a reload, as files that were never chosen. */ }
}

async function takeConfigs(files) {
  if (!files?.length) return;
  const found = await Promise.all([...files].slice(0, 8).map(async (file) => ({ name: file.name, text: await file.text() })));
  // What the form says would win over the files, so that it is emptied of all but the cluster.
  const held = readState();
  writeState({ ...blankState(), ...Object.fromEntries(["kind", "device", "nodes", "devices_per_node"].map((key) => [key, held[key]])) });
  setConfigs(found);
  forecast();
}

const isConfig = (each) => typeof each?.name === "string" && typeof each.text === "string";

const keptConfigs = () => { try { return sessionStorage.getItem(CONFIGS_KEY); } catch { return ""; } };

function restoreConfigs(words) {
  try { setConfigs((JSON.parse(words || "[]") || []).filter(isConfig).slice(0, 8)); }
  catch { setConfigs([]); }
}
