// js-waku over secure WebSockets, with a certificate that the test creates.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";

import { connect, scenario, textOf } from "./node.mjs";
import { CLUSTER, Message, startServer } from "./server.mjs";

const TOPIC = "/toy/1/secure/proto";
const PUBSUB_TOPIC = `/waku/2/rs/${CLUSTER}/0`;

let folder, server, node;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "restante-interop-wss-"));
  const [certificate, key] = [join(folder, "certificate.pem"), join(folder, "key.pem")];
  const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
  const made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate];
  execFileSync("openssl", [...made, ...subject], { stdio: "ignore" });
  const files = ["--websocket-secure-cert-path", certificate, "--websocket-secure-key-path", key];
  server = await startServer("--shard", "0", "--websocket-secure-support", ...files);
  // The certificate is self-signed. Node.js reads this when it connects.
  process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0";
  node = await connect(server, { clusterId: CLUSTER });
});

after(async () => {
  await node?.stop();
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

scenario("history is read over secure WebSockets", () => [server], async () => {
  assert.match(server.webSocket, /\/tls\/ws\/|\/wss\//, "the server announces a secure address");
  const sent = Array.from({ length: 5 }, (_, n) => new Message(PUBSUB_TOPIC, TOPIC, `secure ${n}`));
  await server.publish(...sent);
  const decoder = node.createDecoder({ contentTopic: TOPIC, shardId: 0 });
  const texts = [];
  for await (const page of node.store.queryGenerator([decoder], { paginationForward: true })) {
    for (const message of await Promise.all(page)) texts.push(textOf(message));
  }
  assert.deepEqual(texts.sort(), sent.map((message) => message.text));
});
