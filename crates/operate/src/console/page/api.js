// Sends requests to the server. All requests use this: it adds the credentials, and shows whether the server is reachable.

import { byId } from "./dom.js";

const CREDENTIALS_KEY = "restante-credentials";
/** How long an answer may take. */
const PATIENCE_MS = 30_000;

/** The server did not answer, or refused. `status` is 0 when it did not answer. */
export class Failure extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The header `Authorization`, once the operator has logged in. */
const stored = () => sessionStorage.getItem(CREDENTIALS_KEY);

/**
 * Sends a request, and again once credentials were asked for: each time the server has `patienceMs` to answer in full, if that is
 * given. Paths are relative to the page's, which may stand below a proxy's. A body is JSON.
 */
export async function send(path, { method = "GET", accept = "application/json", body, signal, patienceMs } = {}) {
  for (;;) {
    const authorization = stored();
    const headers = { accept, ...(authorization && { authorization }), ...(body && { "content-type": "application/json" }) };
    const signals = [signal, patienceMs && AbortSignal.timeout(patienceMs)].filter(Boolean);
    let response;
    try {
      response = await fetch(path, { method, headers, body, signal: AbortSignal.any(signals), cache: "no-store", redirect: "error" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Failure(0, "The server does not answer.");
    }
    if (response.status === 401) {
      // Another request may have asked for credentials while this one was in flight.
      if (stored() === authorization) await askCredentials(authorization ? refusedText(authorization) : "");
      continue;
    }
    if (!response.ok) throw new Failure(response.status, (await response.text()).slice(0, 500));
    return response;
  }
}

/** The JSON of an answer. Timestamps are nanoseconds, which exceed a number's precision: they are returned as strings. */
export async function get(path, { signal, patienceMs = PATIENCE_MS } = {}) {
  const response = await send(path, { signal, patienceMs });
  return parse(await readText(response));
}

export async function remove(path) {
  await send(path, { method: "DELETE", patienceMs: PATIENCE_MS });
}

/** Sends JSON; returns that of the answer. */
export async function post(path, body) {
  const response = await send(path, { method: "POST", body: JSON.stringify(body), patienceMs: PATIENCE_MS });
  return parse(await readText(response));
}

async function readText(response) {
  try {
    return await response.text();
  } catch {
    throw new Failure(0, "The answer broke off.");
  }
}

/** Within a JSON string each quote has a backslash before it, so that this pattern matches only names. */
export const parse = (text) => JSON.parse(text.replace(/"timestamp":(-?\d+)/g, '"timestamp":"$1"'));

/** A query string; empty fields are left out. */
export function query(fields) {
  const shown = Object.entries(fields).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return new URLSearchParams(shown.map(([name, value]) => [name, String(value)])).toString();
}

let asking;

const refusedText = (authorization) => (authorization.startsWith("Basic")
  ? "The name or the password is wrong, or the account is disabled."
  : "The server does not know this token.");

/** With a name the secret is a password, as HTTP Basic sends it in UTF-8 (RFC 7617), and without one a token. */
function authorizationOf(name, secret) {
  if (name === "") return `Bearer ${secret.trim()}`;
  const bytes = new TextEncoder().encode(`${name}:${secret}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** Asks for a token or a log-in, once for all requests that need it. */
function askCredentials(error) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("ask-token");
    const input = byId("token");
    byId("token-error").textContent = error;
    input.value = "";
    const done = () => {
      sessionStorage.setItem(CREDENTIALS_KEY, authorizationOf(byId("operator").value.trim(), input.value));
      input.value = "";
      asking = undefined;
      resolve();
    };
    // Without credentials there is nothing to show: Escape has nothing to return to.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", done, { once: true });
    dialog.showModal();
    input.focus();
  });
  return asking;
}

/**
 * Reads Server-Sent Events of a response until it ends, or until nothing has come for so long, and hands each to `take` as
 * {event, id, data}; those without data, which have an id alone, as "id". The format is that of the HTML standard, §9.2.
 */
export async function readEvents(response, take, silenceMsMax) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let fields = {};
  for (;;) {
    const timer = setTimeout(() => reader.cancel(), silenceMsMax);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (fields.data !== undefined) take({ event: "message", ...fields });
        else if (fields.id !== undefined) take({ event: "id", id: fields.id });
        fields = {};
        continue;
      }
      const [, name, content] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (name === "data" && fields.data !== undefined) fields.data += `\n${content}`;
      else if (name !== "") fields[name] = content;
    }
  }
}
