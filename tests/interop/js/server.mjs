// Starts `restante serve` on free ports in a folder of its own, and uses its REST interface.

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

export const CLUSTER = 42;
/** Until the server listens, and until something that is on its way arrives: generous, for a busy machine. */
const PATIENCE_MS = 20_000;
/** How long a server may take to finish after SIGTERM before it is killed. */
const GRACE_MS = 10_000;
/** Requests at once when many messages are published. */
const PUBLISHERS = 16;
/** Lines of the server's log that are shown beside a failure. */
const LOG_LINES_SHOWN = 120;

/** Fails with what was waited for instead of hanging. */
export async function within(what, promise, ms = PATIENCE_MS) {
  const stop = new AbortController();
  const late = sleep(ms, undefined, { signal: stop.signal }).then(() => {
    throw new Error(`not within ${ms} ms: ${what}`);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    stop.abort();
    late.catch(() => {});
  }
}

/** Asks again and again until the answer is truthy. */
export async function until(what, ask, ms = PATIENCE_MS) {
  const deadline = Date.now() + ms;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    if (Date.now() > deadline) throw new Error(`not within ${ms} ms: ${what}`);
    await sleep(50);
  }
}

/** The settings of the person who runs the tests are not for this server. */
function plainEnvironment() {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("RESTANTE_")));
}

export async function startServer(...flags) {
  const binary = process.env.RESTANTE_BIN;
  if (!binary) throw new Error("RESTANTE_BIN is not set: start the tests by tests/interop/run");
  const folder = mkdtempSync(join(tmpdir(), "restante-interop-"));
  const logFile = join(folder, "server.log");
  const log = openSync(logFile, "w");
  const settings = [
    ...["--data", join(folder, "data"), "--rest-port", "0", "--tcp-port", "0"],
    ...["--websocket-support", "--websocket-port", "0", "--cluster-id", String(CLUSTER)],
    ...["--log-level", process.env.RESTANTE_INTEROP_LOG || "info"],
  ];
  const options = { cwd: folder, env: plainEnvironment(), stdio: ["ignore", "pipe", log] };
  const child = spawn(binary, ["serve", ...settings, ...flags], options);
  closeSync(log);
  const server = new Server(child, folder, logFile);
  try {
    await server.listening();
  } catch (error) {
    server.complain();
    await server.stop();
    throw error;
  }
  return server;
}

class Server {
  constructor(child, folder, logFile) {
    this.child = child;
    this.folder = folder;
    this.logFile = logFile;
    this.ended = new Promise((resolve) => {
      child.once("exit", (code, signal) => resolve(code ?? signal));
      child.once("error", (error) => resolve(error.message));
    });
    this.firstLine = new Promise((resolve) => createInterface(child.stdout).once("line", resolve));
  }

  /** Reads the addresses: REST's from the first line, libp2p's from `/info`. */
  async listening() {
    const ended = this.ended.then((how) => {
      throw new Error(`the server ended: ${how}`);
    });
    ended.catch(() => {});
    const line = await within("the server's first line", Promise.race([this.firstLine, ended]));
    const address = /^listening on (http:\/\/\S+)$/.exec(line);
    if (!address) throw new Error(`not an address: ${line}`);
    this.rest = address[1];
    const addresses = await until("addresses with the peer id in /info", async () => {
      const { listenAddresses } = await this.get("/info");
      const withPeer = listenAddresses.filter((each) => each.includes("/p2p/"));
      return withPeer.some((each) => each.includes("/ws/")) ? withPeer : undefined;
    });
    this.webSocket = addresses.find((each) => each.includes("/ws/"));
    this.tcp = addresses.find((each) => !each.includes("/ws/"));
  }

  async get(path) {
    const response = await fetch(this.rest + path, { signal: AbortSignal.timeout(PATIENCE_MS) });
    const text = await response.text();
    if (!response.ok) throw new Error(`GET ${path}: ${response.status} ${text}`);
    return JSON.parse(text);
  }

  async post(path, body) {
    const response = await fetch(this.rest + path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body,
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`POST ${path}: ${response.status} ${text}`);
  }

  /** Publishes to the message's pubsub topic, or to the shard that the server chooses when it names none. */
  async publish(...messages) {
    const left = messages.values();
    const publisher = async () => {
      for (const message of left) {
        const path = message.pubsubTopic
          ? `/relay/v1/messages/${encodeURIComponent(message.pubsubTopic)}`
          : "/relay/v1/auto/messages";
        await this.post(path, message.toJson());
      }
    };
    await Promise.all(Array.from({ length: PUBLISHERS }, publisher));
  }

  /** The payloads that the archive holds under a content topic, as text. */
  async archived(contentTopic) {
    const { messages } = await this.get(
      `/store/v3/messages?includeData=true&pageSize=100&contentTopics=${encodeURIComponent(contentTopic)}`,
    );
    return messages.map(({ message }) => Buffer.from(message.payload, "base64").toString());
  }

  complain() {
    const lines = readFileSync(this.logFile, "utf8").trimEnd().split("\n").slice(-LOG_LINES_SHOWN);
    console.error(`the end of the server's log:\n  ${lines.join("\n  ")}`);
  }

  async stop() {
    this.child.kill("SIGTERM");
    try {
      await within("the server's end after SIGTERM", this.ended, GRACE_MS);
    } finally {
      this.child.kill("SIGKILL");
      rmSync(this.folder, { recursive: true, force: true });
    }
  }
}

/** A message with everything that its hash is made of. */
export class Message {
  constructor(pubsubTopic, contentTopic, text, timestamp = BigInt(Date.now()) * 1_000_000n) {
    this.pubsubTopic = pubsubTopic;
    this.contentTopic = contentTopic;
    this.text = text;
    this.timestamp = timestamp;
  }

  /** 14/WAKU2-MESSAGE, computed without the code under test on either side. */
  get hash() {
    const timestamp = Buffer.alloc(8);
    timestamp.writeBigInt64BE(this.timestamp);
    const parts = [this.pubsubTopic, this.text, this.contentTopic].map((text) => Buffer.from(text));
    return createHash("sha256").update(Buffer.concat([...parts, timestamp])).digest("hex");
  }

  /** Written by hand, since nanoseconds are more than a JavaScript number holds. */
  toJson() {
    const payload = Buffer.from(this.text).toString("base64");
    const topic = JSON.stringify(this.contentTopic);
    return `{"payload":"${payload}","contentTopic":${topic},"timestamp":${this.timestamp},"version":0}`;
  }
}

/** The order of 13/WAKU2-STORE: by timestamp, then by hash. */
export function inArchiveOrder(messages) {
  const key = (message) => `${String(message.timestamp).padStart(20, "0")} ${message.hash}`;
  return messages.toSorted((one, other) => (key(one) < key(other) ? -1 : 1));
}
