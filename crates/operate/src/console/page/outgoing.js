// Outgoing mail at a glance: what waits and for which domains, whether everything is held, and who reached a limit on sending.

import { Failure, get, post, query } from "./api.js";
import { fillTable, linkToAccount } from "./deliveries.js";
import { byId, confirm, copy, el, setFacts, setText, toast } from "./dom.js";
import { ago, count, dateTime, duration, plural } from "./format.js";

const EVERY_MS = 5_000;
const LIMITS = { messages: "messages an hour", recipients: "recipients a day" };

let askedAt = 0;
let isAsking = false;
/** The server's time, in milliseconds. */
let now = 0;

export const linkToQueue = (filter) => `#/queue?${query(filter)}`;

/** A time in seconds since 1970, relative to now. */
export const fromNow = (seconds, nowMs) => (seconds * 1000 > nowMs ? `in ${duration(seconds * 1000 - nowMs)}` : ago(seconds * 1000, nowMs));

/** Queries the queue; an answer has one field, named by its kind. */
export const askQueue = (operation) => post("admin/v1/queue", { by: "the console", operation });

/** A word of a command, quoted for a shell if it must be. */
export const word = (text) => (/^[\w.+@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A command, with a button that copies it. */
export function command(text) {
  const button = el("button", { type: "button", class: "small", "aria-label": `Copy: ${text}`, on: { click: () => copy(text, "Command") } }, "Copy");
  return el("span", { class: "command" }, el("code", {}, text), " ", button);
}

/** Forgets when it was queried, so that the next state queries it again. */
export function openOutgoing() {
  askedAt = 0;
}

/** Shows the block. The metrics are shown to everybody, the rest to operators. */
export async function showOutgoing(state) {
  const { mail, hasAdmin } = state;
  now = state.now;
  if (!hasAdmin) {
    showFacts(mail, { waiting: mail.outgoingWaiting, held: mail.outgoingHeld });
    return;
  }
  if (isAsking || Date.now() - askedAt < EVERY_MS) return;
  askedAt = Date.now();
  isAsking = true;
  try {
    const answer = await get("admin/v1/mail/outgoing");
    showFacts(mail, answer.counts ?? {});
    showHeld(answer.held);
    showDomains(answer.counts);
    showLimited(answer);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    setText(byId("outgoing-note"), `Outgoing mail did not come: ${error.message}`);
  } finally {
    isAsking = false;
  }
}

function showFacts({ outgoing = {} }, { waiting, held, oldestDue }) {
  const since = (number) => (number === undefined ? null : `${count(number)} since the start`);
  setFacts(byId("outgoing-facts"), [
    ["Waiting", waiting === undefined ? null : plural(waiting, "recipient")],
    ["Held", held === undefined ? null : plural(held, "recipient")],
    ["First due", oldestDue === undefined || oldestDue === null ? null : fromNow(oldestDue, now)],
    ["Delivered", since(outgoing.delivered)],
    ["Postponed", since(outgoing.postponed)],
    ["Failed", outgoing.failed === undefined ? null : since(outgoing.failed + (outgoing.expired ?? 0))],
  ]);
}

/** Shows that everything is held, and the command that releases it. */
export function showHeld(held, place = byId("outgoing-held"), changed = openOutgoing) {
  const key = JSON.stringify(held);
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  place.hidden = held === null;
  if (held === null) return;
  const release = el("button", { type: "button", class: "small", on: { click: () => releaseAll(changed) } }, "Release all");
  place.replaceChildren(el("li", {}, `Nothing is sent since ${dateTime(held.since * 1000)}: ${held.why}. `, command("restante queue release --all"), " ", release));
}

async function releaseAll(changed) {
  const text = "Everything in the queue is sent, also what is held by itself. After a restore that is again what was sent after the backup.";
  if (!(await confirm({ title: "Send all outgoing mail?", text, yes: "Release all", no: "Keep it held" }))) return;
  await changeQueue({ do: "release", which: "all" }, "released");
  changed();
}

/** Changes the queue, and shows how many recipients were changed; returns whether the server did it. */
export async function changeQueue(operation, done) {
  try {
    const { changed } = await askQueue(operation);
    toast(changed === 0 ? `Nothing was ${done}` : `${plural(changed, "recipient")} ${done}`);
    return true;
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    toast(`That was not done: ${error.message}`);
    return false;
  }
}

const cell = (...children) => el("td", { role: "cell" }, children);

function showDomains(counts) {
  const domains = counts?.domains ?? [];
  fillTable(byId("outgoing-scroll"), byId("outgoing-rows"), domains, ({ domain, recipients, held, oldestDue }) => el("tr", { role: "row" },
    cell(el("a", { href: linkToQueue({ domain }) }, domain === "" ? "no domain" : domain)),
    cell(plural(recipients, "recipient")),
    cell(held === 0 ? "" : `${count(held)} held`),
    cell(oldestDue === null ? "" : `first due ${dateTime(oldestDue * 1000)}`),
  ));
  setText(byId("outgoing-note"), noteText(counts, domains));
}

function noteText(counts, domains) {
  if (counts === null) return "The queue is being counted.";
  if (counts.domainsInAll === 0) return "Nothing waits to be sent.";
  const older = now - counts.at * 1000 > 2 * EVERY_MS ? `, ${duration(now - counts.at * 1000)} ago` : "";
  return counts.domainsInAll > domains.length ? `Those with the most of ${plural(counts.domainsInAll, "domain")}${older}:` : "";
}

function showLimited({ limited, limitedInAll }) {
  byId("limited-title").hidden = limitedInAll === 0;
  fillTable(byId("limited-scroll"), byId("limited-rows"), limited, ({ account, address, limit, since, until, refused }) => el("tr", { role: "row" },
    cell(address === null ? `account ${account}, removed` : el("a", { href: linkToAccount(address) }, address)),
    cell(`${LIMITS[limit] ?? limit} since ${dateTime(since * 1000)}`),
    cell(`until ${dateTime(until * 1000)}`),
    cell(`${plural(refused, "message")} refused`),
    cell(address === null ? "" : command(`restante account password ${word(address)}`)),
  ));
  const more = limitedInAll > limited.length ? ` ${plural(limitedInAll - limited.length, "more account")} not shown.` : "";
  setText(byId("limited-note"), limitedInAll === 0 ? "" : `Is it a stolen password? Set another one, and look at what is queued.${more}`);
}
