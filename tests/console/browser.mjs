// A page in headless Chromium that records all errors.

import { join } from "node:path";

import axe from "axe-core";
import { chromium } from "playwright-core";

import { PATIENCE_MS } from "./server.mjs";

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

/** playwright gives each browser a new profile folder, and removes it. */
export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM, headless: true, args: FLAGS });

/** Opens a page in a profile of its own. `options` are playwright's, as viewport and colorScheme. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, locale: "en-GB", ...options });
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: new URL(url).origin });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const problems = [];
  let bytes = 0;
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`error: ${error.stack ?? error}`));
  page.on("requestfailed", (request) => {
    const why = request.failure()?.errorText;
    // Leaving a page cancels its pending requests.
    if (why !== "net::ERR_ABORTED") problems.push(`failed: ${request.url()} ${why}`);
  });
  page.on("response", (response) => {
    if (response.status() >= 400) problems.push(`${response.status()}: ${response.url()}`);
  });
  page.on("requestfinished", async (request) => {
    const sizes = await request.sizes().catch(() => undefined);
    if (sizes) bytes += sizes.responseBodySize + sizes.responseHeadersSize;
  });
  await page.goto(url);
  return { page, problems, transferred: () => bytes, close: () => context.close() };
}

export const shoot = (page, name, options = {}) =>
  page.screenshot({ path: join(process.env.RESTANTE_SHOTS, `${name}.png`), animations: "disabled", ...options });

/** What axe finds wrong, in words. The page's policy allows no foreign script, so axe comes by the debugger. */
export async function accessibility(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: axe.source });
  const expression = `axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })
    .then(({ violations, passes }) => JSON.stringify({ passes: passes.length, violations: violations.map(({ id, help, nodes }) =>
      id + ": " + help + ": " + nodes.map(({ html, failureSummary }) => html.slice(0, 160) + " " + failureSummary).slice(0, 4).join(" | ")) }))`;
  const { result, exceptionDetails } = await session.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(JSON.stringify(exceptionDetails));
  await session.detach();
  return JSON.parse(result.value);
}
