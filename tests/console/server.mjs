// Starts `restante serve` on a port of loopback that it keeps across restarts, and uses its REST interface.

import { spawn } from "node:child_process";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

export const PUBSUB = "/waku/2/rs/42/0";
/** Until something that is on its way is there: generous, for a busy machine. */
export const PATIENCE_MS = 30_000;
/** Lines of the server's log that are shown beside a failure. */
const LOG_LINES_SHOWN = 60;

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

export class Server {
  constructor(flags) {
    this.flags = flags;
    this.folder = mkdtempSync(join(tmpdir(), "restante-console-"));
    this.logFile = join(this.folder, "server.log");
    this.port = 0;
  }

  static async start(...flags) {
    if (!process.env.RESTANTE_BIN) throw new Error("RESTANTE_BIN is not set: start the tests by tests/console/run");
    const server = new Server(flags);
    await server.start();
    return server;
  }

  /** Writes a file beside the server's data, and names it. */
  file(name, text) {
    const path = join(this.folder, name);
    writeFileSync(path, text);
    return path;
  }

  async start() {
    const settings = ["--data", join(this.folder, "data"), "--rest-port", String(this.port), "--tcp-port", "0"];
    const log = openSync(this.logFile, "a");
    const flags = this.flags.map((flag) => (typeof flag === "function" ? flag(this) : flag));
    const options = { cwd: this.folder, env: plainEnvironment(), stdio: ["ignore", "pipe", log] };
    this.child = spawn(process.env.RESTANTE_BIN, ["serve", "--cluster-id", "42", "--shard", "0", ...settings, ...flags], options);
    closeSync(log);
    this.ended = new Promise((resolve) => this.child.once("exit", resolve));
    const first = new Promise((resolve) => createInterface(this.child.stdout).once("line", resolve));
    const line = await Promise.race([first, this.ended.then((code) => `it ended: ${code}`), sleep(PATIENCE_MS, "nothing")]);
    const address = /^listening on http:\/\/(127\.0\.0\.1|0\.0\.0\.0):(\d+)$/.exec(line);
    if (!address) throw new Error(`the server does not listen: ${line}\n${this.log()}`);
    this.port = Number(address[2]);
    this.url = `http://127.0.0.1:${this.port}`;
  }

  /** The end of its log. */
  log() {
    return readFileSync(this.logFile, "utf8").trimEnd().split("\n").slice(-LOG_LINES_SHOWN).join("\n");
  }

  async kill() {
    this.child.kill("SIGKILL");
    await this.ended;
  }

  /** Stops it as a service manager does. */
  async stop() {
    this.child.kill("SIGTERM");
    await this.ended;
  }

  async remove() {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  async get(path) {
    const response = await fetch(this.url + path, { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!response.ok) throw new Error(`GET ${path}: ${response.status} ${await response.text()}`);
    return response.json();
  }

  /** Publishes a message; its payload is a text or bytes. */
  async publish(contentTopic, payload, more = {}) {
    const body = { payload: Buffer.from(payload).toString("base64"), contentTopic, version: 0, ...more };
    const response = await fetch(`${this.url}/relay/v1/messages/${encodeURIComponent(PUBSUB)}`, {
      method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (!response.ok) throw new Error(`publish: ${response.status} ${await response.text()}`);
  }
}
