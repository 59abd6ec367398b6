// A name server that knows the TXT records of a test, and answers for every other name that it does not exist (RFC 1035).

import { createSocket } from "node:dgram";

const TXT = 16;
const NAME_ERROR = 3;

/** Answers on a port of loopback. `records` are texts by their names in lower case. */
export async function answerNames(records) {
  const socket = createSocket("udp4");
  socket.on("message", (request, peer) => socket.send(answer(request, records), peer.port, peer.address));
  await new Promise((resolve, reject) => {
    socket.once("error", reject);
    socket.bind(0, "127.0.0.1", resolve);
  });
  return { port: socket.address().port, close: () => socket.close() };
}

function answer(request, records) {
  const labels = [];
  let at = 12;
  while (request[at] !== 0) {
    labels.push(request.toString("latin1", at + 1, at + 1 + request[at]));
    at += 1 + request[at];
  }
  const question = request.subarray(12, at + 5);
  const name = labels.join(".").toLowerCase();
  const isKnown = Object.keys(records).some((known) => known === name || known.endsWith(`.${name}`));
  const text = request.readUInt16BE(at + 1) === TXT ? records[name] : undefined;
  const header = Buffer.alloc(12);
  request.copy(header, 0, 0, 2);
  header.writeUInt16BE(0x8180 | (isKnown ? 0 : NAME_ERROR), 2);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(text === undefined ? 0 : 1, 6);
  if (text === undefined) return Buffer.concat([header, question]);
  const record = Buffer.alloc(13);
  record.writeUInt16BE(0xc00c, 0); // the name of the question
  record.writeUInt16BE(TXT, 2);
  record.writeUInt16BE(1, 4);
  record.writeUInt32BE(60, 6);
  record.writeUInt16BE(text.length + 1, 10);
  record[12] = text.length;
  return Buffer.concat([header, question, record, Buffer.from(text, "latin1")]);
}
