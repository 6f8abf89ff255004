// Wires the fields to the panels.
const TABS = ["forecast", "scaling", "plan", "schedule", "runs"];

function openTab(name, { focus = false } = {}) {
  tab = TABS.includes(name) ? name : "forecast";
  for (const each of TABS) {
    const chosen = each === tab, button = byId(`tab-${each}`);
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    byId(`panel-${each}`).hidden = !chosen;
    if (chosen && focus) button.focus();
    if (chosen) button.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }
  saveAddress();
  if (tab === "scaling") scale();
  else redraw();
}

function setUpload(found) {
  upload = found;
  byId("file-label").textContent = found ? found.name : "Drop or choose a config.json, a saved graph or an ONNX file";
  byId("file-label").classList.toggle("set", Boolean(found));
  byId("forget").hidden = !found;
  byId("name").disabled = Boolean(found);
  if (!found) byId("file").value = "";
}

// The sizes of such a config.json say all there is to the model, so that it need not be recorded.
async function isDescribed(file) {
  if (file.size > 1e5 || !file.name.endsWith(".json")) return false;
  try { return ASKED.described.includes(JSON.parse(await file.text()).model_type); }
  catch { return false; }
}

async function takeModel(file) {
  if (!file) return;
  if (await isDescribed(file)) { await takeConfigs([file]); return; }
  // What was asked before the file came must not be answered over it.
  underWay?.abort();
  byId("ask").disabled = false;
  byId("panel-forecast").replaceChildren(busy(`Reading ${file.name}`));
  say(`Reading ${file.name}`);
  try {
    const found = await call("POST", "models", undefined, { raw: file });
    setUpload({ model: found.model, name: `${file.name}: ${showCount(found.parameters)} parameters` });
    // What was recorded at one batch has no other.
    if (!found.any_batch) byId("batch").value = String(found.batch_size);
    await forecast();
  } catch (error) {
    setUpload(null);
    byId("panel-forecast").replaceChildren(problem(error));
    say(error.message, { bad: true });
  }
}

function acceptDrops(place, take) {
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => { event.preventDefault(); place.classList.remove("over"); take(event.dataTransfer.files); });
}

function redraw() {
  if (tab === "forecast" && current) showForecast();
  if (tab === "scaling" && scaling) showScaling();
  if (tab === "plan" && plans) showPlans();
  if (tab === "schedule" && simulated) showSchedule();
  if (tab === "runs") showRuns();
}

const NOTHING = { plan: "No search yet. Set a deadline or a budget and search.", schedule: "No simulation yet. Choose policies and simulate." };

// What the address names is read again from the service: a search goes on, a finished one is shown.
function resumeJobs() {
  for (const [kind, shown, ask] of [["plan", plans, searchPlans], ["schedule", simulated, simulate]]) {
    if (!jobs[kind]) byId(`${kind}-answer`).replaceChildren(element("div", { class: "card empty" }, NOTHING[kind]));
    else if (shown?.job !== jobs[kind]) ask({ known: jobs[kind] });
  }
}

function setState(state, where) {
  writeState({ ...DEFAULTS, ...state });
  if (!jobs.plan) plans = null;
  if (!jobs.schedule) simulated = null;
  showKind();
  openTab(where || state.tab);
  forecast();
  resumeJobs();
  if (state.compare) openCompared(state.compare);
}

// On a narrow screen the answer stands first and the form is opened over it.
function showForm(shown) {
  byId("form").classList.toggle("opened", shown);
  byId("edit").setAttribute("aria-expanded", String(shown));
  byId("edit").textContent = shown ? "Close" : "Change the job";
  if (shown) byId("name").focus();
}

function showKind() {
  const machine = document.querySelector("input[name=kind]:checked").value === "machine";
  byId("device").setAttribute("list", machine ? "machines" : "devices");
  byId("device-label").textContent = machine ? "Machine" : "Accelerator";
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

function later(action, pause) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(action, pause); };
}

async function fillLists() {
  const lists = [["workloads", "workloads", (each) => `${each.family}, ${showCount(each.parameters)} parameters`], ["devices", "devices", (each) => each.title], ["nodes", "machines", (each) => `${each.devices_per_node} x ${each.device}`]];
  await Promise.all(lists.map(async ([kind, id, describe]) => {
    const entries = await call("GET", `catalog/${kind}?brief=true`);
    byId(id).replaceChildren(...entries.map((each) => element("option", { value: each.name }, describe(each))));
    if (kind === "workloads") byId("name").placeholder = `search ${entries.length} models`;
  }));
}

function start() {
  placeAsked();
  byId("policies").append(...POLICIES.map((name) => element("label", {}, element("input", { type: "checkbox", value: name, name: "policy" }), name)));
  const kept = localStorage.getItem("traincast-theme");
  setTheme(kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const given = readAddress();
  const soon = later(forecast, 350);
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); showForm(false); forecast(); });
  byId("edit").addEventListener("click", () => showForm(byId("edit").getAttribute("aria-expanded") !== "true"));
  byId("form").addEventListener("keydown", (event) => { if (event.key === "Escape" && byId("form").classList.contains("opened")) { showForm(false); byId("edit").focus(); } });
  byId("form").addEventListener("change", (event) => { if (event.target.type !== "file") { showKind(); soon(); } });
  byId("form").addEventListener("input", (event) => { if (event.target.name === "name" && [...byId("workloads").options].some((option) => option.value === event.target.value)) soon(); });
  document.querySelectorAll("input[name=kind]").forEach((radio) => radio.addEventListener("change", () => { byId("device").value = radio.value === "machine" ? "aws-p4d.24xlarge" : "a100-80g"; byId("devices_per_node").value = radio.value === "machine" ? "" : "8"; }));
  byId("reset").addEventListener("click", () => { takeTrace(null); setConfigs([]); compared = []; setState({}, tab); });
  byId("file").addEventListener("change", (event) => takeModel(event.target.files[0]));
  byId("forget").addEventListener("click", () => { setUpload(null); forecast(); byId("name").focus(); });
  acceptDrops(byId("drop"), (files) => takeModel(files[0]));
  byId("configs").addEventListener("change", (event) => takeConfigs(event.target.files));
  byId("configs-forget").addEventListener("click", () => { setConfigs([]); setState({}, "forecast"); });
  acceptDrops(byId("configs-drop"), takeConfigs);
  byId("plan-form").addEventListener("submit", (event) => { event.preventDefault(); searchPlans(); });
  byId("schedule-form").addEventListener("submit", (event) => { event.preventDefault(); simulate(); });
  byId("trace-file").addEventListener("change", (event) => takeTrace(event.target.files[0]));
  byId("trace-forget").addEventListener("click", () => takeTrace(null));
  acceptDrops(byId("trace-drop"), (files) => takeTrace(files[0]));
  byId("share").addEventListener("click", async () => {
    saveAddress();
    try { await navigator.clipboard.writeText(location.href); say("The link is copied; it holds everything you asked."); }
    catch { say(`Copy the address of this page: ${location.href}`); }
  });
  byId("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme !== "dark";
    localStorage.setItem("traincast-theme", dark ? "dark" : "light");
    setTheme(dark);
  });
  TABS.forEach((name, at) => {
    byId(`tab-${name}`).addEventListener("click", () => openTab(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) openTab(TABS[(at + move + TABS.length) % TABS.length], { focus: true });
      if (event.key === "Home") openTab(TABS[0], { focus: true });
      if (event.key === "End") openTab(TABS.at(-1), { focus: true });
    });
  });
  let width = window.innerWidth;
  // A phone that hides its bars while one scrolls changes only the height.
  window.addEventListener("resize", later(() => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } }, 150));
  window.addEventListener("hashchange", () => setState(readAddress()));
  fillLists().catch((error) => say(error.message, { bad: true }));
  // A reload keeps configurations that are too long for the address.
  setState({ configs: keptConfigs() || "", ...given });
}

start();
