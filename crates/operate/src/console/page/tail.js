// The live tail: messages as they arrive, by the server's event stream. When the connection breaks it is reopened where it broke
// off; messages from shortly before are then sent again, and are recognized by their hash, or by being older than the tail.

import { Failure, parse, query, readEvents, send } from "./api.js";

const RETRY_MS = 1_000;
const RETRY_MS_MAX = 15_000;
/** The server sends something at least every quarter of this: when it doesn't, the connection is dead. */
const SILENCE_MS_MAX = 60_000;
/** The most hashes that are remembered: more than the messages that are sent again. */
const KNOWN_MAX = 10_000;

export class Tail {
  /** `take` gets each message, `tell` the stream's changes of state: a kind and a text for people. */
  constructor(fields, { take, tell }) {
    this.fields = fields;
    this.take = take;
    this.tell = tell;
    this.controller = new AbortController();
    this.cursor = undefined;
    this.known = new Set();
    this.run();
  }

  stop() {
    this.controller.abort();
  }

  async run() {
    const { signal } = this.controller;
    let wait = RETRY_MS;
    while (!signal.aborted) {
      try {
        this.tell("opening", "connecting");
        const path = `live?${query({ ...this.fields, cursor: this.cursor })}`;
        const response = await send(path, { accept: "text/event-stream", signal });
        wait = RETRY_MS;
        // By the server's clock, as messages are.
        this.begun ??= BigInt(Date.parse(response.headers.get("date")) || Date.now()) * 1_000_000n;
        this.isCatchingUp = this.cursor !== undefined;
        this.tell("live", "connected");
        this.ended = undefined;
        await readEvents(response, (event) => this.handle(event), SILENCE_MS_MAX);
        if (this.ended) return this.tell("ended", this.ended);
        this.tell("waiting", "the stream broke off, trying again");
      } catch (error) {
        if (signal.aborted) return;
        const isFinal = error instanceof Failure && error.status >= 400 && error.status < 500;
        // The message after which we wanted to continue may have been removed meanwhile.
        if (isFinal && this.cursor) this.cursor = undefined;
        else if (isFinal) return this.tell("ended", error.message);
        else this.tell("waiting", error instanceof Failure ? error.message.replace(/\.$/, "") : "the stream broke off");
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, RETRY_MS_MAX);
    }
  }

  handle({ event, id, data }) {
    if (this.controller.signal.aborted) return;
    this.cursor = id ?? this.cursor;
    if (event === "message") {
      const { messageHash, pubsubTopic, ...message } = parse(data);
      const isFromBefore = this.isCatchingUp && BigInt(message.timestamp ?? 0) < this.begun;
      if (this.isNew(messageHash) && !isFromBefore) this.take({ messageHash, pubsubTopic, message });
    } else if (event === "live") {
      this.isCatchingUp = false;
    } else if (event === "end") {
      this.takeLeave(JSON.parse(data));
    }
  }

  isNew(hash) {
    if (this.known.has(hash)) return false;
    this.known.add(hash);
    if (this.known.size > KNOWN_MAX) this.known.delete(this.known.values().next().value); // the oldest: sets keep their order
    return true;
  }

  /** Readers that were too slow, and those of a server that is full, stops or can't continue now, reconnect; closed ones don't. */
  takeLeave({ reason, text }) {
    const comesAgain = ["slow", "full", "unavailable", "stopping", "lost", "expired"].includes(reason);
    if (!comesAgain) this.ended = text ?? reason;
  }
}
