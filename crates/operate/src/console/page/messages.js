// The message browser: searches the archive page by page, shows a message, and follows what arrives.

import { Failure, get, query } from "./api.js";
import { byId, copy, el, setText } from "./dom.js";
import * as format from "./format.js";
import { Tail } from "./tail.js";

const PAGE = 50;
/** Messages that the live tail keeps in view. */
const TAIL_MAX = 500;
/** Bytes of a payload that are shown; copying gives all. */
const SHOWN_BYTES_MAX = 65_536;
const HASH = /^(0x)?[0-9a-fA-F]{64}$/;
const HOUR_MS = 3_600_000;

/** The current search, and the pages up to the one that is shown: the cursor with which each began. */
let asked = { fields: {}, prefix: "" };
let cursors = [""];
let next = "";
let shown = [];
let running;
let isBusy = false;
let tail;
let arrived = 0;
let waiting = [];
let selected;

/** Whether a message is shown beside the list, or else over it. */
const wide = matchMedia("(min-width: 62.01rem)");
const range = () => document.querySelector('input[name="range"]:checked').value;

export function startMessages() {
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  for (const radio of document.querySelectorAll('input[name="range"]')) {
    radio.addEventListener("change", () => {
      byId("custom").hidden = range() !== "custom";
      if (range() !== "custom") search();
    });
  }
  byId("older").addEventListener("click", older);
  byId("newer").addEventListener("click", newer);
  byId("tail").addEventListener("click", toggleTail);
  byId("tail-stop").addEventListener("click", toggleTail);
  byId("tail-clear").addEventListener("click", clearTail);
  byId("detail-close").addEventListener("click", closeDetail);
  byId("detail").addEventListener("close", forgetDetail);
  wide.addEventListener("change", closeDetail);
}

/** The form's content, as the archive and the live stream expect it. */
function readForm() {
  const text = byId("topic").value.trim();
  const isPrefix = byId("mode").value === "prefix" && text !== "";
  const fields = { pubsubTopic: byId("pubsub").value.trim() };
  if (HASH.test(text)) return { fields: { hashes: text.startsWith("0x") ? text : `0x${text}` }, prefix: "" };
  if (!isPrefix) fields.contentTopics = text.split(",").map((topic) => topic.trim()).filter(Boolean).join(",");
  return { fields, prefix: isPrefix ? text : "" };
}

const nanos = (ms) => (Number.isFinite(ms) ? String(BigInt(Math.round(ms)) * 1_000_000n) : "");

function readRange() {
  const now = Date.now();
  switch (range()) {
    case "hour": return { startTime: nanos(now - HOUR_MS) };
    case "today": return { startTime: nanos(new Date().setHours(0, 0, 0, 0)) };
    case "week": return { startTime: nanos(now - 7 * 24 * HOUR_MS) };
    case "custom": return { startTime: nanos(Date.parse(byId("from").value)), endTime: nanos(Date.parse(byId("to").value)) };
    default: return {};
  }
}

/** Starts a new search with the form's content. */
export function search() {
  stopTail();
  const { fields, prefix } = readForm();
  asked = { fields: fields.hashes ? fields : { ...fields, ...readRange() }, prefix };
  cursors = [""];
  const address = `#/messages${addressOf()}`;
  document.querySelector('[data-view="messages"]').setAttribute("href", address);
  location.replace(address);
  return load();
}

/** The search as a part of the page's address, so that it can be saved and shared. */
export function addressOf() {
  const topic = byId("topic").value.trim();
  const mode = topic && byId("mode").value === "prefix" ? "prefix" : "";
  const custom = range() === "custom" ? { from: byId("from").value, to: byId("to").value } : {};
  const text = query({ topic, mode, pubsub: byId("pubsub").value.trim(), range: range() === "all" ? "" : range(), ...custom });
  return text && `?${text}`;
}

/** Fills the form from an address, and searches. */
export function openAddress(text) {
  const fields = new URLSearchParams(text);
  byId("topic").value = fields.get("topic") ?? "";
  byId("mode").value = fields.get("mode") === "prefix" ? "prefix" : "exact";
  byId("pubsub").value = fields.get("pubsub") ?? "";
  const wanted = fields.get("range") ?? "all";
  for (const radio of document.querySelectorAll('input[name="range"]')) radio.checked = radio.value === wanted;
  if (!document.querySelector('input[name="range"]:checked')) document.querySelector('input[value="all"]').checked = true;
  byId("from").value = fields.get("from") ?? "";
  byId("to").value = fields.get("to") ?? "";
  byId("custom").hidden = range() !== "custom";
  return search();
}

export function older() {
  if (byId("older").disabled || isBusy || tail) return;
  cursors.push(next);
  load();
}

export function newer() {
  if (byId("newer").disabled || isBusy || tail) return;
  cursors.pop();
  load();
}

/** Loads the page at the last cursor. A newer load ends one that still runs. */
async function load() {
  running?.abort();
  const control = new AbortController();
  running = control;
  setBusy(true);
  try {
    const page = asked.prefix ? await prefixPage(control.signal) : await storePage(asked.fields, cursors.at(-1), control.signal);
    if (running !== control) return;
    next = page.next;
    shown = page.messages;
    showPage(page.looked);
  } catch (error) {
    if (control.signal.aborted) return;
    showFailure(error);
    if (!(error instanceof Failure)) throw error;
  } finally {
    if (running === control) setBusy(false);
  }
}

function setBusy(isNow) {
  isBusy = isNow;
  document.querySelector(".results").setAttribute("aria-busy", String(isBusy));
  if (isBusy) return setText(byId("results-status"), "Loading");
  const focused = document.activeElement;
  byId("older").disabled = !next;
  byId("newer").disabled = cursors.length < 2;
  // At either end the focus goes to the other button: a disabled one has none.
  if (focused === byId("older") && !next) byId("newer").focus();
  if (focused === byId("newer") && cursors.length < 2) byId("older").focus();
}

/** A page of the archive, newest first. */
async function storePage(fields, cursor, signal) {
  const text = query({ includeData: true, pageSize: PAGE, ascending: false, ...fields, cursor });
  const { messages, paginationCursor = "" } = await get(`store/v3/messages?${text}`, { signal });
  return { messages: messages.reverse(), next: paginationCursor };
}

/** A page of topics that begin with a text: the console finds the hashes, the archive gives the messages. */
async function prefixPage(signal) {
  const { contentTopics, ...fields } = asked.fields;
  const text = query({ contentTopicPrefix: asked.prefix, pageSize: PAGE, ascending: false, ...fields, cursor: cursors.at(-1) });
  const { hashes, looked, next: following } = await get(`console/v1/search?${text}`, { signal });
  const page = hashes.length === 0 ? { messages: [] } : await storePage({ hashes: hashes.join(",") }, "", signal);
  return { messages: page.messages, next: following ?? "", looked };
}

function showPage(looked) {
  const number = cursors.length;
  byId("list").hidden = shown.length === 0;
  byId("rows").replaceChildren(...shown.map(row));
  const page = number > 1 || next ? `, page ${number}` : "";
  const scope = looked === undefined ? "" : `, ${format.plural(looked, "message")} looked at`;
  setText(byId("results-status"), `${format.plural(shown.length, "message")}${page}${scope}`);
  showEmpty(shown.length === 0 ? emptyParts(looked) : []);
  closeDetail();
}

function showEmpty(parts) {
  const place = byId("results-empty");
  place.hidden = parts.length === 0;
  place.replaceChildren(...parts);
}

function emptyParts(looked) {
  if (looked !== undefined && next) {
    return [
      el("p", {}, el("strong", {}, "Nothing found so far. "), `None of ${format.plural(looked, "message")} begins so.`),
      el("p", {}, el("button", { type: "button", on: { click: older } }, "Look further back")),
    ];
  }
  const hasMore = range() !== "all" && !asked.fields.hashes;
  const text = cursors.length > 1 ? "There are no older messages." : "No message is like that.";
  const parts = [el("p", {}, el("strong", {}, text))];
  if (hasMore) parts.push(el("p", {}, el("button", { type: "button", on: { click: searchAllTime } }, "Search all of the time")));
  else parts.push(el("p", {}, "The live tail shows what arrives from now on."));
  return parts;
}

function searchAllTime() {
  document.querySelector('input[name="range"][value="all"]').checked = true;
  byId("custom").hidden = true;
  search();
}

function showFailure(error) {
  shown = [];
  next = "";
  byId("list").hidden = true;
  byId("rows").replaceChildren();
  setText(byId("results-status"), "Failed");
  showEmpty([
    el("p", { class: "error", role: "alert" }, el("strong", { class: "error" }, "The messages did not come. "), error.message),
    el("p", {}, el("button", { type: "button", on: { click: load } }, "Try again")),
  ]);
}

/** A message as a row. Its button covers the row, so that a click anywhere shows it, and the keyboard finds it. */
function row(entry) {
  const { message } = entry;
  const payload = format.fromBase64(message.payload ?? "");
  const time = format.listTime(BigInt(message.timestamp ?? 0));
  const button = el("button", { type: "button", on: { click: () => openDetail(line) } }, time);
  const line = el("tr", { role: "row" },
    el("td", { role: "cell" }, button),
    el("td", { role: "cell", class: "topic", title: message.contentTopic }, message.contentTopic),
    el("td", { role: "cell", class: "number" }, format.bytes(payload.length)),
    el("td", { role: "cell", class: "payload" }, format.preview(payload)),
  );
  line.entry = entry;
  return line;
}

/** Moves the focus in the list, by this many rows. */
export function move(by) {
  const lines = [...byId("rows").children];
  if (lines.length === 0) return;
  const isShown = byId("detail").open;
  const current = (isShown ? selected : document.activeElement?.closest("#rows tr")) ?? selected;
  const index = lines.indexOf(current);
  const wanted = index === -1 ? 0 : Math.min(lines.length - 1, Math.max(0, index + by));
  const line = lines[wanted];
  line.querySelector("button").focus();
  line.scrollIntoView({ block: "nearest" });
  if (isShown) openDetail(line);
}

function openDetail(line) {
  const dialog = byId("detail");
  selected?.removeAttribute("aria-current");
  selected = line;
  line.setAttribute("aria-current", "true");
  byId("detail-body").replaceChildren(...detailParts(line.entry));
  dialog.scrollTop = 0;
  if (dialog.open) return;
  if (wide.matches) dialog.show();
  else dialog.showModal();
  // Beside the list the focus stays there, so that j and k continue.
  if (wide.matches) line.querySelector("button").focus();
}

/** Closes the message, and returns whether one was shown. */
export function closeDetail() {
  const dialog = byId("detail");
  if (!dialog.open) return false;
  dialog.close();
  return true;
}

function forgetDetail() {
  const line = selected;
  selected = undefined;
  line?.removeAttribute("aria-current");
  if (line?.isConnected) line.querySelector("button").focus();
}

function detailParts({ messageHash, pubsubTopic, message }) {
  const payload = format.fromBase64(message.payload ?? "");
  const time = BigInt(message.timestamp ?? 0);
  const ms = format.nanosToMillis(time);
  const meta = message.meta ? format.fromBase64(message.meta) : null;
  const facts = [
    ["Content topic", el("code", {}, message.contentTopic)],
    ["Pubsub topic", el("code", {}, pubsubTopic)],
    ["Hash", el("code", {}, messageHash)],
    ["Local time", `${format.localTime(time)} (${format.ago(ms, Date.now())})`],
    ["UTC", el("code", {}, format.isoTime(time))],
    ["Size", format.plural(payload.length, "byte")],
    ["Version", message.version === undefined ? null : String(message.version)],
    ["Meta", meta && el("code", {}, format.asText(meta) ?? format.hexDigits(meta))],
    ["Ephemeral", message.ephemeral ? "yes: it is not archived" : null],
  ].filter(([, value]) => value);
  const list = el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat());
  const button = (name, act) => el("button", { type: "button", class: "small", on: { click: act } }, name);
  const whole = JSON.stringify({ messageHash, pubsubTopic, message }, null, 2).replace(/"timestamp": "(-?\d+)"/, '"timestamp": $1');
  const actions = el("div", { class: "actions" },
    button("Copy hash", () => copy(messageHash, "Hash")),
    button("Copy topic", () => copy(message.contentTopic, "Topic")),
    button("Copy as JSON", () => copy(whole, "Message")),
    button("Only this topic", () => searchTopic(message.contentTopic, pubsubTopic)),
  );
  return [list, actions, ...payloadParts(payload)];
}

function searchTopic(contentTopic, pubsubTopic) {
  byId("topic").value = contentTopic;
  byId("mode").value = "exact";
  byId("pubsub").value = pubsubTopic;
  search();
}

function payloadParts(payload) {
  if (payload.length === 0) return [el("h4", {}, "Payload"), el("p", { class: "muted" }, "It is empty.")];
  const isCut = payload.length > SHOWN_BYTES_MAX;
  const text = format.asText(payload);
  const json = text === null || isCut ? null : format.asJson(text);
  const views = [];
  if (json !== null) views.push(["JSON", json]);
  if (text !== null) views.push(["Text", text.slice(0, SHOWN_BYTES_MAX)]);
  views.push(["Hex", format.hexDump(payload.subarray(0, SHOWN_BYTES_MAX))]);
  const block = el("pre", { tabindex: "0", role: "region", "aria-label": "Payload" });
  const buttons = views.map(([name]) => el("button", { type: "button", class: "small", on: { click: () => choose(name) } }, name));
  const choose = (wanted) => {
    views.forEach(([name, content], index) => {
      buttons[index].setAttribute("aria-pressed", String(name === wanted));
      if (name !== wanted) return;
      block.textContent = content;
      block.classList.toggle("hex", name === "Hex");
    });
  };
  choose(views[0][0]);
  const copyWhole = () => copy(text ?? format.hexDigits(payload), "Payload");
  const note = isCut ? [el("p", { class: "muted" }, `The first ${format.bytes(SHOWN_BYTES_MAX)} are shown; copying gives all.`)] : [];
  return [
    el("h4", {}, "Payload"),
    el("div", { class: "actions", role: "group", "aria-label": "Payload as" }, buttons,
      el("button", { type: "button", class: "small", on: { click: copyWhole } }, "Copy payload")),
    block, ...note,
  ];
}

/** Starts the live tail with the form's content, or stops it. Messages that have arrived stay in view. */
export function toggleTail() {
  if (tail) return stopTail();
  running?.abort();
  const { fields: { hashes, ...fields }, prefix } = readForm();
  closeDetail();
  arrived = 0;
  waiting = [];
  shown = [];
  byId("rows").replaceChildren();
  byId("list").hidden = true;
  byId("pager").hidden = true;
  byId("tail-bar").hidden = false;
  byId("tail").setAttribute("aria-pressed", "true");
  setText(byId("results-title"), "Live tail");
  showEmpty([el("p", {}, el("strong", {}, "Waiting for messages. ")), el("p", {}, "They appear here as they arrive, newest first.")]);
  tail = new Tail({ ...fields, contentTopicPrefix: prefix }, { take: takeArrival, tell: tellTail });
}

function stopTail() {
  if (!tail) return;
  tail.stop();
  tail = undefined;
  byId("tail").setAttribute("aria-pressed", "false");
  byId("pager").hidden = false;
  byId("tail-bar").hidden = true;
  byId("older").disabled = true;
  byId("newer").disabled = true;
  setText(byId("results-title"), "Messages");
  setText(byId("results-status"), `Live tail stopped after ${format.plural(arrived, "message")}`);
  if (arrived === 0) showEmpty([el("p", {}, el("strong", {}, "Nothing has arrived. "))]);
}

function clearTail() {
  closeDetail();
  byId("rows").replaceChildren();
  byId("list").hidden = true;
  arrived = 0;
  showEmpty([el("p", {}, "Waiting for messages.")]);
  tellTail("live", "connected");
}

let tailText = "";

function tellTail(kind, text) {
  tailText = text;
  if (kind === "ended") {
    stopTail();
    setText(byId("results-status"), `The live tail ended: ${text}`);
    return;
  }
  showTailStatus();
}

function showTailStatus() {
  setText(byId("results-status"), `${tailText}, ${format.plural(arrived, "message")}`);
}

/** Messages are put in view together, at most once for each frame. */
function takeArrival(entry) {
  if (waiting.length === 0) requestAnimationFrame(showArrivals);
  waiting.push(entry);
  arrived += 1;
  if (waiting.length > TAIL_MAX) waiting.shift();
}

function showArrivals() {
  const entries = waiting.reverse();
  waiting = [];
  if (!tail) return;
  const body = byId("rows");
  const lines = entries.map(row);
  for (const line of lines) line.classList.add("is-new");
  body.prepend(...lines);
  while (body.children.length > TAIL_MAX) body.lastElementChild.remove();
  byId("list").hidden = false;
  showEmpty([]);
  showTailStatus();
}
