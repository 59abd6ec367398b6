// Small helpers around the document. Strings become text nodes and never markup, whatever they contain.

export const byId = (id) => document.getElementById(id);

/** Makes an element. `properties` are attributes, but for `class`, `on` (listeners) and booleans. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      element.setAttribute(key, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replaces an element's text, and leaves the document alone when it is unchanged. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows pairs of names and values in a definition list. A value is a text or a node; pairs without one are left out. */
export function setFacts(list, facts, wrap = false) {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const pairs = shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  const next = el("dl", {}, wrap ? pairs.map((pair) => el("div", {}, pair)) : pairs.flat());
  if (next.textContent !== list.textContent) list.replaceChildren(...next.childNodes);
}

/**
 * Keeps rows in step with items: a row whose item is still there stays the same element, so that focus stays where it is.
 */
export function keepRows(body, items, keyOf, make) {
  const rows = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const wanted = items.map((item) => {
    const key = keyOf(item);
    const row = rows.get(key) ?? make(item);
    row.dataset.key = key;
    rows.delete(key);
    return row;
  });
  for (const gone of rows.values()) gone.remove();
  wanted.forEach((row, index) => {
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
  });
}

/** Asks whether something is to be done. */
export function confirm({ title, text, yes, no }) {
  const dialog = byId("confirm");
  for (const [name, shown] of Object.entries({ title, text, yes, no })) setText(byId(`confirm-${name}`), shown);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

let toastTimer;

/** Shows a brief message, which screen readers announce. */
export function toast(text) {
  const place = byId("toast");
  place.textContent = text;
  place.classList.add("is-shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => {
    place.classList.remove("is-shown");
    place.textContent = "";
  }, 2500);
}

/** Copies a text, and shows a message about it. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`);
  } catch {
    toast("The browser did not allow to copy");
  }
}
