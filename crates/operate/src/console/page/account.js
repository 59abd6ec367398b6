// The page of an account: its mailboxes, how much it uses, log-ins, connections, the vault and recent deliveries.

import { Failure, get, query } from "./api.js";
import { deliveriesText, deliveryRow, fillTable, linkToAccount } from "./deliveries.js";
import { byId, el, setFacts, setText } from "./dom.js";
import { bytes, count, dateTime, duration, plural } from "./format.js";
import { follow } from "./overview.js";

const EVERY_MS = 10_000;
const DELIVERIES_SHOWN = 50;

let address;
let askedAt = 0;
/** The current request: answers about the previous account are ignored. */
let asked = 0;
let isFollowing = false;

/** Shows the account that the address of the page names. */
export function openAccount(search) {
  const wanted = new URLSearchParams(search).get("address") ?? "";
  if (wanted !== address) {
    byId("account-body").hidden = true;
    setText(byId("account-note"), "");
  }
  address = wanted;
  askedAt = 0;
  setText(byId("account-title"), address || "No account");
  document.title = `${address || "Account"} – restante`;
  if (!isFollowing) {
    isFollowing = true;
    follow(show);
  } else {
    show();
  }
}

async function show() {
  if (byId("account").hidden || Date.now() - askedAt < EVERY_MS) return;
  askedAt = Date.now();
  asked += 1;
  const [number, note] = [asked, byId("account-note")];
  try {
    const answer = await get(`admin/v1/mail/account?${query({ address })}`);
    if (number !== asked) return;
    setText(note, "");
    byId("account-body").hidden = false;
    showAccount(answer);
    await showDeliveries(answer.account.account, number);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (number !== asked) return;
    if (error.status === 404 || error.status === 400) byId("account-body").hidden = true;
    setText(note, `The account did not come: ${error.message}`);
  }
}

function showAccount(answer) {
  const { account, usage, vault, connections, mailboxes, mailboxesInAll } = answer;
  showFacts(account, usage, connections);
  showVault(vault, answer.vaultSeconds);
  fillTable(byId("mailboxes-scroll"), byId("mailboxes-rows"), mailboxes, mailboxRow);
  setText(byId("mailboxes-note"), mailboxesText(mailboxes.length, mailboxesInAll));
  showLogins(account);
}

function mailboxesText(shown, inAll) {
  if (inAll === 0) return "It has no mailbox yet: the first log-in or delivery makes them.";
  return inAll > shown ? `${plural(inAll - shown, "more mailbox", "more mailboxes")} not shown.` : "";
}

function showFacts(account, usage, connections) {
  const { state, role, quotaBytes, created, account: number } = account;
  const share = quotaBytes > 0 ? ` (${Math.round((usage.bytes / quotaBytes) * 100)} %)` : "";
  const used = quotaBytes === null ? `${bytes(usage.bytes)}, no quota` : `${bytes(usage.bytes)} of ${bytes(quotaBytes)}${share}`;
  const open = [
    connections.eventStreams > 0 && plural(connections.eventStreams, "event stream"),
    connections.webSockets > 0 && plural(connections.webSockets, "WebSocket"),
  ].filter(Boolean);
  setFacts(byId("account-facts"), [
    ["State", state === "active" ? "active" : "disabled: log-ins and mail are refused"],
    ["Role", role],
    ["Emails", count(usage.emails)],
    ["Used", used],
    ["Open now", open.length === 0 ? "nothing" : open.join(", ")],
    ["Added", dateTime(created * 1000)],
    ["Number", String(number)],
  ]);
  const meter = byId("quota");
  meter.hidden = quotaBytes === null;
  if (quotaBytes !== null) {
    meter.max = Math.max(quotaBytes, 1);
    meter.high = meter.max * 0.9;
    meter.value = usage.bytes;
    meter.setAttribute("aria-label", `Quota used: ${used}`);
  }
}

function showVault(vault, keptSeconds) {
  const atLeast = vault.isWhole ? "" : "more than ";
  setFacts(byId("vault-facts"), [
    ["Destroyed emails", `${atLeast}${count(vault.emails)}`],
    ["Size", `${atLeast}${bytes(vault.bytes)}`],
    ["Last destroyed", vault.newest === null ? null : dateTime(vault.newest * 1000)],
    ["First destroyed", vault.oldest === null || !vault.isWhole ? null : dateTime(vault.oldest * 1000)],
    ["Kept for", duration(keptSeconds * 1000)],
  ]);
}

function mailboxRow({ path, role, emails, unread, bytes: size }) {
  const cell = (...children) => el("td", { role: "cell" }, children);
  return el("tr", { role: "row" },
    cell(el("span", { class: "name" }, path), role ? el("span", { class: "muted" }, ` ${role}`) : null),
    cell(plural(emails, "email")),
    cell(unread === 0 ? "all read" : `${count(unread)} unread`),
    cell(bytes(size)),
  );
}

function showLogins({ passwords, tokens, mayUse, usedBy }) {
  const since = (created) => `since ${dateTime(created * 1000)}`;
  const shared = ({ address: other, access }) => [el("a", { href: linkToAccount(other) }, other), access === "write" ? " reads and writes" : " reads"];
  const lines = [
    ...passwords.map(({ name, created }) => [name === null ? "its own password" : `password of ${name}`, `, ${since(created)}`]),
    ...tokens.map(({ name, created, expires, scopes }) => [
      `token ${name} (${scopes.join(", ")})`, `, ${since(created)}`, expires === null ? "" : `, until ${dateTime(expires * 1000)}`,
    ]),
    ...usedBy.map(shared),
    ...mayUse.map(({ address: other, access }) => [access === "write" ? "reads and writes " : "reads ", el("a", { href: linkToAccount(other) }, other)]),
  ];
  const list = byId("logins");
  const key = JSON.stringify([passwords, tokens, mayUse, usedBy]);
  if (list.dataset.shown === key) return;
  list.dataset.shown = key;
  list.replaceChildren(...(lines.length === 0 ? [["Nobody can log in: it has no password and no token."]] : lines).map((parts) => el("li", {}, parts)));
}

async function showDeliveries(account, number) {
  const note = byId("account-deliveries-note");
  try {
    const answer = await get(`admin/v1/mail/deliveries?${query({ account, limit: DELIVERIES_SHOWN })}`);
    if (number !== asked) return;
    fillTable(byId("account-deliveries-scroll"), byId("account-deliveries-rows"), answer.deliveries, deliveryRow);
    setText(note, deliveriesText(answer, "Nothing was delivered to it in the last days."));
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (number === asked) setText(note, `Deliveries did not come: ${error.message}`);
  }
}
