// Mail at a glance: what comes in, what goes out, what is stored, what went wrong; the accounts, and where an email is.

import { Failure, get, query } from "./api.js";
import { deliveriesText, deliveryRow, fillTable, linkToAccount } from "./deliveries.js";
import { byId, el, setFacts, setText } from "./dom.js";
import { bytes, count, millis, plural, rate, shortCount } from "./format.js";
import { openOutgoing, showOutgoing } from "./outgoing.js";
import { follow, lately } from "./overview.js";
import { Lines } from "./plots.js";

const ACCOUNTS_SHOWN = 100;
const ACCOUNTS_EVERY_MS = 30_000;
const DELIVERIES_SHOWN = 50;
const DELIVERIES_EVERY_MS = 5_000;

let plots;
let accountsAt = 0;
let deliveriesAt = 0;
/** The filter of deliveries, and the current request: an older answer that arrives late is ignored. */
let about = "";
let asked = 0;
/** The pages of accounts that were loaded; the first is reloaded at its interval. */
let accounts = [];
let nextAccounts;

/** Shows the view. */
export function openMail() {
  if (!plots) start();
  accountsAt = 0;
  deliveriesAt = 0;
  openOutgoing();
}

function start() {
  plots = {
    deliveries: new Lines(byId("plot-deliveries"), "Deliveries per second", [
      { name: "delivered", colour: "one" }, { name: "not accepted", colour: "two", dash: true },
    ], rate),
    delivery: new Lines(byId("plot-delivery"), "Delivery time", [{ name: "p50", colour: "one" }, { name: "p99", colour: "two", dash: true }], millis),
    requests: new Lines(byId("plot-requests"), "JMAP requests per second", [{ name: "requests", colour: "one" }], rate),
    request: new Lines(byId("plot-request"), "JMAP request time", [{ name: "p50", colour: "one" }, { name: "p99", colour: "two", dash: true }], millis),
  };
  byId("trace").addEventListener("submit", (event) => {
    event.preventDefault();
    about = byId("trace-about").value.trim();
    deliveriesAt = 0;
    showDeliveries();
  });
  byId("open-account").addEventListener("submit", (event) => {
    event.preventDefault();
    const address = byId("account-address").value.trim();
    if (address !== "") location.hash = linkToAccount(address);
  });
  byId("accounts-more").addEventListener("click", moreAccounts);
  follow(show);
}

function show(state, history) {
  if (byId("mail").hidden || !state.mail) return;
  const { mail } = state;
  showTiles(mail);
  showPlots(history);
  showFacts(mail);
  showStorage(mail);
  showErrors(mail);
  showChecks(state);
  showOutgoing(state);
  byId("mail-lists").hidden = !state.hasAdmin;
  byId("mail-note").hidden = state.hasAdmin;
  if (!state.hasAdmin) return;
  showDeliveries();
  showAccounts();
}

const seconds = (value) => (value === undefined ? "–" : millis(value * 1000));

function showTiles(mail) {
  const stored = mail.blobsDiskBytes === undefined ? undefined : mail.blobsDiskBytes + (mail.recordsDiskBytes ?? 0) + (mail.indexDiskBytes ?? 0);
  const tiles = {
    delivered: rate(lately("delivered")),
    undelivered: rate(lately("undelivered")),
    requests: rate(lately("requests")),
    lag: seconds(mail.indexLagSeconds),
    accounts: mail.accounts === undefined ? "–" : shortCount(mail.accounts),
    emails: mail.emails === undefined ? "–" : shortCount(mail.emails),
    size: mail.bytes === undefined ? "" : bytes(mail.bytes),
    "mail-disk": stored === undefined ? "–" : bytes(stored),
    vault: mail.vaultBytes === undefined ? "–" : bytes(mail.vaultBytes),
    "vault-emails": mail.vaultEmails === undefined ? "" : plural(mail.vaultEmails, "email"),
  };
  for (const [name, text] of Object.entries(tiles)) setText(document.querySelector(`[data-tile="${name}"]`), text);
}

function showPlots(history) {
  const at = history.at.map((ms) => ms / 1000);
  plots.deliveries.show([at, history.delivered, history.undelivered]);
  plots.delivery.show([at, history.deliveryP50, history.deliveryP99]);
  plots.requests.show([at, history.requests]);
  plots.request.show([at, history.requestP50, history.requestP99]);
}

const known = (value, show = count) => (value === undefined ? null : show(value));

function showFacts(mail) {
  const { deliveries = {}, messages = {} } = mail;
  setFacts(byId("deliveries-facts"), [
    ["Delivered", known(deliveries.new)],
    ["Repeated", known(deliveries.repeated)],
    ["Over quota", known(deliveries.over_quota)],
    ["Failed", known(deliveries.failed)],
    ["Messages stored", known(messages.stored)],
    ["Messages deferred", known(messages.deferred)],
    ["Messages refused", known(messages.refused)],
    ["Messages broken off", known(messages.broken_off)],
  ]);
  setFacts(byId("index-facts"), [
    ["Lag", mail.indexLagSeconds === undefined ? "no index: nobody reads by JMAP" : seconds(mail.indexLagSeconds)],
    ["Emails in it", known(mail.indexedEmails)],
    ["Not committed", known(mail.indexUncommitted)],
    ["Accounts behind", known(mail.indexLaggingAccounts)],
    ["Accounts that fail", known(mail.indexFailingAccounts)],
  ]);
  setFacts(byId("jmap-facts"), [
    ["Requests", known(mail.requests)],
    ["Event streams", known(mail.eventStreams)],
    ["WebSockets", known(mail.webSockets)],
  ]);
}

/** The pages behind the links are for operators. */
function showChecks({ mail, hasAdmin }) {
  const { verdicts = {}, dmarc = {}, dmarcReports: reports = {} } = mail;
  byId("checks").querySelector(".acts").hidden = !hasAdmin;
  setFacts(byId("checks-facts"), [
    ["In quarantine", known(mail.quarantined, (messages) => `${plural(messages, "message")}, ${bytes(mail.quarantinedBytes ?? 0)}`)],
    ["Accepted", known(verdicts.accept)],
    ["To Junk", known(verdicts.junk)],
    ["To quarantine", known(verdicts.quarantine)],
    ["Refused, deferred", count((verdicts.refuse ?? 0) + (verdicts.defer ?? 0))],
    ["Checks without a result", known(mail.notJudged)],
    ["DMARC passed, failed", dmarc.pass === undefined ? null : `${count(dmarc.pass)}, ${count(dmarc.fail ?? 0)}`],
    ["DMARC reports sent", known(reports.queued)],
  ], true);
}

function showStorage(mail) {
  const free = (value) => (value === undefined ? "" : bytes(value));
  const lines = [
    ["Messages (blobs)", mail.blobs, mail.blobsDiskBytes, mail.blobsDiskFreeBytes],
    ["Records", mail.records, mail.recordsDiskBytes, mail.recordsDiskFreeBytes],
    ["Search index", mail.indexedEmails, mail.indexDiskBytes],
    ["Vault, in messages", mail.vaultEmails, mail.vaultBytes],
  ].filter(([, , size]) => size !== undefined);
  const cells = lines.map(([name, number, size, left]) => [name, shortCount(number ?? 0), bytes(size), free(left)]);
  replaceRows(byId("storage-rows"), cells);
}

function showErrors(mail) {
  replaceRows(byId("errors-rows"), mail.errors.map(({ what, count: number }) => [what, count(number)]));
  byId("errors-table").hidden = mail.errors.length === 0;
  setText(byId("errors-note"), mail.errors.length === 0 ? "Nothing went wrong since the start." : "");
}

/** Rows of a name and of numbers; they are recreated when something changed. */
function replaceRows(body, lines) {
  const key = JSON.stringify(lines);
  if (body.dataset.shown === key) return;
  body.dataset.shown = key;
  const row = ([name, ...numbers]) => el("tr", {}, el("td", { class: "name" }, name), numbers.map((number) => el("td", { class: "number" }, number)));
  body.replaceChildren(...lines.map(row));
}

async function showDeliveries() {
  if (Date.now() - deliveriesAt < DELIVERIES_EVERY_MS) return;
  deliveriesAt = Date.now();
  asked += 1;
  const [number, note] = [asked, byId("deliveries-note")];
  try {
    const answer = await get(`admin/v1/mail/deliveries?${query({ about, limit: DELIVERIES_SHOWN })}`);
    if (number !== asked) return;
    fillTable(byId("deliveries-scroll"), byId("deliveries-rows"), answer.deliveries, deliveryRow);
    const none = about === "" ? "Nothing was delivered in the last days." : `The journal has nothing about ${about}.`;
    setText(note, deliveriesText(answer, none));
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (number !== asked) return;
    if (about !== "") fillTable(byId("deliveries-scroll"), byId("deliveries-rows"), [], deliveryRow);
    setText(note, `Deliveries did not come: ${error.message}`);
  }
}

async function showAccounts() {
  if (Date.now() - accountsAt < ACCOUNTS_EVERY_MS) return;
  accountsAt = Date.now();
  // While further pages are shown the list stays as it is: a reader is somewhere in it.
  if (accounts.length > ACCOUNTS_SHOWN) return;
  await readAccounts();
}

async function moreAccounts() {
  await readAccounts(nextAccounts);
}

async function readAccounts(after) {
  const note = byId("accounts-note");
  try {
    const page = await get(`admin/v1/mail/accounts?${query({ limit: ACCOUNTS_SHOWN, after })}`);
    accounts = after === undefined ? page.accounts : accounts.concat(page.accounts);
    nextAccounts = page.next ?? undefined;
    const order = (one, other) => one.account.address.localeCompare(other.account.address);
    fillTable(byId("accounts-scroll"), byId("accounts-rows"), accounts.toSorted(order), accountRow);
    byId("accounts-more").hidden = nextAccounts === undefined;
    setText(note, accounts.length === 0 ? "There is no account: add one with restante account add." : "");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    setText(note, `The list of accounts did not come: ${error.message}`);
  }
}

function accountRow({ account, usage }) {
  const { address, state, role, quotaBytes } = account;
  const notes = [state === "disabled" && "disabled", role === "operator" && "operator"].filter(Boolean).join(", ");
  const quota = quotaBytes === null ? "" : ` of ${bytes(quotaBytes)}`;
  const cell = (...children) => el("td", { role: "cell" }, children);
  return el("tr", { role: "row" },
    cell(el("a", { href: linkToAccount(address) }, address)),
    cell(plural(usage.emails, "email")),
    cell(`${bytes(usage.bytes)}${quota}`),
    cell(notes),
  );
}
