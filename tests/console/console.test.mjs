// Uses the console page as people do: reading, searching, following, by mouse, by keyboard, on a phone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { accessibility, launch, open, shoot } from "./browser.mjs";
import { PATIENCE_MS, PUBSUB, Server, until } from "./server.mjs";

const TIMEOUT = { timeout: 120_000 };
const BYTES_MAX = 200_000;
const CHAT = "/toychat/2/huilong/proto";
const NEWS = "/news/1/daily/json";
const PAGE_MESSAGES = 50;
const CHAT_MESSAGES = 120;
const HOSTILE = `<img src=x onerror="window.hacked = true"><script>window.hacked = true</script>`;
const PHONE = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };

let browser;
let server;

before(async () => {
  browser = await launch();
  server = await Server.start("--rest-admin", "--retention", "time:2592000");
  for (let number = 0; number < CHAT_MESSAGES; number += 1) await server.publish(CHAT, `hello number ${number}`);
  await server.publish(NEWS, JSON.stringify({ title: "Poste restante", id: 12345678901234567890n.toString(), tags: ["mail", "late"], nothing: {} }));
  await server.publish("/news/1/weekly/json", `{"big":12345678901234567890,"list":[]}`);
  await server.publish("/bytes/1/raw/bin", Uint8Array.from({ length: 70 }, (_, index) => (index * 37) % 256));
  await server.publish(`/evil/1/${HOSTILE}/proto`, HOSTILE);
});

after(async () => {
  await browser?.close();
  await server?.remove();
});

/** A page at a part of the console, closed again when the test is over. */
async function visit(t, hash = "", options = {}, at = server) {
  const visited = await open(browser, `${at.url}/${hash}`, options);
  t.after(() => visited.close());
  return visited;
}

const text = (page, selector) => page.locator(selector).innerText();
const rows = (page) => page.locator("#rows tr");
const waitForRows = (page, number) => until(`${number} rows`, async () => (await rows(page).count()) === number);
const previews = (page) => page.locator("#rows .payload").allInnerTexts();

async function isStill(page) {
  const before = await page.evaluate(() => document.documentElement.scrollWidth);
  return before <= (await page.evaluate(() => innerWidth));
}

/** Waits until the page shows what the server is. */
const isReady = (page) => page.locator('#pulse[data-state="ready"]').waitFor();

/** Points that a plot draws. */
const pointsAt = (page) => until("points in the history", async () => {
  const { history } = await server.get("/console/v1/state");
  return history.at.length > 1 && history.at.length;
}) && page;

test("it loads small, without an error, a warning or a failed request", TIMEOUT, async (t) => {
  const { page, problems, transferred } = await visit(t);
  await isReady(page);
  await page.waitForLoadState("networkidle").catch(() => {});
  const whole = await until("the transfer", () => transferred());
  assert.ok(whole > 50_000 && whole < BYTES_MAX, `${whole} bytes`);
  t.diagnostic(`${whole} bytes transferred`);
  assert.deepEqual(problems, []);
  assert.equal(await page.title(), "restante");
});

test("the overview shows the server at a glance, and its plots have data", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t);
  await isReady(page);
  await until("the archive's size", async () => (await text(page, '[data-tile="messages"]')) !== "–");
  assert.match(await text(page, "#archive-facts"), /Engine\s+log/);
  assert.match(await text(page, "#retention-facts"), /messages of the last 30 d/);
  assert.match(await text(page, "#doors"), /Waku node[\s\S]*Relay[\s\S]*Store/);
  assert.match(await text(page, "#peers"), /Nobody is connected[\s\S]*\/waku\/2\/rs\/42\/0/);
  await pointsAt(page);
  await server.publish(CHAT, "for the plots");
  await server.get("/store/v3/messages");
  for (const plot of ["messages", "queries", "append", "query"]) await page.locator(`#plot-${plot} canvas`).waitFor();
  // An insert was measured: some point of the plot has a time.
  await until("times in the history", async () => {
    const { history } = await server.get("/console/v1/state");
    return history.appendP50.some((value) => value > 0) && history.queryP99.some((value) => value > 0) && history.stored.some((value) => value > 0);
  });
  await until("ink in the plots", () => hasInk(page, "#plot-append canvas"));
  assert.ok(await hasInk(page, "#plot-messages canvas"));
  await page.locator("#plot-days canvas").waitFor();
  assert.match(await page.locator("#plot-days .canvas").getAttribute("aria-label"), /By day: on disk \d.* messages \d+/);
  await page.locator("#plot-messages .canvas").hover();
  await until("the moment below the mouse", async () => /\d\d:\d\d:\d\d/.test(await text(page, "#plot-messages figcaption")));
  assert.deepEqual(problems, []);
});

/** A minute went by until the first message was counted, and plots of nothing had axes of zeros. */
test("a fresh server's first message is shown at once, and plots without values are empty", TIMEOUT, async (t) => {
  const fresh = await Server.start();
  t.after(() => fresh.remove());
  const { page, problems } = await visit(t, "", {}, fresh);
  await isReady(page);
  await until("the count of no messages", async () => (await text(page, '[data-tile="messages"]')) === "0");
  for (const plot of ["messages", "queries", "append", "query"]) {
    await page.locator(`#plot-${plot} .waiting`, { hasText: "Nothing yet" }).waitFor();
    assert.equal(await page.locator(`#plot-${plot} canvas`).count(), 0, plot);
  }
  await fresh.publish(CHAT, "the first");
  await until("the count of the first message", async () => (await text(page, '[data-tile="messages"]')) === "1");
  await page.locator("#plot-messages canvas").waitFor();
  assert.equal(await page.locator("#plot-messages .waiting").isVisible(), false);
  assert.equal(await page.locator("#plot-query canvas").count(), 0, "there was no query");
  await page.goto(`${fresh.url}/console`);
  await isReady(page);
  assert.equal(new URL(page.url()).pathname, "/");
  assert.deepEqual(problems, []);
});

/** Whether a line of the first or second colour is drawn: axes and grid are grey. */
const hasInk = (page, selector) => page.locator(selector).evaluate((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let coloured = 0;
  for (let at = 0; at < data.length; at += 4) {
    const [red, green, blue, alpha] = data.slice(at, at + 4);
    if (alpha > 128 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) coloured += 1;
  }
  return coloured > 20;
});

test("plots move, and pages opened later show earlier points", TIMEOUT, async (t) => {
  const { page } = await visit(t);
  await isReady(page);
  const now = async () => (await server.get("/console/v1/state")).history.at.length;
  const first = await now();
  await until("a further point", async () => (await now()) > first);
  await server.get("/store/v3/messages");
  const later = await visit(t);
  await isReady(later.page);
  await later.page.locator("#plot-queries canvas").waitFor();
});

test("the browser pages through messages, there and back", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, `#/messages?topic=${encodeURIComponent(CHAT)}`);
  await waitForRows(page, PAGE_MESSAGES);
  const seen = [await previews(page)];
  assert.ok(await page.locator("#newer").isDisabled());
  for (let turn = 0; turn < 2; turn += 1) {
    const top = seen.at(-1)[0];
    await page.locator("#older").click();
    await until("the older page", async () => (await previews(page))[0] !== top);
    seen.push(await previews(page));
  }
  const all = seen.flat().filter((shown) => shown.startsWith("hello"));
  assert.equal(new Set(all).size, CHAT_MESSAGES, "each message once");
  assert.ok(await page.locator("#older").isDisabled());
  await page.locator("#newer").click();
  await until("the page before", async () => JSON.stringify(await previews(page)) === JSON.stringify(seen[1]));
  await page.locator("#newer").click();
  await until("the first page", async () => JSON.stringify(await previews(page)) === JSON.stringify(seen[0]));
  assert.deepEqual(problems, []);
});

test("topics are searched exactly, several at once, and by their beginning", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, "#/messages");
  await waitForRows(page, PAGE_MESSAGES);
  const search = async (topic, mode) => {
    await page.locator("#mode").selectOption(mode);
    await page.locator("#topic").fill(topic);
    await page.locator("#topic").press("Enter");
    await page.locator('.results[aria-busy="false"]').waitFor();
  };
  await search(NEWS, "exact");
  await waitForRows(page, 1);
  await search(`${NEWS}, /bytes/1/raw/bin`, "exact");
  await waitForRows(page, 2);
  await search("/news/1/", "prefix");
  await waitForRows(page, 2);
  assert.match(await text(page, "#results-status"), /2 messages, \d+ messages looked at/);
  await search("/nobody/", "prefix");
  await page.getByText("No message is like that.").waitFor();
  await search(CHAT, "exact");
  await waitForRows(page, PAGE_MESSAGES);
  await page.locator("#pubsub").fill("/waku/2/rs/42/7");
  await page.locator("#topic").press("Enter");
  await page.getByText("No message is like that.").waitFor();
  await page.locator("#pubsub").fill("");
  const { messages } = await server.get(`/store/v3/messages?contentTopics=${encodeURIComponent(NEWS)}`);
  await search(messages[0].messageHash, "exact");
  await waitForRows(page, 1);
  assert.match(await text(page, "#rows .topic"), /\/news\/1\/daily/);
  assert.deepEqual(problems, []);
});

test("time ranges narrow the search, and the address keeps it", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, `#/messages?topic=${encodeURIComponent(NEWS)}`);
  await waitForRows(page, 1);
  for (const range of ["Last hour", "Today", "7 days", "All"]) {
    await page.getByRole("radio", { name: range, exact: true }).check();
    await until(`${range}`, async () => (await text(page, "#results-status")) === "1 message");
    await waitForRows(page, 1);
  }
  await page.getByRole("radio", { name: "From, to" }).check();
  await page.locator("#from").fill("2020-01-01T00:00:00");
  await page.locator("#to").fill("2020-01-02T00:00:00");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await page.getByText("No message is like that.").waitFor();
  assert.match(page.url(), /range=custom&from=2020-01-01T00%3A00/);
  await page.reload();
  await page.getByText("No message is like that.").waitFor();
  assert.equal(await page.locator("#topic").inputValue(), NEWS);
  await page.getByRole("button", { name: "Search all of the time" }).click();
  await waitForRows(page, 1);
  assert.deepEqual(problems, []);
});

test("a message is shown with its times, its hash and its payload in its format", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, `#/messages?topic=${encodeURIComponent("/news/1/")}&mode=prefix`);
  await waitForRows(page, 2);
  await rows(page).filter({ hasText: "/weekly/" }).click();
  const detail = page.locator("#detail");
  assert.match(await detail.locator("pre").innerText(), /^\{\n {2}"big": 12345678901234567890,\n {2}"list": \[\]\n\}$/, "JSON is indented, and numbers stay as they are");
  const facts = await text(page, "#detail .facts");
  assert.match(facts, /0x[0-9a-f]{64}/);
  assert.match(facts, /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z/);
  const { messages } = await server.get(`/store/v3/messages?includeData=true&contentTopics=${encodeURIComponent("/news/1/weekly/json")}`);
  await detail.getByRole("button", { name: "Copy hash" }).click();
  await until("the hash in the clipboard", async () => (await page.evaluate(() => navigator.clipboard.readText())) === messages[0].messageHash);
  await detail.getByRole("button", { name: "Copy payload" }).click();
  await until("the payload in the clipboard", async () => (await page.evaluate(() => navigator.clipboard.readText())) === `{"big":12345678901234567890,"list":[]}`);
  await detail.getByRole("button", { name: "Hex" }).click();
  assert.match(await detail.locator("pre").innerText(), /^000000 {2}7b 22 62 69 67/);
  await page.locator("#topic").fill("/bytes/1/raw/bin");
  await page.locator("#mode").selectOption("exact");
  await page.locator("#topic").press("Enter");
  await waitForRows(page, 1);
  await rows(page).first().click();
  assert.match(await detail.locator("pre").innerText(), /^000000 {2}00 25 4a 6f/, "binary payloads are shown as hex");
  assert.equal(await detail.getByRole("button", { name: "Text", exact: true }).count(), 0);
  await shoot(page, "detail");
  assert.deepEqual(problems, []);
});

test("hostile topics and payloads are shown as text", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, "#/messages?topic=%2Fevil%2F1%2F&mode=prefix");
  await waitForRows(page, 1);
  assert.equal((await previews(page))[0], HOSTILE);
  await rows(page).first().click();
  assert.equal(await page.locator("#detail pre").innerText(), HOSTILE);
  const topic = page.locator("#detail .facts code").first();
  assert.equal(await topic.innerText(), `/evil/1/${HOSTILE}/proto`);
  assert.equal(await page.locator("main img, main script").count(), 0);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.deepEqual(problems, []);
});

test("the live tail shows what is published, newest first, and can be stopped and cleared", TIMEOUT, async (t) => {
  const topic = "/tail/1/now/proto";
  const { page, problems } = await visit(t, `#/messages?topic=${encodeURIComponent(topic)}`);
  await page.getByText("No message is like that.").waitFor();
  await page.getByRole("button", { name: /^Live tail/ }).click();
  await until("the stream", async () => (await text(page, "#results-status")).startsWith("connected"));
  await server.publish(CHAT, "for others");
  for (const payload of ["first", "second", HOSTILE]) await server.publish(topic, payload);
  await waitForRows(page, 3);
  assert.deepEqual(await previews(page), [HOSTILE, "second", "first"]);
  await rows(page).nth(1).click();
  assert.match(await page.locator("#detail pre").innerText(), /^second$/);
  await server.publish(topic, "third");
  await waitForRows(page, 4);
  assert.match(await page.locator("#detail pre").innerText(), /^second$/, "the open message stays open");
  await page.getByRole("button", { name: "Clear" }).click();
  await waitForRows(page, 0);
  await server.publish(topic, "fourth");
  await waitForRows(page, 1);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await server.publish(topic, "unheard");
  await until("the end", async () => /stopped after 1 message/.test(await text(page, "#results-status")));
  assert.deepEqual(await previews(page), ["fourth"]);
  assert.deepEqual(problems.filter((each) => !/\/live\?.* net::ERR_ABORTED/.test(each)), [], "stopping ends a request, and nothing else");
});

test("the live tail follows the beginning of a topic", TIMEOUT, async (t) => {
  const { page } = await visit(t, "#/messages?topic=%2Ftail%2F2%2F&mode=prefix");
  await page.getByText("No message is like that.").waitFor();
  await page.keyboard.press("l");
  await until("the stream", async () => (await text(page, "#results-status")).startsWith("connected"));
  await server.publish("/tail/3/a/proto", "other");
  await server.publish("/tail/2/a/proto", "wanted");
  await waitForRows(page, 1);
  assert.deepEqual(await previews(page), ["wanted"]);
});

test("sessions are listed and closed", TIMEOUT, async (t) => {
  const stream = new AbortController();
  t.after(() => stream.abort());
  const response = await fetch(`${server.url}/live?contentTopics=/session/1/a/proto`, { headers: { accept: "text/event-stream" }, signal: stream.signal });
  assert.equal(response.status, 200);
  const reading = response.text().catch((error) => `broke off: ${error}`);
  const { page } = await visit(t);
  await isReady(page);
  const line = page.locator("#sessions-rows tr").filter({ hasText: "REST live" });
  await line.first().waitFor();
  await until("its door", async () => /1 session of 1 user · REST live 1/.test(await text(page, "#sessions-summary")));
  await shoot(page, "sessions", { fullPage: true });
  await line.getByRole("button", { name: /^Close the session of/ }).click();
  await page.getByRole("button", { name: "Keep it" }).click();
  await line.getByRole("button", { name: /^Close the session of/ }).click();
  await page.getByRole("button", { name: "Close the session", exact: true }).click();
  assert.match(await reading, /event: ?end\n[\s\S]*operator/);
  await until("nobody", async () => (await line.count()) === 0);
});

test("everything works by keyboard", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t);
  await isReady(page);
  const focused = () => page.evaluate(() => document.activeElement?.id || document.activeElement?.textContent);
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "skip");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "main");
  await page.keyboard.press("?");
  assert.ok(await page.locator("#help").isVisible());
  await page.keyboard.press("Escape");
  assert.ok(!(await page.locator("#help").isVisible()));
  await page.keyboard.press("/");
  assert.equal(await focused(), "topic");
  await page.keyboard.type(`${CHAT}`);
  await page.keyboard.press("Enter");
  await until("the page of the topic", async () => {
    const topics = await page.locator("#rows .topic").allInnerTexts();
    return topics.length === PAGE_MESSAGES && topics.every((topic) => topic === CHAT);
  });
  await page.keyboard.press("Escape");
  for (const key of ["j", "j", "j", "k"]) await page.keyboard.press(key);
  const index = () => page.evaluate(() => [...document.querySelectorAll("#rows tr")].indexOf(document.activeElement.closest("tr")));
  assert.equal(await index(), 1);
  await page.keyboard.press("Enter");
  const payload = () => text(page, "#detail pre");
  const second = await payload();
  await page.keyboard.press("j");
  assert.equal(await index(), 2);
  await until("the next message", async () => (await payload()) !== second);
  await page.keyboard.press("Escape");
  assert.ok(!(await page.locator("#detail").isVisible()));
  assert.equal(await index(), 2, "the focus is where it was");
  const top = (await previews(page))[0];
  await page.keyboard.press("n");
  await until("the older page", async () => (await previews(page))[0] !== top);
  await page.keyboard.press("p");
  await until("the newer page", async () => (await previews(page))[0] === top);
  await page.keyboard.press("l");
  await until("the live tail", async () => (await page.locator("#tail").getAttribute("aria-pressed")) === "true");
  await page.keyboard.press("l");
  assert.equal(await page.locator("#tail").getAttribute("aria-pressed"), "false");
  await page.keyboard.press("o");
  await page.locator("#overview").waitFor();
  await page.keyboard.press("?");
  await page.locator("#shortcuts").focus();
  await page.keyboard.press("Space");
  await page.keyboard.press("Escape");
  await page.keyboard.press("m");
  assert.ok(await page.locator("#overview").isVisible(), "shortcuts are switched off");
  assert.deepEqual(problems.filter((each) => !/\/live\?.* net::ERR_ABORTED/.test(each)), []);
});

test("with a token the page asks for it, once", TIMEOUT, async (t) => {
  const token = "a-token-of-this-test";
  const guarded = await Server.start("--rest-address", "0.0.0.0", "--rest-token-file", (own) => own.file("token", `${token}\nsecond line\n`));
  t.after(() => guarded.remove());
  const { page, problems } = await visit(t, "", {}, guarded);
  await page.locator("#ask-token").waitFor();
  await shoot(page, "token");
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#ask-token").isVisible(), "there is nothing to see without it");
  await page.locator("#token").fill("something-else-entirely");
  await page.keyboard.press("Enter");
  await page.getByText("The server does not know this token.").waitFor();
  await page.locator("#token").fill(token);
  await page.keyboard.press("Enter");
  await isReady(page);
  await page.locator("#sessions-summary", { hasText: "Nobody is connected." }).waitFor();
  await page.reload();
  await isReady(page);
  assert.ok(!(await page.locator("#ask-token").isVisible()), "the tab remembers it");
  // Reloading cancels pending requests.
  const unexpected = problems.filter((each) => !/401|ERR_ABORTED/.test(each));
  assert.deepEqual(unexpected, []);
  const other = await visit(t, "", {}, guarded);
  await other.page.locator("#ask-token").waitFor();
});

test("operators log in with their own password, and the page shows what operators did", TIMEOUT, async (t) => {
  const token = "a-token-of-this-test";
  const guarded = await Server.start("--rest-address", "0.0.0.0", "--rest-token-file", (own) => own.file("token", `${token}\n`));
  t.after(() => guarded.remove());
  const operate = async (operation) => {
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    const body = JSON.stringify({ by: "the test", operation });
    const answer = await fetch(`${guarded.url}/admin/v1/directory`, { method: "POST", headers, body });
    assert.equal(answer.status, 200, await answer.text());
  };
  const [address, secret] = ["olga@example.org", "pass w\u00f6rd"];
  await operate({ do: "add_domain", domain: "example.org", separator: null, catch_all: null });
  await operate({ do: "add_account", address, password: { given: secret }, role: "operator", quota_bytes: null });
  const { page, problems } = await visit(t, "", {}, guarded);
  await page.locator("#ask-token").waitFor();
  await page.locator("#operator").fill(address);
  await page.locator("#token").fill("something else");
  await page.keyboard.press("Enter");
  await page.getByText("The name or the password is wrong").waitFor();
  await page.locator("#token").fill(secret);
  await page.keyboard.press("Enter");
  await isReady(page);
  const operations = page.locator("#operations-rows tr");
  await operations.filter({ hasText: `added account ${address}` }).filter({ hasText: "the test over HTTP" }).waitFor();
  await shoot(page, "operations");
  await operate({ do: "set_state", address, state: "disabled" });
  await page.locator("#ask-token").waitFor();
  assert.deepEqual(problems.filter((each) => !/401/.test(each)), []);
});

test("the page shows when a server stops and when it is back", TIMEOUT, async (t) => {
  const mortal = await Server.start();
  t.after(() => mortal.remove());
  await mortal.publish(CHAT, "before");
  const { page } = await visit(t, "", {}, mortal);
  await isReady(page);
  await sleep(1_100); // the tail knows by the second which messages are older
  const tail = await visit(t, `#/messages?topic=${encodeURIComponent(CHAT)}`, {}, mortal);
  await waitForRows(tail.page, 1);
  await tail.page.keyboard.press("l");
  await until("the stream", async () => (await text(tail.page, "#results-status")).startsWith("connected"));
  await mortal.publish(CHAT, "heard");
  await waitForRows(tail.page, 1);
  await mortal.kill();
  await page.locator('#pulse[data-state="gone"]').waitFor();
  assert.match(await text(page, "#gone"), /does not answer/);
  await shoot(page, "gone");
  await tail.page.getByText(/trying again|does not answer|broke off/).first().waitFor();
  await mortal.start();
  await isReady(page);
  assert.ok(!(await page.locator("#gone").isVisible()));
  await mortal.publish(CHAT, "after");
  await until("what came after", async () => (await previews(tail.page))[0] === "after");
  assert.deepEqual(await previews(tail.page), ["after", "heard"], "nothing is lost, and nothing comes twice");
});

test("the page reports an invalid answer and asks again", TIMEOUT, async (t) => {
  const { page } = await visit(t);
  await isReady(page);
  let isBroken = true;
  await page.route("**/console/v1/state?*", (route) => (isBroken ? route.fulfill({ json: { server: {} } }) : route.continue()));
  await page.getByText("The server's answer is not understood").waitFor();
  isBroken = false;
  await isReady(page);
  assert.ok(!(await page.locator("#gone").isVisible()));
});

test("a server that refuses a search says why, and can be asked again", TIMEOUT, async (t) => {
  const { page } = await visit(t, `#/messages?topic=${encodeURIComponent(`0x${"0".repeat(64)}`)}`);
  await page.getByText("No message is like that.").waitFor();
  let isBroken = true;
  await page.route("**/store/v3/messages?*", (route) => (isBroken ? route.fulfill({ status: 503, body: "the archive is unavailable: try again later" }) : route.continue()));
  await page.locator("#topic").fill(NEWS);
  await page.locator("#topic").press("Enter");
  await page.getByText("the archive is unavailable: try again later").waitFor();
  isBroken = false;
  await page.getByRole("button", { name: "Try again" }).click();
  await waitForRows(page, 1);
});

for (const [name, options] of [
  ["light", { colorScheme: "light" }],
  ["dark", { colorScheme: "dark" }],
  ["phone", { ...PHONE, colorScheme: "light" }],
  ["phone-dark", { ...PHONE, colorScheme: "dark" }],
]) {
  test(`in ${name} everything is accessible, and nothing is wider than the window`, TIMEOUT, async (t) => {
    const { page, problems } = await visit(t, "", options);
    await isReady(page);
    await page.locator("#plot-days canvas").waitFor();
    await pointsAt(page);
    await page.locator("#plot-append canvas").waitFor();
    assert.ok(await isStill(page), "the overview is no wider than the window");
    const overview = await accessibility(page);
    assert.deepEqual(overview.violations, []);
    assert.ok(overview.passes > 15, "axe has looked at the page");
    await shoot(page, `overview-${name}`, { fullPage: true });

    await page.goto(`${server.url}/#/messages`);
    await waitForRows(page, PAGE_MESSAGES);
    assert.ok(await isStill(page), "the messages are no wider than the window");
    await shoot(page, `messages-${name}`);
    assert.deepEqual((await accessibility(page)).violations, []);
    await rows(page).filter({ hasText: "/news/1/daily" }).click();
    await page.locator("#detail").waitFor();
    assert.ok(await isStill(page), "a message is no wider than the window");
    await shoot(page, `message-${name}`);
    assert.deepEqual((await accessibility(page)).violations, []);
    await page.locator("#detail-close").click();
    await page.locator("#help-open").click();
    assert.deepEqual((await accessibility(page)).violations, []);
    await shoot(page, `help-${name}`);
    assert.deepEqual(problems, []);
  });
}

test("there is no animation with reduced motion", TIMEOUT, async (t) => {
  const { page } = await visit(t, "#/messages", { reducedMotion: "reduce" });
  await waitForRows(page, PAGE_MESSAGES);
  await rows(page).first().evaluate((row) => row.classList.add("is-new"));
  assert.equal(await rows(page).first().evaluate((row) => getComputedStyle(row).animationName), "none");
});

test("frames, foreign pages and foreign host names are refused", TIMEOUT, async (t) => {
  const { page } = await visit(t);
  await isReady(page);
  const response = await fetch(`${server.url}/console/v1/state`, { headers: { "sec-fetch-site": "same-origin" } });
  assert.equal(response.status, 200);
  const other = await visit(t, "", {}, { url: `http://localhost:${server.port}` });
  await isReady(other.page);
  const foreign = await browser.newContext();
  t.after(() => foreign.close());
  const framing = await foreign.newPage();
  await framing.setContent(`<iframe src="${server.url}/" width="600" height="400"></iframe>`);
  await until("the frame", async () => framing.frames().length > 1);
  const isFramed = await until("what the frame shows", async () => {
    const body = await framing.frames()[1].evaluate(() => document.body?.innerText ?? "").catch(() => "refused");
    return body && { body };
  }, PATIENCE_MS).catch(() => ({ body: "" }));
  assert.ok(!/Overview/.test(isFramed.body), isFramed.body);
});
