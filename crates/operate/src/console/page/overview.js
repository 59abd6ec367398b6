// The server at a glance: requests its state every second, and shows it.

import { Failure, get, query, remove } from "./api.js";
import { byId, confirm, el, keepRows, setFacts, setText, toast } from "./dom.js";
import { ago, bytes, count, dateTime, day, duration, millis, plural, rate, shortCount } from "./format.js";
import { Bars, Lines } from "./plots.js";

/** History that is kept here: as much as on the server. */
const HISTORY_MS = 600_000;
const POLL_MS = 1_000;
/** The longest wait between two tries while the server is gone. */
const RETRY_MS_MAX = 10_000;
/** Sessions are listed less often, and many of them seldom: the server walks through all of them. */
const SESSIONS_EVERY_MS = 5_000;
const MANY_SESSIONS = 20_000;
const MANY_EVERY_MS = 60_000;
const SESSIONS_SHOWN = 10;
/** The log of operations changes seldom. */
const OPERATIONS_EVERY_MS = 10_000;
const OPERATIONS_SHOWN = 20;
/** Rates of the tiles are those of the last seconds, so that they don't jump. */
const TILE_POINTS = 5;
/** Figures that are older than this say so. */
const LAG_MS = 5_000;

const COLUMNS = [
  "stored", "relayed", "served", "pushed", "queries", "appendP50", "appendP99", "queryP50", "queryP99",
  "delivered", "undelivered", "deliveryP50", "deliveryP99", "requests", "requestP50", "requestP99", "indexLag",
];

let state;
let history = emptyHistory();
let startedAt;
let plots;
let wakeUp;
let failures = 0;
let sessionsAt = 0;
let operationsAt = 0;
let heldAt;
/** Other views of the same state. */
const followers = [];

function emptyHistory() {
  return Object.fromEntries([["at", []], ...COLUMNS.map((name) => [name, []])]);
}

/** Calls a function with the state and its history: now, if there is one, and each time that one comes. */
export function follow(take) {
  followers.push(take);
  if (state) take(state, history);
}

/** Begins to poll, and continues while the page is open. */
export async function startOverview() {
  plots = {
    messages: new Lines(byId("plot-messages"), "Messages per second", [
      { name: "stored", colour: "one" }, { name: "relayed in", colour: "three", dash: true }, { name: "handed out", colour: "two" },
    ], rate),
    queries: new Lines(byId("plot-queries"), "Queries per second", [{ name: "pages", colour: "one" }], rate),
    append: new Lines(byId("plot-append"), "Insert time", [{ name: "p50", colour: "one" }, { name: "p99", colour: "two", dash: true }], millis),
    query: new Lines(byId("plot-query"), "Query time", [{ name: "p50", colour: "one" }, { name: "p99", colour: "two", dash: true }], millis),
    days: new Bars(byId("plot-days"), "By day", [
      { name: "on disk", colour: "one" }, { name: "messages", format: count },
    ], bytes, day),
  };
  document.addEventListener("visibilitychange", () => wakeUp?.());
  for (;;) {
    // An answer that is not as expected is logged as an error; the next one may be fine again.
    if (!document.hidden) await poll().catch((error) => console.error(error));
    await pause();
  }
}

/** Waits until the next poll, or until the page is looked at again. */
function pause() {
  const ms = Math.min(POLL_MS * 2 ** Math.max(0, failures - 1), RETRY_MS_MAX);
  return new Promise((resolve) => {
    const timer = document.hidden ? undefined : setTimeout(resolve, ms);
    wakeUp = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

async function poll() {
  try {
    const since = history.at.at(-1) ?? 0;
    const answer = await get(`console/v1/state?${query({ since })}`, { patienceMs: 10_000 });
    // Without a server there is nothing to show; when it is busy, the page keeps showing what it has.
    if (answer.server.startedAt !== startedAt) {
      const isFirst = startedAt === undefined;
      startedAt = answer.server.startedAt;
      history = emptyHistory();
      if (!isFirst && since > 0) return void (await poll()); // it was restarted: its history begins before our last point
    }
    failures = 0;
    state = answer.server;
    addHistory(answer.history);
    show();
    await showSessionList();
    await showOperations();
  } catch (error) {
    failures += 1;
    showError(error);
    if (!(error instanceof Failure)) throw error;
  }
}

function addHistory(more) {
  const from = (more.at.at(-1) ?? history.at.at(-1) ?? 0) - HISTORY_MS;
  const all = history.at.concat(more.at);
  const first = all.findIndex((at) => at >= from);
  const skip = first === -1 ? 0 : first;
  for (const name of COLUMNS) history[name] = history[name].concat(more[name]).slice(skip);
  history.at = all.slice(skip);
}

function showError(error) {
  const banner = byId("gone");
  const isRefusal = error instanceof Failure;
  const isGone = isRefusal && error.status === 0;
  document.body.classList.toggle("is-gone", isGone);
  setPulse(isGone ? "gone" : "unwell", isGone ? "No answer" : "Trouble");
  const text = isGone
    ? "The server does not answer. What you see is from before; this page goes on trying and comes back by itself."
    : `${isRefusal ? "The server refuses its state" : "The server's answer is not understood"}: ${error.message}`;
  setText(banner, text);
  banner.hidden = false;
}

function setPulse(kind, text) {
  byId("pulse").dataset.state = kind;
  setText(byId("pulse-text"), text);
}

function show() {
  byId("gone").hidden = true;
  document.body.classList.remove("is-gone");
  setPulse(state.isReady ? "ready" : "unwell", state.isReady ? "Ready" : "Not ready");
  setText(byId("uptime"), startedAt ? `up ${duration(state.now - startedAt)}` : "");
  setText(byId("version"), state.version);
  showProblems();
  showTiles();
  showPlots();
  showArchive();
  showRetention();
  showDoors();
  showPeers();
  showSessionCounts();
  showMail();
  for (const take of followers) take(state, history);
}

function showProblems() {
  const list = byId("problems");
  const texts = state.problems.map(({ what, since }) => (since ? `${what} (since ${dateTime(since)})` : what));
  list.hidden = texts.length === 0;
  if (texts.join("\n") !== [...list.children].map((item) => item.textContent).join("\n")) {
    list.replaceChildren(...texts.map((text) => el("li", {}, text)));
  }
}

/** The mean of a column's last points. */
export function lately(name) {
  const values = history[name].slice(-TILE_POINTS);
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}

const isLate = (at) => state.now - at > LAG_MS;

function showTiles() {
  const held = state.archive?.held;
  const { sessions, peers } = state;
  const out = lately("served") === null ? null : lately("served") + lately("pushed");
  const tiles = {
    stored: rate(lately("stored")),
    relayed: rate(lately("relayed")),
    out: rate(out),
    queries: rate(lately("queries")),
    sessions: sessions.total === null ? "?" : shortCount(sessions.total),
    users: sessions.users === null ? "" : `of ${plural(sessions.users, "user")}`,
    peers: peers ? shortCount(peers.connected) : "off",
    mesh: peers ? `${count(peers.mesh)} in mesh` : "",
    messages: held ? shortCount(held.messages) : "–",
    counted: held && isLate(held.at) ? `messages, ${ago(held.at, state.now)}` : "messages",
    disk: held ? bytes(held.diskBytes) : "–",
    engine: state.archive?.engine ?? "",
  };
  for (const [name, text] of Object.entries(tiles)) setText(document.querySelector(`[data-tile="${name}"]`), text);
}

function showPlots() {
  const at = history.at.map((ms) => ms / 1000);
  const out = history.served.map((served, index) => served + history.pushed[index]);
  plots.messages.show([at, history.stored, history.relayed, out]);
  plots.queries.show([at, history.queries]);
  plots.append.show([at, history.appendP50, history.appendP99]);
  plots.query.show([at, history.queryP50, history.queryP99]);
}

/** A server without the Waku door has no archive. */
function showArchive() {
  document.body.classList.toggle("has-no-archive", !state.archive);
  if (!state.archive) return;
  const { engine, held, spool, tandem } = state.archive;
  const behind = (messages, size) => `${plural(messages, "message")} wait, ${bytes(size)}`;
  setFacts(byId("archive-facts"), [
    ["Engine", `${engine ?? "unknown"}, ${state.archive.isWell ? "well" : "away"}`],
    ["Messages", held && count(held.messages)],
    ["Payloads", held && bytes(held.bodyBytes)],
    ["On disk", held && bytes(held.diskBytes)],
    ["Topics", held && count(held.topics)],
    ["Oldest", held?.oldest != null && dateTime(held.oldest)],
    ["Newest", held?.newest != null && dateTime(held.newest)],
    ["Spool", spool && behind(spool.messages, spool.bytes)],
    ["Second archive", tandem && tandemText(tandem, behind)],
    ["Counted", held ? isLate(held.at) && ago(held.at, state.now) : "not yet"],
  ].filter(([, value]) => value !== false), true);
  if (held?.at !== heldAt || !held) showDays(held);
  heldAt = held?.at;
}

function tandemText({ engine, problem, isStopped, messages, bytes: size }, behind) {
  if (isStopped) return `${engine}: has given up`;
  if (problem) return `${engine}: ${problem}`;
  return messages > 0 ? `${engine}: ${behind(messages, size)}` : `${engine}: follows`;
}

function showDays(held) {
  const days = held?.days;
  const note = byId("days-note");
  byId("plot-days").hidden = !days;
  byId("days-details").hidden = !days;
  note.hidden = !held;
  if (!held) return;
  if (!days) {
    setText(note, "There is no message yet.");
    return;
  }
  const numbers = days.messages.map((_, index) => days.first + index);
  plots.days.show([numbers, days.diskBytes, days.messages]);
  const notes = [];
  if (days.messagesOutside > 0) notes.push(`${plural(days.messagesOutside, "message")} (${bytes(days.diskBytesOutside)}) of other days are not shown.`);
  if (days.isEstimate) notes.push("Parts of several days are spread evenly over them.");
  setText(note, notes.join(" "));
  note.hidden = notes.length === 0;
  const rows = numbers.map((number, index) => el("tr", {},
    el("td", {}, day(number)), el("td", { class: "number" }, count(days.messages[index])), el("td", { class: "number" }, bytes(days.diskBytes[index])),
  ));
  byId("days-rows").replaceChildren(...rows.reverse());
}

/** What a server with mail shows of it here; the rest is in its own view. */
function showMail() {
  const { mail } = state;
  document.body.classList.toggle("has-no-mail", !mail);
  if (!mail) return;
  const known = (value, show) => (value === undefined ? null : show(value));
  setFacts(byId("mail-facts"), [
    ["Accounts", known(mail.accounts, count)],
    ["Emails", known(mail.emails, count)],
    ["Size", known(mail.bytes, bytes)],
    ["Delivered", known(mail.deliveries.new, (number) => `${count(number)} since the start`)],
    ["Waiting to be sent", known(mail.outgoingWaiting, count)],
    ["Index lag", known(mail.indexLagSeconds, (lag) => millis(lag * 1000))],
  ]);
}

function policyText({ policy, timeSeconds, messagesMax, bytesMax }) {
  const rules = [
    timeSeconds != null && `messages of the last ${duration(timeSeconds * 1000)}`,
    messagesMax != null && `the newest ${plural(messagesMax, "message")}`,
    bytesMax != null && `at most ${bytes(bytesMax)} on disk`,
  ].filter(Boolean);
  return rules.length === 0 ? "everything" : el("span", {}, rules.join(", and "), " ", el("code", { class: "muted" }, policy));
}

function showRetention() {
  const { retention, now } = state;
  if (!retention) return;
  const runText = ({ at, messages, diskBytes, error }) => {
    if (error) return `${ago(at, now)}: failed (${error})`;
    return messages === 0 ? `${ago(at, now)}: nothing to remove` : `${ago(at, now)}: ${plural(messages, "message")}, ${bytes(diskBytes)}`;
  };
  const isKeptWhole = retention.policy === "none";
  const oldest = state.archive.held?.oldest;
  setFacts(byId("retention-facts"), [
    ["Keeps", policyText(retention)],
    ["Oldest", oldest != null ? `${duration(now - oldest)} old` : null],
    ["Looks", isKeptWhole ? null : `every ${duration(retention.intervalSeconds * 1000)}`],
    ["Last look", retention.last ? runText(retention.last) : isKeptWhole ? null : "not yet"],
    ["Last removal", retention.lastRemoving ? runText(retention.lastRemoving) : isKeptWhole ? null : "none since the start"],
    ["Removed", isKeptWhole ? null : `${plural(state.pruned, "message")} since the start`],
  ]);
}

function showDoors() {
  const list = byId("doors");
  const key = JSON.stringify(state.doors);
  if (list.dataset.shown === key) return;
  list.dataset.shown = key;
  const item = ({ name, isOn, addresses = [], connections }) => {
    const more = connections === undefined ? "" : `, ${plural(connections, "connection")}`;
    return el("li", { class: isOn ? "" : "is-off" },
      el("span", { class: "mark", "aria-hidden": "true" }, isOn ? "✓" : "–"),
      el("div", {}, `${name}${isOn ? more : ": off"}`, addresses.map((address) => el("code", {}, address))),
    );
  };
  list.replaceChildren(...state.doors.map(item));
}

function table(caption, names, rows) {
  return el("table", {},
    el("caption", { class: "sr-only" }, caption),
    el("thead", {}, el("tr", {}, names.map((name, index) => el("th", { scope: "col", class: index > 0 && "number" }, name)))),
    el("tbody", {}, rows.map(([first, ...others]) => el("tr", {}, el("td", { class: "name" }, first), others.map((other) => el("td", { class: "number" }, other))))),
  );
}

function showPeers() {
  const place = byId("peers");
  const key = JSON.stringify(state.peers);
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  const { peers } = state;
  if (!peers) return void place.replaceChildren(el("p", { class: "muted" }, "This server has no Waku node: messages come and go by REST alone."));
  const connected = peers.connected === 0 ? "Nobody is connected." : `${count(peers.connected)} connected, ${count(peers.inbound)} of them came to us`;
  const parts = [el("p", {}, connected)];
  if (peers.agents.length > 0) parts.push(table("Peers by program", ["Program", "Peers"], peers.agents.map(({ name, peers: number }) => [name || "unknown", count(number)])));
  if (peers.topics.length > 0) parts.push(table("Relayed pubsub topics", ["Relayed pubsub topic", "Peers"], peers.topics.map(({ name, peers: number }) => [name, count(number)])));
  else parts.push(el("p", { class: "muted" }, "No pubsub topic is relayed: name a cluster with --cluster-id."));
  if (peers.topicsInAll > peers.topics.length) parts.push(el("p", { class: "muted" }, `and ${count(peers.topicsInAll - peers.topics.length)} more`));
  place.replaceChildren(...parts);
  byId("pubsub-topics").replaceChildren(...peers.topics.map(({ name }) => el("option", { value: name })));
}

function showSessionCounts() {
  const { sessions } = state;
  if (sessions.total === null) return setText(byId("sessions-summary"), "The table of sessions does not answer.");
  if (sessions.total === 0 && sessions.isComplete) return setText(byId("sessions-summary"), "Nobody is connected.");
  const doors = sessions.byDoor?.doors ?? [];
  const parts = [`${plural(sessions.total, "session")} of ${plural(sessions.users, "user")}`];
  if (doors.length > 0) parts.push(doors.map(({ door, sessions: number }) => `${doorName(door)} ${count(number)}`).join(", "));
  if (doors.length > 0 && isLate(sessions.byDoor.at)) parts.push(`doors counted ${ago(sessions.byDoor.at, state.now)}`);
  if (sessions.byDoor?.isWhole === false) parts.push("doors are counted over a part of them");
  if (sessions.nodes.length > 1) parts.push(sessions.nodes.map(({ name, isHere, sessions: number }) => `${name || "unnamed"}${isHere ? " (here)" : ""} ${count(number)}`).join(", "));
  if (!sessions.isComplete) parts.push("other nodes are out of reach");
  setText(byId("sessions-summary"), parts.join(" · "));
}

const DOORS = { waku_filter: "Waku filter", rest_live: "REST live", other: "other" };
const doorName = (door) => DOORS[door] ?? door;

async function showSessionList() {
  const note = byId("sessions-note");
  if (!state.hasAdmin) return setText(note, "To list and close sessions, open the console on the listener for operators (operate.listen).");
  const every = state.sessions.total > MANY_SESSIONS ? MANY_EVERY_MS : SESSIONS_EVERY_MS;
  if (byId("overview").hidden || Date.now() - sessionsAt < every) return;
  sessionsAt = Date.now();
  try {
    const { sessions } = await get(`admin/v1/sessions?${query({ limit: SESSIONS_SHOWN })}`);
    byId("sessions-scroll").hidden = sessions.length === 0;
    setText(note, state.sessions.total > sessions.length ? `The newest ${count(sessions.length)}:` : "");
    keepRows(byId("sessions-rows"), sessions, ({ id }) => id, sessionRow);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    setText(note, `The list of sessions did not come: ${error.message}`);
  }
}

function sessionRow(session) {
  const { id, user, resource, openedAt, info = {} } = session;
  const opened = new Date(openedAt);
  const close = el("button", { type: "button", class: "small", "aria-label": `Close the session of ${user}`, on: { click: () => closeSession(session) } }, "Close");
  const cell = (...children) => el("td", { role: "cell" }, children);
  return el("tr", { role: "row", title: id },
    cell(doorName(info.door ?? resource)),
    cell(el("span", { class: "mono" }, user)),
    cell(info.reads ?? (info.topics === undefined ? "" : plural(info.topics, "topic"))),
    cell(Number.isNaN(opened.getTime()) ? String(openedAt) : dateTime(opened.getTime())),
    cell(close),
  );
}

async function closeSession({ id, user }) {
  const text = `${user} is notified that an operator has closed the session, and may open another one.`;
  if (!(await confirm({ title: "Close this session?", text, yes: "Close the session", no: "Keep it" }))) return;
  try {
    await remove(`admin/v1/sessions/${encodeURIComponent(id)}`);
    toast("The session was closed");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    toast(error.status === 404 ? "The session had ended already" : `It was not closed: ${error.message}`);
  }
  sessionsAt = 0;
  wakeUp?.();
}

/** The log of operations, where the server keeps a directory of accounts and shows it to operators. */
async function showOperations() {
  const section = byId("operations");
  if (!state.hasAdmin || byId("overview").hidden || Date.now() - operationsAt < OPERATIONS_EVERY_MS) return;
  operationsAt = Date.now();
  const note = byId("operations-note");
  try {
    const { operations } = await get(`admin/v1/operations?${query({ limit: OPERATIONS_SHOWN })}`);
    section.hidden = false;
    byId("operations-scroll").hidden = operations.length === 0;
    setText(note, operations.length === 0 ? "Domains, accounts, aliases, tokens and mail were not changed yet." : "");
    keepRows(byId("operations-rows"), operations, ({ at, who, what }) => `${at} ${who} ${what}`, operationRow);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    section.hidden = error.status === 404;
    setText(note, `The log of operations did not come: ${error.message}`);
  }
}

function operationRow({ at, who, what }) {
  const cell = (text) => el("td", { role: "cell" }, text);
  return el("tr", { role: "row" }, cell(dateTime(at)), cell(who), cell(what));
}
