// Accounts, and mail that is delivered by LMTP and SMTP.

import { createServer, connect } from "node:net";
import { createInterface } from "node:readline";

/** A port of loopback that is free now. */
export function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** Does an operation of the directory. */
export async function operate(server, operation) {
  const body = JSON.stringify({ by: "the test", operation });
  const answer = await fetch(`${server.url}/admin/v1/directory`, { method: "POST", headers: { "content-type": "application/json" }, body });
  if (!answer.ok) throw new Error(`${operation.do}: ${answer.status} ${await answer.text()}`);
}

export async function addAccount(server, address, password, quotaBytes = null) {
  await operate(server, { do: "add_account", address, password: { given: password }, role: "user", quota_bytes: quotaBytes });
}

/** Sends a message by LMTP to one recipient; returns the last reply: to the message, or to the recipient that was refused. */
export const deliver = (port, recipient, text, sender = "bob@example.net") => converse("LHLO", port, recipient, text, sender);

/** The same by SMTP, as other servers send mail. */
export const send = (port, recipient, text, sender) => converse("EHLO", port, recipient, text, sender);

async function converse(greeting, port, recipient, text, sender) {
  const socket = connect(port, "127.0.0.1");
  const lines = createInterface(socket)[Symbol.asyncIterator]();
  const reply = async () => {
    for (;;) {
      const { value, done } = await lines.next();
      if (done) throw new Error("the connection ended");
      if (value[3] === " ") return value;
    }
  };
  try {
    await reply();
    let last;
    for (const command of [`${greeting} client.example`, `MAIL FROM:<${sender}>`, `RCPT TO:<${recipient}>`, "DATA"]) {
      socket.write(`${command}\r\n`);
      last = await reply();
      if (!/^[23]/.test(last)) return last;
    }
    socket.write(`${text.replace(/\r?\n/g, "\r\n")}\r\n.\r\n`);
    return await reply();
  } finally {
    socket.destroy();
  }
}
