// The console page: which view is shown, and what the keyboard does.

import { byId } from "./dom.js";
import { addressOf, closeDetail, move, newer, older, openAddress, startMessages, toggleTail } from "./messages.js";
import { startOverview } from "./overview.js";

const VIEWS = ["overview", "messages", "mail", "account", "queue", "quarantine", "dmarc"];
/** The views that belong to another one in the list of views. */
const BELOW = { account: "mail", queue: "mail", quarantine: "mail", dmarc: "mail" };
const TITLES = {
  overview: "restante", messages: "Messages – restante", mail: "Mail – restante", account: "Account – restante",
  queue: "Outgoing mail – restante", quarantine: "Quarantine – restante", dmarc: "DMARC – restante",
};
const SHORTCUTS_KEY = "restante-shortcuts";

/** The part of the address after `#` names the view and, for messages, what is searched. */
function readAddress() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: VIEWS.includes(path) ? path : "overview", search };
}

let view;
let hasSearched = false;

function showView() {
  const address = readAddress();
  view = address.view;
  for (const name of VIEWS) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === (BELOW[view] ?? view)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = TITLES[view];
  const isNews = !hasSearched || address.search !== addressOf().replace("?", "");
  if (view === "messages" && isNews) {
    hasSearched = true;
    openAddress(address.search);
  }
  openMailView(address.search).catch((error) => console.error(error));
}

/** What only servers with mail need is loaded when it is first opened. */
async function openMailView(search) {
  if (view === "mail") (await import("./mail.js")).openMail();
  if (view === "account") (await import("./account.js")).openAccount(search);
  if (view === "queue") (await import("./queue.js")).openQueue(search);
  if (view === "quarantine") (await import("./quarantine.js")).openQuarantine(search);
  if (view === "dmarc") (await import("./dmarc.js")).openDmarc(search);
}

function goTo(wanted) {
  location.hash = document.querySelector(`[data-view="${wanted}"]`).getAttribute("href");
}

/** Runs something in the message view, once it is shown. */
function inMessages(act) {
  if (view !== "messages") {
    goTo("messages");
    showView();
  }
  act();
}

const KEYS = {
  "/": () => inMessages(() => byId("topic").focus()),
  j: () => view === "messages" && move(1),
  k: () => view === "messages" && move(-1),
  n: () => view === "messages" && older(),
  p: () => view === "messages" && newer(),
  l: () => inMessages(toggleTail),
  o: () => goTo("overview"),
  m: () => goTo("messages"),
  e: () => document.body.classList.contains("has-no-mail") || goTo("mail"),
  "?": openHelp,
};

function openHelp() {
  byId("help").showModal();
}

const isTyped = (target) => target.closest?.("input:not([type=radio], [type=checkbox]), select, textarea") !== null;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const modal = document.querySelector("dialog:modal");
  if (event.key === "Escape" && !modal) {
    if (isTyped(event.target)) event.target.blur();
    else closeDetail();
    return;
  }
  // WCAG 2.2, 2.1.4: shortcuts of a single key can be switched off, for those who use speech input.
  if (!byId("shortcuts").checked || isTyped(event.target)) return;
  const act = KEYS[event.key];
  const isOver = modal && !(modal.id === "detail" && ["j", "k"].includes(event.key));
  if (!act || isOver) return;
  event.preventDefault();
  act();
}

function start() {
  byId("help-open").addEventListener("click", openHelp);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address names the view, and not a place on the page
    byId("main").focus();
  });
  byId("shortcuts").checked = localStorage.getItem(SHORTCUTS_KEY) !== "off";
  byId("shortcuts").addEventListener("change", ({ target }) => localStorage.setItem(SHORTCUTS_KEY, target.checked ? "on" : "off"));
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", showView);
  startMessages();
  showView();
  startOverview();
}

start();
