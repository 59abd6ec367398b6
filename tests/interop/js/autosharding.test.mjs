// js-waku in a network with autosharding: both sides derive the shard from the content topic.

import assert from "node:assert/strict";
import { after, before } from "node:test";

import { connect, scenario, textOf } from "./node.mjs";
import { CLUSTER, Message, startServer, until } from "./server.mjs";

const SHARDS = 8;
/** Shards by 51/WAKU2-RELAY-SHARDING, computed apart from both sides. */
const TOPICS = [
  ["/myapp/1/chat/proto", 0],
  ["/toychat/2/chat/proto", 3],
  ["/waku/1/chat/proto", 4],
  ["/status/1/chat/proto", 5],
  ["/0/restante/1/chat/proto", 6],
];

let server, node;
const shardScenario = (name, run) => scenario(name, () => [server], run);

before(async () => {
  const shards = Array.from({ length: SHARDS }, (_, shard) => ["--shard", String(shard)]).flat();
  server = await startServer("--num-shards-in-network", String(SHARDS), ...shards);
  node = await connect(server, { clusterId: CLUSTER, numShardsInCluster: SHARDS });
});

after(async () => {
  await node?.stop();
  await server?.stop();
});

for (const [contentTopic, shard] of TOPICS) {
  shardScenario(`${contentTopic} is on shard ${shard} for filter, store and lightpush`, async () => {
    const decoder = node.createDecoder({ contentTopic });
    assert.equal(decoder.pubsubTopic, `/waku/2/rs/${CLUSTER}/${shard}`);

    const heard = [];
    assert.equal(await node.filter.subscribe(decoder, (decoded) => void heard.push(textOf(decoded))), true);
    await server.publish(new Message(undefined, contentTopic, "by REST"));
    const encoder = node.createEncoder({ contentTopic });
    const sent = await node.lightPush.send(encoder, { payload: Buffer.from("by push") }, { autoRetry: false });
    assert.deepEqual(sent.failures, []);
    await until(`both messages by filter; there is: ${heard}`, () => heard.length === 2);
    assert.equal(await node.filter.unsubscribe(decoder), true);

    const kept = [];
    await node.store.queryWithOrderedCallback([decoder], (decoded) => void kept.push(decoded));
    assert.deepEqual(kept.map(textOf), ["by REST", "by push"]);
    assert.deepEqual([...new Set(kept.map((decoded) => decoded.pubsubTopic))], [decoder.pubsubTopic]);
  });
}
