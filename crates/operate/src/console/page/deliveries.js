// Rows of deliveries, which the page of mail and that of an account show.

import { el } from "./dom.js";
import { bytes, count, dateTime } from "./format.js";

export const linkToAccount = (address) => `#/account?${new URLSearchParams({ address })}`;

const OUTCOMES = {
  delivered: ["delivered", "good"],
  repeated: ["delivered before", "good"],
  deferred: ["deferred", "warn"],
  refused: ["refused", "bad"],
  broken_off: ["broken off", "bad"],
  queued: ["queued", "good"],
  sent: ["sent", "good"],
  postponed: ["postponed", "warn"],
  failed: ["failed", "bad"],
  reported: ["reported", "warn"],
  junk: ["to Junk", "warn"],
  quarantined: ["to quarantine", "warn"],
  released: ["released", "good"],
  not_released: ["not released", "bad"],
  dropped: ["dropped", "bad"],
};

/** Fills a table within a part that scrolls; without items the part is hidden. */
export function fillTable(scroll, body, items, row) {
  scroll.hidden = items.length === 0;
  const key = JSON.stringify(items);
  if (body.dataset.shown === key) return;
  body.dataset.shown = key;
  body.replaceChildren(...items.map(row));
}

/** The text above a list of deliveries; `none` when there are none. */
export function deliveriesText({ deliveries, hasMore, isOn }, none) {
  if (!isOn) return "The delivery journal is switched off (mail.journal.days).";
  if (deliveries.length === 0) return none;
  return hasMore ? `The newest ${count(deliveries.length)}:` : "";
}

/** A delivery. It contains nothing of the message's content. */
export function deliveryRow(delivery) {
  const { at, outcome, reason, code, status, sender, recipient, address, peer, hello, listener, isTls, bytes: size, id } = delivery;
  const [text, kind] = OUTCOMES[outcome] ?? [outcome, "warn"];
  const why = [code, status, reason].filter((part) => part !== undefined && part !== null && part !== "").join(" ");
  const to = address && address !== recipient ? `${recipient} → ${address}` : recipient;
  const from = [hello, peer && `[${peer}]`].filter(Boolean).join(" ");
  const cell = (...children) => el("td", { role: "cell" }, children);
  return el("tr", { role: "row" },
    cell(dateTime(at)),
    cell(el("span", { class: `outcome ${kind}` }, text), why === "" ? null : el("span", { class: "muted" }, ` ${why}`)),
    cell(sender === "" ? "<>" : sender, " → ", address ? el("a", { href: linkToAccount(address) }, to) : to),
    cell(`${listener.toUpperCase()}${isTls ? ", TLS" : ""}`, el("span", { class: "muted" }, from === "" ? "" : ` ${from}`, ` id ${id}`)),
    cell(size > 0 ? bytes(size) : ""),
  );
}
