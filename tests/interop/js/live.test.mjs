// js-waku subscribes by filter and publishes by lightpush, through one server and over relay to a second one.

import assert from "node:assert/strict";
import { after, before } from "node:test";

import { connect, scenario, textOf } from "./node.mjs";
import { CLUSTER, Message, startServer, until } from "./server.mjs";

const SHARD = 0;
const PUBSUB_TOPIC = `/waku/2/rs/${CLUSTER}/${SHARD}`;

/** More than the 100 streams that js-waku lets a server open at once. */
const MANY = 250;

let near, far, node, other;
const decoderOf = (contentTopic) => node.createDecoder({ contentTopic, shardId: SHARD });
const encoderOf = (contentTopic, more) => node.createEncoder({ contentTopic, shardId: SHARD, ...more });
const message = (contentTopic, text) => new Message(PUBSUB_TOPIC, contentTopic, text);
const liveScenario = (name, run) => scenario(name, () => [near, far], run);

/** Follows a topic; what is heard lands in the list, in the order of arrival. */
async function follow(follower, contentTopic) {
  const heard = [];
  const decoder = decoderOf(contentTopic);
  const hear = (decoded) => void heard.push(textOf(decoded));
  assert.equal(await follower.filter.subscribe(decoder, hear), true, "the server accepted the subscription");
  return { heard, stop: () => follower.filter.unsubscribe(decoder) };
}

const arrived = (heard, texts) =>
  until(`${texts.length} messages by filter; there are ${heard.length}: ${heard}`, () => texts.every((text) => heard.includes(text)));

/** The one test of lightpush that all its versions share. */
async function pushed(contentTopic, options) {
  const { heard, stop } = await follow(other, contentTopic);
  const sent = await node.lightPush.send(
    encoderOf(contentTopic),
    { payload: Buffer.from("pushed") },
    { autoRetry: false, ...options },
  );
  assert.deepEqual(sent.failures, []);
  assert.equal(sent.successes.length, 1);
  assert.deepEqual(await near.archived(contentTopic), ["pushed"], "it is in the archive once it is acknowledged");
  await arrived(heard, ["pushed"]);
  await until("the message in the archive of the relay peer", async () => (await far.archived(contentTopic)).length === 1);
  await stop();
}

before(async () => {
  near = await startServer("--shard", String(SHARD));
  far = await startServer("--shard", String(SHARD), "--staticnode", near.tcp);
  node = await connect(near, { clusterId: CLUSTER });
  other = await connect(near, { clusterId: CLUSTER });
  // Before relay connects the two servers, the far one receives nothing that is published.
  const topic = "/interop/1/joined/proto";
  await until("relay between the two servers", async () => {
    await near.publish(message(topic, "are you there?"));
    return (await far.archived(topic)).length > 0;
  });
});

after(async () => {
  await node?.stop();
  await other?.stop();
  await far?.stop();
  await near?.stop();
});

liveScenario("a filter subscriber hears what REST publishes, and no other topic", async () => {
  const topic = "/interop/1/rest/proto";
  const { heard, stop } = await follow(node, topic);
  const texts = Array.from({ length: MANY }, (_, i) => `message ${i}`);
  await near.publish(...texts.map((text) => message(topic, text)), message("/interop/1/others/proto", "not for you"));
  await arrived(heard, texts);
  assert.equal(heard.length, texts.length);
  await stop();
});

liveScenario("a filter subscriber hears what comes by relay", async () => {
  const topic = "/interop/1/relayed/proto";
  const { heard, stop } = await follow(node, topic);
  await far.publish(message(topic, "from afar"));
  await arrived(heard, ["from afar"]);
  await stop();
});

liveScenario("two followers of a topic both hear it", async () => {
  const topic = "/interop/1/both/proto";
  const followers = [await follow(node, topic), await follow(other, topic)];
  await near.publish(message(topic, "to both"));
  for (const { heard } of followers) await arrived(heard, ["to both"]);
  for (const { stop } of followers) assert.equal(await stop(), true);
});

liveScenario("who has unsubscribed is sent nothing more", async () => {
  const topic = "/interop/1/left/proto";
  const marker = await follow(node, "/interop/1/marker/proto");
  const { heard, stop } = await follow(node, topic);
  await near.publish(message(topic, "before"));
  await arrived(heard, ["before"]);
  assert.equal(await stop(), true);

  // js-waku drops messages without a subscription, so the test reads what the server sends. js-waku does not wait for the
  // answer to its request either, so the first rounds may be too early.
  const sent = [];
  const { protocol } = node.filter;
  const receive = protocol.handleIncomingMessage;
  protocol.handleIncomingMessage = (pubsubTopic, pushed, peer) => {
    sent.push(Buffer.from(pushed.payload).toString());
    return receive(pubsubTopic, pushed, peer);
  };
  let round = 0;
  await until("a round in which nothing is sent", async () => {
    round += 1;
    await near.publish(message(topic, `after ${round}`));
    await near.publish(message("/interop/1/marker/proto", `marker ${round}`));
    await arrived(marker.heard, [`marker ${round}`]);
    return !sent.includes(`after ${round}`);
  });
  assert.deepEqual(heard, ["before"]);
  await marker.stop();
});

liveScenario("lightpush v3 lands in the archive, at a subscriber and at relay peers", () =>
  pushed("/interop/1/push-v3/proto", {}),
);

liveScenario("lightpush v2 lands in the archive, at a subscriber and at relay peers", () =>
  pushed("/interop/1/push-v2/proto", { useLegacy: true }),
);

liveScenario("an ephemeral message reaches subscribers and no archive", async () => {
  const topic = "/interop/1/ephemeral/proto";
  const { heard, stop } = await follow(other, topic);
  const encoder = encoderOf(topic, { ephemeral: true });
  const sent = await node.lightPush.send(encoder, { payload: Buffer.from("gone") }, { autoRetry: false });
  assert.deepEqual(sent.failures, []);
  await arrived(heard, ["gone"]);
  assert.deepEqual(await near.archived(topic), []);
  await stop();
});

liveScenario("a message that is too old is refused, not lost silently", async () => {
  const topic = "/interop/1/old/proto";
  const old = { payload: Buffer.from("old"), timestamp: new Date(Date.now() - 3600_000) };
  for (const useLegacy of [false, true]) {
    const sent = await node.lightPush.send(encoderOf(topic), old, { autoRetry: false, useLegacy });
    assert.equal(sent.successes.length, 0);
    assert.equal(sent.failures[0].error, "Remote peer rejected");
  }
  assert.deepEqual(await near.archived(topic), []);
});
