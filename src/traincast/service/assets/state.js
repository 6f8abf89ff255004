// What is asked: the fields of the page, the address that can be shared, and the calls to the service.
const DEFAULTS = { name: "gpt2-xl", batch: "8", precision: "bf16", device: "a100-80g", nodes: "2", devices_per_node: "8", kind: "device", steps: "10000",
  max_gpus: "32", objective: "time", top: "100", fleet: "4x8:a100@2.5", trace_jobs: "300", load: "1", sigma: "0", seed: "1", policies: "fifo,srtf,easy", tab: "forecast" };
const FIELDS = ["name", "batch", "seq", "precision", "optimizer", "device", "nodes", "devices_per_node", "inter", "price", "tensor", "pipeline", "context", "expert",
  "micro_batches", "zero", "recompute", "order", "stack", "steps", "regime", "group_size", "prompt_tokens", "response_tokens", "reference", "teacher", "global_batch", "max_gpus", "deadline", "budget", "top", "objective", "fleet", "trace_jobs", "load", "sigma", "seed"];
const CHECKS = ["sequence_parallel", "compiled", "all_machines"];
const POLICIES = ["fifo", "sjf", "srtf", "las", "easy", "conservative"];
let upload = null; // {model, name} of a file that was sent
let tab = "forecast";
const jobs = { plan: "", schedule: "" }; // what the service keeps a result of, by its id
const BESIDE = ["global_batch", "max_gpus", "deadline", "budget", "top", "objective", "all_machines", "fleet", "trace_jobs", "load", "sigma", "seed", "policies", "tab", "plan_job", "schedule_job", "compare"];
const fieldIds = () => [...FIELDS, ...MORE.map((field) => field.id)];
const blankState = () => Object.fromEntries([...fieldIds(), ...CHECKS].map((field) => [field, BESIDE.includes(field) ? DEFAULTS[field] ?? "" : ""]));
const onlyForecast = (state) => Object.fromEntries(Object.entries(state).filter(([key]) => !BESIDE.includes(key)));

function readState() {
  const state = {};
  for (const field of fieldIds()) state[field] = byId(field).value.trim();
  for (const field of CHECKS) state[field] = byId(field).checked ? "1" : "";
  state.kind = document.querySelector("input[name=kind]:checked").value;
  state.policies = [...document.querySelectorAll("#policies input:checked")].map((box) => box.value).join(",");
  Object.assign(state, { tab, plan_job: jobs.plan, schedule_job: jobs.schedule, compare: comparedWords(), configs: configWords() });
  if (upload) Object.assign(state, { model: upload.model, model_name: upload.name });
  return state;
}

function writeState(state) {
  for (const kind of Object.keys(jobs)) jobs[kind] = state[`${kind}_job`] || "";
  for (const field of fieldIds()) byId(field).value = state[field] ?? DEFAULTS[field] ?? "";
  for (const field of CHECKS) byId(field).checked = state[field] === "1";
  const kind = state.kind === "machine" ? "machine" : "device";
  document.querySelector(`input[name=kind][value=${kind}]`).checked = true;
  const chosen = (state.policies ?? DEFAULTS.policies).split(",");
  for (const box of document.querySelectorAll("#policies input")) box.checked = chosen.includes(box.value);
  restoreConfigs(state.configs);
  setUpload(state.model ? { model: state.model, name: state.model_name || "uploaded model" } : null);
}

// `whole`: with what is too long for a link.
function addressOf(state, { whole = false } = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) if (value !== (DEFAULTS[key] ?? "") && (whole || key !== "configs" || value.length <= LONGEST_LINK)) query.set(key, value);
  return String(query);
}

function saveAddress() {
  const address = addressOf(readState());
  history.replaceState(null, "", address ? `#${address}` : location.pathname);
}

const readAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

function numbers(state, names) {
  const table = {};
  for (const [field, key] of names) if (state[field] !== "") table[key || field] = Number(state[field]);
  return table;
}

// The body of a request; lists that the service calls differently are renamed here.
function makeRequest(state) {
  const workload = state.model ? { model: state.model } : state.name ? { name: state.name } : {};
  Object.assign(workload, numbers(state, [["batch"], ["seq"]]));
  for (const key of ["precision", "optimizer"]) if (state[key]) workload[key] = state[key];
  const cluster = { [state.kind]: state.device, ...numbers(state, [["nodes"], ["devices_per_node"], ["price", "price_per_device"]]) };
  if (!state.device) delete cluster[state.kind];
  if (state.inter) cluster.inter = state.inter;
  const parallelism = numbers(state, ["tensor", "pipeline", "context", "expert", "micro_batches", "zero"].map((key) => [key]));
  for (const key of ["recompute", "order"]) if (state[key]) parallelism[key] = state[key];
  if (state.sequence_parallel) parallelism.sequence_parallel = true;
  const job = numbers(state, [["steps"]]);
  for (const key of ["stack", "regime"]) if (state[key]) job[key] = state[key];
  if (state.regime) {
    Object.assign(job, numbers(state, [["group_size"], ["prompt_tokens"], ["response_tokens"]]));
    for (const key of ["reference", "teacher"]) if (state[key]) job[key] = state[key];
  }
  if (state.compiled) job.compiled = true;
  return addAsked(state, { workload, cluster, parallelism, job });
}

const withConfigs = (request) => (configs.length ? { ...request, configs } : request);

class Refusal extends Error {}
// A job that is no longer waited for: another was asked for or opened instead.
class Superseded extends Error {}

async function call(method, where, body, { raw, signal } = {}) {
  const headers = {};
  const token = sessionStorage.getItem("traincast-token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  if (raw) headers["content-type"] = "application/octet-stream";
  let response;
  try {
    response = await fetch(where, { method, headers, signal, body: raw || (body === undefined ? undefined : JSON.stringify(body)) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The service does not answer; is it still running?");
  }
  if (response.status === 401) {
    await askToken();
    return call(method, where, body, { raw, signal });
  }
  const answer = await response.json();
  if (!response.ok) throw new Refusal(answer.detail);
  return answer;
}

let asking = null;

function askToken() {
  asking ||= new Promise((resolve) => {
    const dialog = byId("token-dialog");
    dialog.onclose = () => {
      sessionStorage.setItem("traincast-token", byId("token").value);
      asking = null;
      resolve();
    };
    dialog.showModal();
    byId("token").focus();
  });
  return asking;
}

function say(words, { bad = false } = {}) {
  byId("status").textContent = words;
  byId("status").classList.toggle("error", bad);
}

const busy = (words) => element("div", { class: "card busy" }, words);
const problem = (error) => element("div", { class: "card problem", role: "alert" }, element("strong", {}, "That did not work"), error.message);

// Follow a job of the service to its end, showing how far it is; `known` is the id of one that was asked for before.
async function followJob(where, body, place, { known, started } = {}) {
  const bar = element("progress", { max: 1, "aria-label": "Progress" });
  const words = element("span", {}, "Waiting for a worker");
  let job = null;
  let unwanted = false;
  // A click before the service has answered counts: it is carried out as soon as the job has a name.
  const stop = () => {
    unwanted = true;
    if (job) call("DELETE", `jobs/${job.id}`).catch((error) => say(error.message, { bad: true }));
  };
  const cancel = element("button", { type: "button", class: "cancel", onclick: stop }, "Cancel");
  place.replaceChildren(element("div", { class: "card busy" }, words, bar, cancel));
  job = known ? await call("GET", `jobs/${known}`) : await call("POST", where, body);
  if (known && job.kind !== where) throw new Refusal(`That link names a ${job.kind}, not a ${where}.`);
  jobs[where] = job.id;
  saveAddress();
  started?.(job);
  if (unwanted) stop();
  let pause = 80;
  while (job.state === "queued" || job.state === "running") {
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(1000, pause * 1.3);
    if (jobs[where] !== job.id) throw new Superseded();
    job = await call("GET", `jobs/${job.id}`);
    if (job.total) bar.value = job.done / job.total;
    words.textContent = job.state === "queued" ? "Waiting for a worker" : `${job.words || "Working"} ${job.total ? `${job.done.toLocaleString("en-US")} of ${job.total.toLocaleString("en-US")}` : ""}`;
  }
  if (job.state === "failed") throw new Refusal(job.error);
  if (job.state === "cancelled") throw new Refusal("It was cancelled.");
  return job.result;
}
