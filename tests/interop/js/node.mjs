// js-waku light nodes that connect to a server on loopback, and tests that show the server's log when they fail.

import { test } from "node:test";

// js-waku requires Node 22; Node 20 only lacks this function.
Promise.withResolvers ??= function withResolvers() {
  let resolve, reject;
  const promise = new Promise((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
};

const { multiaddr } = await import("@multiformats/multiaddr");
const { createLightNode, Protocols } = await import("@waku/sdk");
const { within } = await import("./server.mjs");

/** A single scenario; node's own limit would end it without the server's log. */
const SCENARIO_MS = 60_000;

export async function connect(server, networkConfig) {
  const node = await createLightNode({
    networkConfig,
    defaultBootstrap: false,
    discovery: { dns: false, peerExchange: false, peerCache: false },
    // By default it dials wss only, and prints hints for browsers.
    libp2p: { filterMultiaddrs: false, hideWebSocketInfo: true },
  });
  try {
    await node.start();
    await within("the dial", node.dial(multiaddr(server.webSocket)));
    await within("the peer's protocols", node.waitForPeers([Protocols.Store, Protocols.Filter, Protocols.LightPush]));
  } catch (error) {
    await node.stop();
    throw error;
  }
  return node;
}

/** A test against servers that `servers()` lists. */
export function scenario(name, servers, run) {
  test(name, async () => {
    try {
      await within(`the scenario "${name}"`, run(), SCENARIO_MS);
    } catch (error) {
      for (const server of servers()) server.complain();
      throw error;
    }
  });
}

export const textOf = (decoded) => Buffer.from(decoded.payload).toString();
export const hexOf = (bytes) => Buffer.from(bytes).toString("hex");
