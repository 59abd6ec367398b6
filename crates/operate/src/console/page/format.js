// How numbers, times and payloads are shown.

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const minute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" });

export const count = (value) => whole.format(value);
export const shortCount = (value) => (value < 10_000 ? whole.format(value) : compact.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** A rate or another small measure: three digits are enough. */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 10) return String(Number(value.toFixed(value < 1 ? 2 : 1)));
  return shortCount(Math.round(value));
}

/** Milliseconds, in the unit that suits. */
export function millis(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 1) return `${Math.round(value * 1000)} µs`;
  if (value < 1000) return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
  return `${(value / 1000).toFixed(1)} s`;
}

/** Bytes in decimal units, as retention policies count them. */
export function bytes(value) {
  if (value < 1000) return `${value} B`;
  let unit = -1;
  let shown = value;
  do {
    shown /= 1000;
    unit += 1;
  } while (shown >= 999.5 && unit < 3);
  return `${shown < 10 ? shown.toFixed(1) : Math.round(shown)} ${["kB", "MB", "GB", "TB"][unit]}`;
}

/** A length of time in its two largest units. */
export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first === -1) return "0 s";
  const [unit, size] = units[first];
  const text = `${Math.floor(seconds / size)} ${unit}`;
  const next = units[first + 1];
  const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
  return rest > 0 ? `${text} ${rest} ${next[0]}` : text;
}

export const ago = (then, now) => (now - then < 1000 ? "just now" : `${duration(now - then)} ago`);
export const dateTime = (ms) => minute.format(ms);
export const day = (number) => new Date(number * 86_400_000).toISOString().slice(0, 10);

const MILLION = 1_000_000n;

/** The milliseconds of a time in nanoseconds, rounded down. */
export const nanosToMillis = (nanos) => Number(nanos >= 0n ? nanos / MILLION : (nanos - MILLION + 1n) / MILLION);

/** Whether a Date can show it. */
const isShown = (ms) => Math.abs(ms) <= 8.64e15;

/** A time in a list: the clock, and the date when it is not today's. */
export function listTime(nanos) {
  const ms = nanosToMillis(nanos);
  const then = new Date(ms);
  const time = `${clock.format(then)}.${String(((ms % 1000) + 1000) % 1000).padStart(3, "0")}`;
  if (then.toDateString() === new Date().toDateString()) return time;
  const date = [then.getFullYear(), then.getMonth() + 1, then.getDate()].map((part) => String(part).padStart(2, "0"));
  return `${date.join("-")} ${clock.format(then)}`;
}

export const localTime = (nanos) => (isShown(nanosToMillis(nanos)) ? full.format(nanosToMillis(nanos)) : "");

/** RFC 3339 in UTC with nanoseconds. */
export function isoTime(nanos) {
  const ms = nanosToMillis(nanos);
  if (!isShown(ms)) return `${nanos} ns`;
  const fraction = ((nanos % (1000n * MILLION)) + 1000n * MILLION) % (1000n * MILLION);
  return `${new Date(ms).toISOString().slice(0, -5)}.${String(fraction).padStart(9, "0")}Z`;
}

export function fromBase64(text) {
  const binary = atob(text);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
// Text that people have written has no control characters other than tab, line feed and carriage return.
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/;

/** A payload as text, or null when it is not text. */
export function asText(payload) {
  try {
    const text = strict.decode(payload);
    return CONTROLS.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** Text that is JSON with its lines indented, or null. Numbers and texts stay as they were written. */
export function asJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indent(text);
}

function indent(text) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g) ?? [];
  const lines = [];
  let line = "";
  let depth = 0;
  const end = () => {
    lines.push(line);
    line = "  ".repeat(Math.min(depth, 40)); // deeper ones than that would stand outside of every window
  };
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    const isEmpty = (token === "{" && next === "}") || (token === "[" && next === "]");
    const closesEmpty = (token === "}" && tokens[index - 1] === "{") || (token === "]" && tokens[index - 1] === "[");
    if ((token === "}" || token === "]") && !closesEmpty) {
      depth -= 1;
      end();
    }
    line += token === ":" ? ": " : token;
    if (token === ",") end();
    if ((token === "{" || token === "[") && !isEmpty) {
      depth += 1;
      end();
    }
  });
  return [...lines, line].join("\n");
}

/** Bytes as hexadecimal digits, in the shape that `hexdump -C` gives them. */
export function hexDump(payload) {
  const lines = [];
  for (let at = 0; at < payload.length; at += 16) {
    const row = payload.subarray(at, at + 16);
    const digits = [...row].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = [...row].map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

export const hexDigits = (payload) => [...payload].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** The beginning of a payload, on one line. */
export function preview(payload, length = 160) {
  const head = payload.subarray(0, length * 4);
  const text = asText(head) ?? cutText(head);
  if (text === null) return hexDigits(payload.subarray(0, length / 2)).replace(/(..)(?=.)/g, "$1 ");
  return text.replace(/\s+/g, " ").trim().slice(0, length);
}

/** The text of bytes that may have been cut within a letter. */
function cutText(head) {
  for (let cut = 1; cut < 4 && cut < head.length; cut += 1) {
    const text = asText(head.subarray(0, head.length - cut));
    if (text !== null) return text;
  }
  return null;
}
