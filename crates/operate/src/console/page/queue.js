// The queue of outgoing mail: its recipients by domain or sender, and what an operator does with them.

import { Failure } from "./api.js";
import { byId, confirm, el, keepRows, setText } from "./dom.js";
import { dateTime, plural } from "./format.js";
import { askQueue, changeQueue, command, linkToQueue, showHeld, word } from "./outgoing.js";
import { follow } from "./overview.js";

const EVERY_MS = 10_000;
const SHOWN = 100;
const STATES = { due: ["waits", "good"], held: ["held", "bad"], trying: ["is being tried", "warn"] };
const ACTS = {
  retry: { name: "Retry", done: "tried now" },
  hold: { name: "Hold", done: "held" },
  release: { name: "Release", done: "released" },
  drop: { name: "Drop", done: "dropped" },
};
/** The actions that are possible in each state. */
const ACTS_OF = { due: ["retry", "hold", "drop"], trying: ["hold", "drop"], held: ["release", "drop"] };
const COLUMNS = ["Recipient", "State", "Next attempt", "Attempts", "Last reply", "Actions"];

let isBuilt = false;
let filter = {};
let askedAt = 0;
/** The current request: answers about the previous list are ignored. */
let asked = 0;
let recipients = [];
let next;

/** Shows what the address of the page names. */
export function openQueue(search) {
  const isFirst = !isBuilt;
  if (isFirst) build();
  const fields = new URLSearchParams(search);
  const [domain, sender] = ["domain", "sender"].map((name) => fields.get(name)?.trim());
  filter = { domain: domain || undefined, sender: sender || undefined, held: fields.get("held") === "true" };
  byId("queue-domain").value = filter.domain ?? "";
  byId("queue-sender").value = filter.sender ?? "";
  byId("queue-held").checked = filter.held;
  [recipients, next] = [[], undefined];
  setText(byId("queue-note"), "");
  showList();
  showBulk();
  again();
  if (isFirst) follow(show);
}

function build() {
  isBuilt = true;
  const field = (id, label, type) => el("div", { class: "field grow" },
    el("label", { for: id }, label), el("input", { id, type: "text", inputmode: type, spellcheck: "false", autocapitalize: "off", placeholder: "all", maxlength: 320 }));
  const form = el("form", { class: "lookup", role: "search", "aria-label": "Queue", autocomplete: "off", on: { submit: search } },
    field("queue-domain", "Domain", "url"), field("queue-sender", "Sender", "email"),
    el("label", { class: "check" }, el("input", { type: "checkbox", id: "queue-held" }), " held only"),
    el("button", { type: "submit", class: "primary" }, "Search"));
  const head = COLUMNS.map((name) => el("th", { scope: "col", role: "columnheader" }, name));
  const table = el("table", { class: "stack", role: "table" },
    el("caption", { class: "sr-only" }, "Recipients in the queue"),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
    el("tbody", { id: "queue-rows", role: "rowgroup" }));
  byId("queue").replaceChildren(
    el("p", {}, el("a", { href: "#/mail" }, "← Mail")),
    el("section", { class: "card", "aria-labelledby": "queue-title" },
      el("h2", { id: "queue-title" }, "Outgoing mail"),
      el("ul", { id: "queue-all-held", class: "problems", "aria-label": "Everything is held", hidden: true }),
      form,
      el("div", { id: "queue-bulk", class: "acts" }),
      el("p", { id: "queue-note", class: "muted", role: "status" }),
      el("div", { id: "queue-scroll", class: "scroll", tabindex: "0", role: "region", "aria-label": "List of recipients", hidden: true }, table),
      el("button", { id: "queue-more", type: "button", class: "small", hidden: true, on: { click: () => read(next) } }, "More recipients")));
}

function search(event) {
  event.preventDefault();
  const held = byId("queue-held").checked || undefined;
  const wanted = linkToQueue({ domain: byId("queue-domain").value.trim(), sender: byId("queue-sender").value.trim(), held });
  if (location.hash === wanted) again();
  else location.hash = wanted;
}

/** Polls at once. */
function again() {
  askedAt = 0;
  show();
}

function show() {
  // While further pages are shown the list is not refreshed: somebody is reading it.
  if (byId("queue").hidden || recipients.length > SHOWN || Date.now() - askedAt < EVERY_MS) return;
  askedAt = Date.now();
  read();
}

async function read(after) {
  asked += 1;
  const number = asked;
  try {
    const { listed } = await askQueue({ do: "list", filter, after: after ?? null, limit: SHOWN });
    if (number !== asked) return;
    recipients = after === undefined ? listed.items : recipients.concat(listed.items);
    next = listed.next ?? undefined;
    showHeld(listed.held, byId("queue-all-held"), again);
    showList();
    const isEmpty = recipients.length === 0 && next === undefined;
    setText(byId("queue-note"), isEmpty ? "Nothing waits here." : `${plural(recipients.length, "recipient")}${next ? ", and more" : ""}`);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (number === asked) setText(byId("queue-note"), `The queue did not come: ${error.message}`);
  }
}

function showList() {
  byId("queue-scroll").hidden = recipients.length === 0;
  byId("queue-more").hidden = next === undefined;
  // A row is recreated when a part of it has changed.
  keepRows(byId("queue-rows"), recipients, (item) => JSON.stringify(item), row);
}

function row(item) {
  const { id, state, recipient, sender, source, due, attempts, lastReply, reason } = item;
  const [text, kind] = STATES[state] ?? [state, "warn"];
  const cell = (...children) => el("td", { role: "cell" }, children);
  const act = (name) => {
    const on = { click: () => change(name, { ids: [id] }, `the mail for ${recipient}`) };
    return el("button", { type: "button", class: "small", "aria-label": `${ACTS[name].name} ${recipient}`, on }, ACTS[name].name);
  };
  return el("tr", { role: "row" },
    cell(recipient, el("span", { class: "muted" }, ` from ${sender === "" ? "<>" : sender} (${source}), id ${id}`)),
    cell(el("span", { class: `outcome ${kind}` }, text), reason ? el("span", { class: "muted" }, ` ${reason}`) : null),
    cell(state === "held" ? "" : dateTime(due * 1000)),
    cell(plural(attempts, "attempt")),
    cell(lastReply ?? ""),
    cell(el("div", { class: "acts" }, (ACTS_OF[state] ?? []).map(act))),
  );
}

/** Buttons for all that match; without a filter, use the command line. */
function showBulk() {
  const { domain, sender, held } = filter;
  const place = byId("queue-bulk");
  place.hidden = domain === undefined && sender === undefined;
  const whose = [domain && `to ${domain}`, sender && `from ${sender}`].filter(Boolean).join(" ");
  const about = `all ${held ? "held " : ""}mail ${whose}`;
  const button = (name) => {
    const on = { click: () => change(name, { matching: filter }, about) };
    return el("button", { type: "button", class: "small", on }, `${ACTS[name].name} all`);
  };
  const flags = [domain && `--domain ${word(domain)}`, sender && `--sender ${word(sender)}`].filter(Boolean);
  place.replaceChildren(...(held ? ["release", "drop"] : ["retry", "hold", "release", "drop"]).map(button),
    command(["restante queue list", ...flags, held && "--held"].filter(Boolean).join(" ")));
}

async function change(name, which, about) {
  const { name: verb, done } = ACTS[name];
  const isOne = which.ids !== undefined;
  const text = name === "drop" ? "Nothing is sent, nobody gets a report, and nothing brings it back." : "What is under way is finished.";
  const asks = { title: `${verb} ${about}?`, text, yes: verb, no: "Leave it" };
  if ((name === "drop" || !isOne) && !(await confirm(asks))) return;
  const operation = name === "hold" ? { do: name, which, why: "by an operator, on the console" } : { do: name, which };
  if (!(await changeQueue(operation, done))) return;
  // From the first page on: what was changed may have moved.
  recipients = recipients.slice(0, SHOWN);
  again();
}
