// DMARC results of received mail: the domains of a day, and where the mail of one came from.

import { Failure, post, query } from "./api.js";
import { fillTable } from "./deliveries.js";
import { byId, el, setText } from "./dom.js";
import { count, day as dayName, plural } from "./format.js";
import { command } from "./outgoing.js";
import { follow } from "./overview.js";

const EVERY_MS = 30_000;
const DAY_MS = 86_400_000;
const DOMAIN_COLUMNS = ["Domain", "Failed", "Passed", "Report"];
const SOURCE_COLUMNS = ["Address", "Failed", "Passed", "DKIM", "SPF", "What was done"];

let isBuilt = false;
let askedAt = 0;
let asked = 0;
/** The day that is shown, since 1970; the newest when the address of the page names none. */
let wantedDay;
let shownDay;
let domain;

const linkToDmarc = (fields) => `#/dmarc?${query(fields)}`;

/** Queries the DMARC results; an answer has one field, named by its kind. */
const ask = (operation) => post("admin/v1/dmarc", { by: "the console", operation });

/** Shows what the address of the page names. */
export function openDmarc(search) {
  const isFirst = !isBuilt;
  if (isFirst) build();
  const fields = new URLSearchParams(search);
  wantedDay = /^[0-9]{1,6}$/.test(fields.get("day") ?? "") ? Number(fields.get("day")) : undefined;
  domain = fields.get("domain") || undefined;
  askedAt = 0;
  show();
  if (isFirst) follow(show);
}

function build() {
  isBuilt = true;
  const table = (id, caption, columns) => el("div", { id: `${id}-scroll`, class: "scroll", tabindex: "0", role: "region", "aria-label": caption, hidden: true },
    el("table", { class: "stack", role: "table" },
      el("caption", { class: "sr-only" }, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, columns.map((name) => el("th", { scope: "col", role: "columnheader" }, name)))),
      el("tbody", { id: `${id}-rows`, role: "rowgroup" })));
  const days = el("div", { class: "field" }, el("label", { for: "dmarc-day" }, "Day (UTC)"),
    el("select", { id: "dmarc-day", on: { change: (event) => { location.hash = linkToDmarc({ day: event.target.value, domain }); } } }));
  byId("dmarc").replaceChildren(
    el("p", {}, el("a", { href: "#/mail" }, "← Mail")),
    el("section", { class: "card", "aria-labelledby": "dmarc-title" },
      el("h2", { id: "dmarc-title" }, "DMARC"),
      el("div", { class: "lookup" }, days),
      el("p", { id: "dmarc-note", class: "muted", role: "status" }),
      table("dmarc", "Domains, those with the most failures first", DOMAIN_COLUMNS)),
    el("section", { id: "sources", class: "card", "aria-labelledby": "sources-title", hidden: true },
      el("h2", { id: "sources-title" }, "Addresses"),
      el("p", { id: "sources-note", class: "muted" }),
      table("sources", "Addresses that sent its mail, those with the most failures first", SOURCE_COLUMNS),
      el("p", { id: "sources-command" })));
}

async function show() {
  if (byId("dmarc").hidden || Date.now() - askedAt < EVERY_MS) return;
  askedAt = Date.now();
  asked += 1;
  const number = asked;
  try {
    const { days } = await ask({ do: "days" });
    const day = wantedDay ?? days[0] ?? Math.floor(Date.now() / DAY_MS);
    const { listed } = await ask({ do: "list", day });
    const sources = domain === undefined ? undefined : (await ask({ do: "sources", day, domain })).sources;
    if (number !== asked) return;
    shownDay = day;
    showDays(days);
    showDomains(listed);
    showSources(sources);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (number === asked) setText(byId("dmarc-note"), `What DMARC found did not come: ${error.message}`);
  }
}

function showDays(days) {
  const known = days.includes(shownDay) ? days : [shownDay, ...days];
  const select = byId("dmarc-day");
  const key = JSON.stringify([known, shownDay]);
  if (select.dataset.shown === key) return;
  select.dataset.shown = key;
  select.replaceChildren(...known.map((day) => el("option", { value: day, selected: day === shownDay }, dayName(day))));
}

const cell = (...children) => el("td", { role: "cell" }, children);
/** A count with the word for it, which a narrow window shows in place of the heading. */
const failures = (number) => cell(el("span", { class: number > 0 ? "outcome bad" : "muted" }, `${count(number)} failed`));
const passes = (number) => cell(`${count(number)} passed`);

function showDomains(listed) {
  const report = (wasSent) => (wasSent === null || wasSent === undefined ? "" : wasSent ? "report sent" : "no report asked for");
  fillTable(byId("dmarc-scroll"), byId("dmarc-rows"), listed, ({ domain: name, passed, failed, was_reported: wasSent }) => el("tr", { role: "row" },
    cell(name === "" ? "others, beyond the rows of the day" : el("a", { href: linkToDmarc({ day: shownDay, domain: name }) }, name)),
    failures(failed), passes(passed), cell(report(wasSent))));
  const none = `No mail of ${dayName(shownDay)} has a domain with a DMARC record.`;
  setText(byId("dmarc-note"), listed.length === 0 ? none : plural(listed.length, "domain"));
}

function showSources(sources) {
  byId("sources").hidden = sources === undefined;
  if (sources === undefined) return;
  setText(byId("sources-title"), `Mail of ${domain}`);
  setText(byId("sources-note"), sources.length === 0 ? `Nothing was counted of ${domain} on ${dayName(shownDay)}.` : plural(sources.length, "address", "addresses"));
  fillTable(byId("sources-scroll"), byId("sources-rows"), sources, ({ source, passed, failed, dkim, spf, quarantined, refused }) => el("tr", { role: "row" },
    cell(source ?? "others"), failures(failed), passes(passed), cell(`${count(dkim)} by DKIM`), cell(`${count(spf)} by SPF`),
    cell([quarantined > 0 && `${count(quarantined)} to Junk or quarantine`, refused > 0 && `${count(refused)} refused`].filter(Boolean).join(", "))));
  const text = `restante dmarc report ${/^[\w.-]+$/.test(domain) ? domain : "DOMAIN"} --day ${dayName(shownDay)}`;
  if (byId("sources-command").textContent !== `${text} Copy`) byId("sources-command").replaceChildren(command(text));
}
