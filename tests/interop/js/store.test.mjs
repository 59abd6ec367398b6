// js-waku queries history: three kinds of queries, both directions, by hash, by time, over many pages.

import assert from "node:assert/strict";
import { after, before } from "node:test";

import { connect, hexOf, scenario, textOf } from "./node.mjs";
import { CLUSTER, inArchiveOrder, Message, startServer } from "./server.mjs";

const SHARD = 0;
const PUBSUB_TOPIC = `/waku/2/rs/${CLUSTER}/${SHARD}`;
const TALK = "/interop/1/talk/proto";
const ASIDE = "/interop/1/aside/proto";
const NOBODY = "/interop/1/nobody/proto";

const MESSAGES = 1000;
const PAGE = 100;
/** What js-waku gets when it names no limit. */
const PAGE_DEFAULT = 20;
/** js-waku cuts longer ranges into pieces of this length; one ends where the next begins. */
const PIECE_MS = 24 * 3600 * 1000;
/** js-waku reckons the nanoseconds of a time range in floating point: they are right in every fourth millisecond alone. */
const EXACT_MS = 4;

let server, node, start, talk, aside;
const texts = (messages) => messages.map((message) => message.text);
const timestampMs = (message) => Number(message.timestamp / 1_000_000n);
const decoder = (contentTopic) => node.createDecoder({ contentTopic, shardId: SHARD });
const storeScenario = (name, run) => scenario(name, () => [server], run);

/** Two messages a millisecond with the same timestamp: only the hash puts those in order. */
function messagesOf(contentTopic, count) {
  const at = (i) => BigInt(start + Math.floor(i / 2)) * 1_000_000n;
  return Array.from({ length: count }, (_, i) => new Message(PUBSUB_TOPIC, contentTopic, `${contentTopic} ${i}`, at(i)));
}

/** All messages of a query with its pages kept apart. */
async function pagesOf(decoders, options) {
  const pages = [];
  for await (const page of node.store.queryGenerator(decoders, options)) {
    const decoded = await Promise.all(page);
    assert.ok(decoded.every(Boolean), "js-waku could decode every message");
    pages.push(decoded.map(textOf));
  }
  return pages;
}

/** The newest page comes first, and in each the oldest message. */
function backward(messages, page = PAGE) {
  const pages = [];
  for (let end = messages.length; end > 0; end -= page) pages.push(texts(messages.slice(Math.max(0, end - page), end)));
  return pages;
}

function forward(messages, page = PAGE) {
  const pages = [];
  for (let begin = 0; begin < messages.length; begin += page) pages.push(texts(messages.slice(begin, begin + page)));
  return pages;
}

before(async () => {
  server = await startServer("--shard", String(SHARD));
  start = Math.floor((Date.now() - 2000) / EXACT_MS) * EXACT_MS;
  talk = inArchiveOrder(messagesOf(TALK, MESSAGES));
  aside = inArchiveOrder(messagesOf(ASIDE, 50));
  await server.publish(...talk.slice(0, 500), ...aside, ...talk.slice(500));
  node = await connect(server, { clusterId: CLUSTER });
});

after(async () => {
  await node?.stop();
  await server?.stop();
});

storeScenario("the generator reads 10 pages of 100 forward", async () => {
  const pages = await pagesOf([decoder(TALK)], { paginationLimit: PAGE });
  assert.deepEqual(pages, forward(talk));
  assert.equal(pages.length, MESSAGES / PAGE);
});

storeScenario("the generator reads 10 pages of 100 backward", async () => {
  const pages = await pagesOf([decoder(TALK)], { paginationLimit: PAGE, paginationForward: false });
  assert.deepEqual(pages, backward(talk));
});

storeScenario("the ordered callback hears every message in order, in both directions", async () => {
  for (const paginationForward of [true, false]) {
    const heard = [];
    await node.store.queryWithOrderedCallback([decoder(TALK)], (message) => void heard.push(textOf(message)), {
      paginationLimit: PAGE,
      paginationForward,
    });
    assert.deepEqual(heard, (paginationForward ? forward(talk) : backward(talk)).flat());
  }
});

storeScenario("the promise callback hears every message, in both directions", async () => {
  for (const paginationForward of [true, false]) {
    const heard = [];
    const hear = async (promise) => void heard.push(textOf(await promise));
    await node.store.queryWithPromiseCallback([decoder(TALK)], hear, { paginationLimit: PAGE, paginationForward });
    assert.deepEqual(heard, (paginationForward ? forward(talk) : backward(talk)).flat());
  }
});

storeScenario("a callback that has heard enough ends the query after its page", async () => {
  const heard = [];
  const enough = (message) => heard.push(textOf(message)) >= 3;
  await node.store.queryWithOrderedCallback([decoder(TALK)], enough, { paginationLimit: PAGE });
  assert.deepEqual(heard, texts(talk.slice(0, PAGE)));
});

storeScenario("without a limit a page has 20 messages", async () => {
  for await (const page of node.store.queryGenerator([decoder(TALK)])) {
    assert.deepEqual((await Promise.all(page)).map(textOf), texts(talk.slice(0, PAGE_DEFAULT)));
    break;
  }
});

storeScenario("messages arrive with the hash, timestamp and topics that they were published with", async () => {
  const expected = new Map(aside.map((message) => [message.text, message]));
  for await (const page of node.store.queryGenerator([decoder(ASIDE)], { paginationLimit: PAGE })) {
    for (const decoded of await Promise.all(page)) {
      const message = expected.get(textOf(decoded));
      assert.equal(decoded.hashStr, message.hash);
      assert.equal(decoded.proto.timestamp, message.timestamp);
      assert.equal(decoded.contentTopic, ASIDE);
      assert.equal(decoded.pubsubTopic, PUBSUB_TOPIC);
      assert.equal(decoded.ephemeral, false);
      expected.delete(message.text);
    }
  }
  assert.equal(expected.size, 0);
});

storeScenario("a cursor made of a message goes on behind it", async () => {
  const decoded = [];
  await node.store.queryWithOrderedCallback([decoder(ASIDE)], (message) => void decoded.push(message));
  const paginationCursor = node.store.createCursor(decoded[9]);
  assert.equal(hexOf(paginationCursor), aside[9].hash);
  const options = { paginationCursor, paginationLimit: PAGE };
  assert.deepEqual(await pagesOf([decoder(ASIDE)], options), [texts(aside.slice(10))]);
  const before = { ...options, paginationForward: false };
  assert.deepEqual(await pagesOf([decoder(ASIDE)], before), [texts(aside.slice(0, 9))]);
});

storeScenario("messages are found by their hashes, over pages too", async () => {
  // js-waku sends the pubsub topic along with the hashes.
  const wanted = inArchiveOrder([...talk.slice(100, 125), ...aside.slice(5, 10)]);
  const messageHashes = wanted.map((message) => Buffer.from(message.hash, "hex")).reverse();
  const decoders = [decoder(TALK), decoder(ASIDE)];
  const pages = await pagesOf(decoders, { messageHashes, includeData: true });
  assert.deepEqual(pages, forward(wanted, PAGE_DEFAULT));
  const one = await pagesOf(decoders, { messageHashes: messageHashes.slice(0, 1), includeData: true });
  assert.deepEqual(one, [texts(wanted.slice(-1))]);
});

storeScenario("an unknown hash finds nothing, beside a known one just that", async () => {
  const unknown = Buffer.alloc(32, 7);
  const decoders = [decoder(TALK)];
  assert.deepEqual(await pagesOf(decoders, { messageHashes: [unknown] }), []);
  const messageHashes = [unknown, Buffer.from(talk[0].hash, "hex")];
  assert.deepEqual(await pagesOf(decoders, { messageHashes }), [[talk[0].text]]);
});

storeScenario("a time range begins with its start and ends before its end", async () => {
  const [timeStart, timeEnd] = [new Date(start + 100), new Date(start + 200)];
  const inRange = talk.filter((message) => timestampMs(message) >= start + 100 && timestampMs(message) < start + 200);
  assert.equal(inRange.length, 200);
  for (const paginationForward of [true, false]) {
    const pages = await pagesOf([decoder(TALK)], { timeStart, timeEnd, paginationLimit: PAGE, paginationForward });
    assert.deepEqual(pages, (paginationForward ? forward : backward)(inRange));
  }
});

storeScenario("a time range before everything is empty", async () => {
  const [timeStart, timeEnd] = [new Date(start - 60_000), new Date(start)];
  assert.deepEqual(await pagesOf([decoder(TALK)], { timeStart, timeEnd }), []);
});

storeScenario("messages on the edge of two pieces of a long range come once", async () => {
  const edge = start + 2 * EXACT_MS;
  const [timeStart, timeEnd] = [new Date(edge - PIECE_MS), new Date(edge + PIECE_MS + EXACT_MS)];
  const heard = (await pagesOf([decoder(ASIDE)], { timeStart, timeEnd, paginationLimit: PAGE })).flat();
  assert.deepEqual(heard, texts(aside));
});

storeScenario("two content topics come mixed in the archive's order", async () => {
  const both = inArchiveOrder([...talk, ...aside]);
  const pages = await pagesOf([decoder(TALK), decoder(ASIDE)], { paginationLimit: PAGE });
  assert.deepEqual(pages, forward(both));
});

storeScenario("a topic with nothing has no page", async () => {
  for (const paginationForward of [true, false]) {
    assert.deepEqual(await pagesOf([decoder(NOBODY)], { paginationForward }), []);
  }
});

storeScenario("long messages come in pages that js-waku can read", async () => {
  // It aborts on an answer of more than 4 MiB, such as 100 messages of 140 KB.
  const topic = "/interop/1/long/proto";
  const now = Date.now(); // earlier scenarios can take longer than messages may be late
  const message = (i) => new Message(PUBSUB_TOPIC, topic, `${i} `.padEnd(140_000, "long "), BigInt(now + i) * 1_000_000n);
  const long = Array.from({ length: 40 }, (_, i) => message(i));
  await server.publish(...long);
  for (const paginationForward of [true, false]) {
    const pages = await pagesOf([decoder(topic)], { paginationLimit: PAGE, paginationForward });
    assert.deepEqual((paginationForward ? pages : pages.reverse()).flat(), texts(long));
  }
});
