// Mail that checks keep for operators: what it is and why it is kept, and what an operator does with it.

import { Failure, post, query } from "./api.js";
import { byId, confirm, el, keepRows, setFacts, setText, toast } from "./dom.js";
import { asText, bytes, dateTime, fromBase64, plural } from "./format.js";
import { command, word } from "./outgoing.js";
import { follow } from "./overview.js";

const EVERY_MS = 10_000;
const SHOWN = 50;
const COLUMNS = ["Subject", "From and to", "Reason", "Received", "Size", "Actions"];

let isBuilt = false;
let filter = {};
let askedAt = 0;
/** The current request: answers about the previous list are ignored. */
let asked = 0;
let messages = [];
let next;

export const linkToQuarantine = (wanted) => `#/quarantine?${query(wanted)}`;

/** Queries the quarantine; an answer has one field, named by its kind. */
const ask = (operation) => post("admin/v1/quarantine", { by: "the console", operation });

/** Shows what the address of the page names. */
export function openQuarantine(search) {
  const isFirst = !isBuilt;
  if (isFirst) build();
  const fields = new URLSearchParams(search);
  const [domain, recipient] = ["domain", "recipient"].map((name) => fields.get(name)?.trim());
  filter = { domain: domain || undefined, recipient: recipient || undefined };
  byId("quarantine-domain").value = filter.domain ?? "";
  byId("quarantine-recipient").value = filter.recipient ?? "";
  [messages, next] = [[], undefined];
  setText(byId("quarantine-note"), "");
  closeShown();
  showList();
  again();
  if (isFirst) follow(show);
}

function build() {
  isBuilt = true;
  const field = (id, label, type) => el("div", { class: "field grow" },
    el("label", { for: id }, label), el("input", { id, type: "text", inputmode: type, spellcheck: "false", autocapitalize: "off", placeholder: "all", maxlength: 320 }));
  const form = el("form", { class: "lookup", role: "search", "aria-label": "Quarantine", autocomplete: "off", on: { submit: search } },
    field("quarantine-domain", "Domain of the sender", "url"), field("quarantine-recipient", "Recipient", "email"),
    el("button", { type: "submit", class: "primary" }, "Search"));
  const head = COLUMNS.map((name) => el("th", { scope: "col", role: "columnheader" }, name));
  const table = el("table", { class: "stack", role: "table" },
    el("caption", { class: "sr-only" }, "Messages in quarantine"),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
    el("tbody", { id: "quarantine-rows", role: "rowgroup" }));
  byId("quarantine").replaceChildren(
    el("p", {}, el("a", { href: "#/mail" }, "← Mail")),
    el("section", { class: "card", "aria-labelledby": "quarantine-title" },
      el("h2", { id: "quarantine-title" }, "Quarantine"),
      form,
      el("p", { id: "quarantine-note", class: "muted", role: "status" }),
      el("div", { id: "quarantine-scroll", class: "scroll", tabindex: "0", role: "region", "aria-label": "List of messages", hidden: true }, table),
      el("button", { id: "quarantine-more", type: "button", class: "small", hidden: true, on: { click: () => read(next) } }, "More messages")),
    el("section", { id: "quarantined", class: "card", "aria-labelledby": "quarantined-title", hidden: true },
      el("h2", { id: "quarantined-title", tabindex: "-1" }, "Message"),
      el("dl", { id: "quarantined-facts", class: "facts" }),
      el("p", { id: "quarantined-note", class: "muted" }),
      el("pre", { id: "quarantined-text", tabindex: "0", role: "region", "aria-label": "Beginning of the message" }),
      el("div", { id: "quarantined-acts", class: "acts" })));
}

function search(event) {
  event.preventDefault();
  const wanted = linkToQuarantine({ domain: byId("quarantine-domain").value.trim(), recipient: byId("quarantine-recipient").value.trim() });
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
  if (byId("quarantine").hidden || messages.length > SHOWN || Date.now() - askedAt < EVERY_MS) return;
  askedAt = Date.now();
  read();
}

async function read(after) {
  asked += 1;
  const number = asked;
  try {
    const { listed } = await ask({ do: "list", ...filter, after: after ?? null, limit: SHOWN });
    if (number !== asked) return;
    messages = after === undefined ? listed.items : messages.concat(listed.items);
    next = listed.next ?? undefined;
    showList();
    const isEmpty = messages.length === 0 && next === undefined;
    setText(byId("quarantine-note"), isEmpty ? "No message is here." : `${plural(messages.length, "message")}${next ? ", and more" : ""}`);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (number === asked) setText(byId("quarantine-note"), `The quarantine did not come: ${error.message}`);
  }
}

function showList() {
  byId("quarantine-scroll").hidden = messages.length === 0;
  byId("quarantine-more").hidden = next === undefined;
  keepRows(byId("quarantine-rows"), messages, (item) => JSON.stringify(item), row);
}

/** Names a message in a sentence. */
const nameOf = ({ subject, sender }) => (subject ? `“${subject}”` : `the message from ${sender === "" ? "<>" : sender}`);

const button = (name, item, click) => el("button", { type: "button", class: "small", "aria-label": `${name} ${nameOf(item)}`, on: { click } }, name);

const actsOn = (item) => [button("Release", item, () => release(item)), button("Drop", item, () => drop(item))];

function row(item) {
  const { id, sender, recipients, reason, subject, from, received, size } = item;
  const cell = (...children) => el("td", { role: "cell" }, children);
  const others = recipients.length > 1 ? ` and ${plural(recipients.length - 1, "other")}` : "";
  return el("tr", { role: "row" },
    cell(subject ?? el("span", { class: "muted" }, "no subject"), el("span", { class: "muted" }, ` id ${id}`)),
    cell(sender === "" ? "<>" : sender, " → ", recipients[0] ?? "", others, el("span", { class: "muted" }, from ? ` ${from}` : "")),
    cell(reason),
    cell(dateTime(received * 1000)),
    cell(bytes(size)),
    cell(el("div", { class: "acts" }, button("Show", item, () => showOne(item)), actsOn(item))),
  );
}

function closeShown() {
  byId("quarantined").hidden = true;
  delete byId("quarantined").dataset.shown;
}

async function showOne(item) {
  let shown;
  try {
    ({ shown } = await ask({ do: "show", id: item.id }));
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    toast(`The message did not come: ${error.message}`);
    return;
  }
  if (shown === null) {
    toast("It is not in quarantine any more");
    again();
    return;
  }
  const { sender, recipients, peer, hello, reason, from, subject, received, size, message } = shown;
  setText(byId("quarantined-title"), subject ?? "no subject");
  setFacts(byId("quarantined-facts"), [
    ["Reason", reason], ["Sender", sender === "" ? "<>" : sender], ["Recipients", recipients.join(", ")], ["From", from],
    ["Client", [hello, peer && `[${peer}]`].filter(Boolean).join(" ")], ["Received", dateTime(received * 1000)], ["Size", bytes(size)],
  ]);
  const raw = fromBase64(message);
  setText(byId("quarantined-note"), raw.length < size ? `The first ${bytes(raw.length)}, with the fields of this server:` : "With the fields of this server:");
  setText(byId("quarantined-text"), asText(raw) ?? new TextDecoder("latin1").decode(raw));
  const close = el("button", { type: "button", class: "small", on: { click: closeShown } }, "Close");
  byId("quarantined-acts").replaceChildren(...actsOn(shown), close, command(`restante quarantine show ${item.id} --raw`), command(`restante mail trace ${word(sender || recipients[0])}`));
  byId("quarantined").dataset.shown = String(item.id);
  byId("quarantined").hidden = false;
  byId("quarantined-title").focus();
}

async function release(item) {
  const text = `It is delivered to ${plural(item.recipients.length, "recipient")}, as if it had been accepted. It was kept for this reason: ${item.reason}`;
  if (!(await confirm({ title: `Release ${nameOf(item)}?`, text, yes: "Release", no: "Leave it" }))) return;
  await change({ do: "release", ids: [item.id] }, item, ({ released }) => {
    const failed = released.filter(({ problem }) => problem);
    if (released.length === 0) return "It is not in quarantine any more";
    if (failed.length === 0) return `Delivered to ${plural(released.length, "recipient")}`;
    return `It stays in quarantine: ${failed.map(({ recipient, problem }) => `${recipient}: ${problem}`).join(", ")}`;
  });
}

async function drop(item) {
  const asks = { title: `Drop ${nameOf(item)}?`, text: "Nobody gets it, its sender gets no report, and nothing brings it back.", yes: "Drop", no: "Leave it" };
  if (!(await confirm(asks))) return;
  await change({ do: "drop", ids: [item.id] }, item, ({ dropped }) => (dropped === 0 ? "It is not in quarantine any more" : "Dropped"));
}

/** Changes the quarantine, and shows the result. */
async function change(operation, item, textOf) {
  try {
    const text = textOf(await ask(operation));
    toast(text);
    setText(byId("quarantine-note"), text);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    toast(`That was not done: ${error.message}`);
    return;
  }
  if (byId("quarantined").dataset.shown === String(item.id)) closeShown();
  // From the first page on: messages that were changed are no longer in it.
  messages = messages.slice(0, SHOWN);
  again();
}
