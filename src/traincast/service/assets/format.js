// Numbers to words, and elements from names: nothing that comes from a request is ever read as markup.
const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function digits(value) {
  const size = Math.abs(value);
  return size >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(3)));
}

function showSeconds(value) {
  if (value === null || value === undefined) return "unknown";
  const steps = [[1e-3, 1e-6, "\u00b5s"], [1, 1e-3, "ms"], [120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]];
  for (const [below, unit, name] of steps) if (value < below) return `${digits(value / unit)} ${name}`;
  return `${digits(value / 86400)} days`;
}

function showBytes(value) {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(value) >= size) return `${digits(value / size)} ${unit}`;
  return `${Math.round(value)} B`;
}

function showCount(value) {
  for (const [prefix, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e4]])
    if (Math.abs(value) >= size) return `${digits(value / (prefix === "k" ? 1e3 : size))} ${prefix}`;
  return digits(value);
}

function showUsd(value) {
  if (value === null || value === undefined) return "unknown";
  return value < 1000 ? `$${value.toFixed(2)}` : `$${Math.round(value).toLocaleString("en-US")}`;
}

function showEnergy(joules) {
  if (joules === null || joules === undefined) return "unknown";
  const hours = joules / 3.6e6;
  return hours >= 1000 ? `${digits(hours / 1000)} MWh` : `${digits(hours)} kWh`;
}

const percent = (share, places = 0) => `${(100 * share).toFixed(places)}%`;
const plural = (count, word) => `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : "s"}`;
