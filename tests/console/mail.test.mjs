// Uses the pages of mail as operators do: a server at a glance, where an email is, an account.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { accessibility, launch, open, shoot } from "./browser.mjs";
import { addAccount, deliver, freePort, operate } from "./mail.mjs";
import { Server, until } from "./server.mjs";

const TIMEOUT = { timeout: 120_000 };
const ANNA = "anna@example.org";
const PASSWORD = "correct horse";
const SECRET = "a subject that operators do not see";
const PHONE = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };

let browser;
let server;
let jmap;
let lmtp;

const message = (number) => `From: Bob <bob@example.net>\nTo: ${ANNA}\nMessage-ID: <mail-${number}@example.net>\nSubject: ${SECRET}\n\nHello ${number}\n`;

before(async () => {
  browser = await launch();
  [jmap, lmtp] = [await freePort(), await freePort()];
  server = await Server.start("--rest-admin", "--jmap-listen", `127.0.0.1:${jmap}`, "--lmtp-listen", `127.0.0.1:${lmtp}`);
  await operate(server, { do: "add_domain", domain: "example.org", separator: null, catch_all: null });
  await addAccount(server, ANNA, PASSWORD, 5_000_000);
  await addAccount(server, "bert@example.org", PASSWORD);
  await operate(server, { do: "grant", owner: ANNA, user: "bert@example.org", access: "read" });
  await operate(server, { do: "set_state", address: "bert@example.org", state: "disabled" });
  for (let number = 0; number < 5; number += 1) assert.match(await deliver(lmtp, ANNA, message(number)), /^250 /);
  assert.match(await deliver(lmtp, "nobody@example.org", message(0)), /^550 /);
});

after(async () => {
  await browser?.close();
  await server?.remove();
});

/** A page at a part of the console, closed again when the test is over. */
async function visit(t, hash, options = {}, at = server) {
  const visited = await open(browser, `${at.url}/${hash}`, options);
  t.after(() => visited.close());
  return visited;
}

const text = (page, selector) => page.locator(selector).innerText();
const isReady = (page) => page.locator('#pulse[data-state="ready"]').waitFor();
const isStill = async (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);

/** The answer to a JMAP request of the user. */
async function request(calls) {
  const authorization = `Basic ${Buffer.from(`${ANNA}:${PASSWORD}`).toString("base64")}`;
  const session = await (await fetch(`http://127.0.0.1:${jmap}/.well-known/jmap`, { headers: { authorization } })).json();
  const accountId = session.primaryAccounts["urn:ietf:params:jmap:mail"];
  const methodCalls = calls.map(([name, fields], index) => [name, { accountId, ...fields }, String(index)]);
  const body = JSON.stringify({ using: ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:mail"], methodCalls });
  const answer = await fetch(session.apiUrl, { method: "POST", headers: { authorization, "content-type": "application/json" }, body });
  return (await answer.json()).methodResponses;
}

test("mail is shown at a glance", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, "#/mail");
  await isReady(page);
  assert.equal(await page.title(), "Mail – restante");
  await until("the deliveries", async () => /Delivered\s+5/.test(await text(page, "#deliveries-facts")));
  assert.match(await text(page, "#storage-rows"), /Messages \(blobs\)[\s\S]*Records[\s\S]*Search index/);
  await page.locator("#errors-rows tr", { hasText: "LMTP recipient: unknown" }).waitFor();
  await request([["Email/query", {}], ["Email/get", { ids: "wrong" }]]);
  await page.locator("#errors-rows tr", { hasText: "JMAP Email/get: invalidArguments" }).waitFor();
  await page.locator("#plot-request canvas").waitFor();
  await page.locator("#plot-requests canvas").waitFor();
  // The count of accounts and emails follows within a minute; the lists are updated at once.
  await page.locator("#accounts-rows tr", { hasText: ANNA }).filter({ hasText: "5 emails" }).filter({ hasText: "of 5.0 MB" }).waitFor();
  await page.locator("#accounts-rows tr", { hasText: "bert@example.org" }).filter({ hasText: "disabled" }).waitFor();
  assert.deepEqual(problems, []);
});

test("deliveries are found by address and by Message-ID, and show nothing of an email's content", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, "#/mail");
  await isReady(page);
  const rows = page.locator("#deliveries-rows tr");
  await until("all deliveries", async () => (await rows.count()) === 6);
  assert.match(await rows.first().innerText(), /refused[\s\S]*550[\s\S]*nobody@example\.org/);
  await page.locator("#trace-about").fill("nobody@example.org");
  await page.keyboard.press("Enter");
  await until("those of an address", async () => (await rows.count()) === 1);
  await page.locator("#trace-about").fill("<mail-3@example.net>");
  await page.keyboard.press("Enter");
  await until("that of a Message-ID", async () => /delivered/.test(await rows.first().innerText()));
  assert.equal(await rows.count(), 1);
  await page.locator("#trace-about").fill("stranger@example.net");
  await page.keyboard.press("Enter");
  await page.getByText("The journal has nothing about stranger@example.net.").waitFor();
  await page.locator("#trace-about").fill("");
  await page.keyboard.press("Enter");
  await until("all deliveries", async () => (await rows.count()) === 6);
  assert.ok(!(await text(page, "main")).includes(SECRET));
  assert.deepEqual(problems, []);
});

test("an account has a page", TIMEOUT, async (t) => {
  const [[, { ids }]] = await request([["Email/query", { limit: 1 }]]);
  await request([["Email/set", { destroy: ids }]]);
  const { page, problems } = await visit(t, "#/mail");
  await isReady(page);
  await page.locator("#account-address").fill(ANNA);
  await page.keyboard.press("Enter");
  await page.locator("#account-body").waitFor();
  assert.equal(await page.title(), `${ANNA} – restante`);
  const facts = await text(page, "#account-facts");
  assert.match(facts, /State\s+active[\s\S]*Emails\s+4[\s\S]*of 5\.0 MB \(0 %\)[\s\S]*Open now\s+nothing/);
  await page.locator("#mailboxes-rows tr", { hasText: "Inbox" }).filter({ hasText: "4 emails" }).filter({ hasText: "4 unread" }).waitFor();
  assert.match(await text(page, "#vault-facts"), /Destroyed emails\s+1[\s\S]*Kept for\s+30 d/);
  assert.match(await text(page, "#logins"), /its own password[\s\S]*bert@example\.org reads/);
  await until("the deliveries", async () => (await page.locator("#account-deliveries-rows tr").count()) === 5);
  assert.ok(!(await text(page, "main")).includes(SECRET));
  await shoot(page, "account-light", { fullPage: true });

  await page.locator("#logins a").click();
  await page.locator("#account-facts", { hasText: "disabled: log-ins and mail are refused" }).waitFor();
  await page.goto(`${server.url}/#/account?address=nobody%40example.org`);
  await page.locator("#account-note", { hasText: "there is no account nobody@example.org" }).waitFor();
  assert.ok(!(await page.locator("#account-body").isVisible()));
  assert.deepEqual(problems.filter((each) => !/404/.test(each)), []);
});

test("open event streams are shown on the page of their account", TIMEOUT, async (t) => {
  const authorization = `Basic ${Buffer.from(`${ANNA}:${PASSWORD}`).toString("base64")}`;
  const ending = new AbortController();
  t.after(() => ending.abort());
  const stream = await fetch(`http://127.0.0.1:${jmap}/jmap/events?types=*&closeafter=no&ping=0`, { headers: { authorization }, signal: ending.signal });
  assert.equal(stream.status, 200);
  const { page } = await visit(t, `#/account?address=${encodeURIComponent(ANNA)}`);
  await page.locator("#account-facts", { hasText: "1 event stream" }).waitFor();
  ending.abort();
  await until("the stream has ended", async () => /Open now\s+nothing/.test(await text(page, "#account-facts")));
});

/** A server with mail for two domains that can't be sent: nobody listens where it is to go. */
async function startQueue(t) {
  const [lmtpPort, nowhere] = [await freePort(), await freePort()];
  const other = await Server.start("--rest-admin", "--lmtp-listen", `127.0.0.1:${lmtpPort}`, "--smarthost", `127.0.0.1:${nowhere}`);
  t.after(() => other.remove());
  await operate(other, { do: "add_domain", domain: "example.org", separator: null, catch_all: null });
  await operate(other, { do: "add_alias", address: "team@example.org", targets: ["carol@far.example", "dave@far.example", "erin@near.example"] });
  assert.match(await deliver(lmtpPort, "team@example.org", message(1)), /^250 /);
  return other;
}

test("operators see what waits to be sent, and change it", TIMEOUT, async (t) => {
  const other = await startQueue(t);
  const { page, problems } = await visit(t, "#/mail", {}, other);
  await isReady(page);
  const domain = page.locator("#outgoing-rows tr", { hasText: "far.example" });
  await domain.filter({ hasText: "2 recipients" }).waitFor();
  assert.match(await text(page, "#outgoing-facts"), /Waiting\s+3 recipients[\s\S]*Held\s+0 recipients/);
  await domain.getByRole("link").click();
  const rows = page.locator("#queue-rows tr");
  await until("the recipients of the domain", async () => (await rows.count()) === 2);
  assert.equal(await page.title(), "Outgoing mail – restante");
  const carol = rows.filter({ hasText: "carol@far.example" });
  await page.getByRole("button", { name: "Hold carol@far.example" }).click();
  await carol.filter({ hasText: "by an operator, on the console" }).waitFor();
  await page.getByRole("button", { name: "Release carol@far.example" }).click();
  await carol.filter({ hasText: /waits|is being tried/ }).waitFor();
  await page.getByRole("button", { name: "Drop carol@far.example" }).click();
  await page.getByRole("button", { name: "Leave it" }).click();
  assert.equal(await rows.count(), 2);
  await page.getByRole("button", { name: "Drop carol@far.example" }).click();
  await page.getByRole("button", { name: "Drop", exact: true }).click();
  await until("it has left", async () => (await rows.count()) === 1);
  assert.ok(!(await text(page, "main")).includes(SECRET));
  assert.ok(await isStill(page), "the queue is no wider than the window");
  await shoot(page, "queue-light", { fullPage: true });
  assert.deepEqual((await accessibility(page)).violations, []);

  await page.getByRole("button", { name: "Drop all" }).click();
  await page.getByRole("button", { name: "Drop", exact: true }).click();
  await page.getByText("Nothing waits here.").waitFor();
  await page.locator("#queue-domain").fill("");
  await page.keyboard.press("Enter");
  await rows.filter({ hasText: "erin@near.example" }).waitFor();
  assert.deepEqual(problems, []);
});

test("that everything is held is shown, with what lets it go", TIMEOUT, async (t) => {
  const other = await startQueue(t);
  const operation = { do: "hold", which: "all", why: "the provider moves" };
  const body = JSON.stringify({ by: "the test", operation });
  const held = await fetch(`${other.url}/admin/v1/queue`, { method: "POST", headers: { "content-type": "application/json" }, body });
  assert.equal(held.status, 200);
  const { page, problems } = await visit(t, "#/mail", PHONE, other);
  await isReady(page);
  await page.locator("#outgoing-held", { hasText: "the provider moves" }).filter({ hasText: "restante queue release --all" }).waitFor();
  await page.locator("#outgoing-rows tr", { hasText: "far.example" }).waitFor();
  assert.ok(await isStill(page), "mail is no wider than the window");
  assert.deepEqual((await accessibility(page)).violations, []);
  await page.locator("#outgoing-held").getByRole("button", { name: "Release all" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Release all" }).click();
  await page.locator("#outgoing-held").waitFor({ state: "hidden" });
  assert.deepEqual(problems, []);
});

test("a server without mail shows none of it", TIMEOUT, async (t) => {
  const other = await Server.start();
  t.after(() => other.remove());
  const { page, problems } = await visit(t, "", {}, other);
  await isReady(page);
  assert.equal(await page.locator('[data-view="mail"]').isVisible(), false);
  await page.keyboard.press("e");
  assert.equal(new URL(page.url()).hash, "");
  assert.deepEqual(problems, []);
});

test("the pages of mail are reached by keyboard", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, "");
  await isReady(page);
  await page.locator('[data-view="mail"]').waitFor();
  await page.keyboard.press("e");
  await page.locator("#trace-about").waitFor();
  await page.locator("#trace-about").press("e");
  assert.equal(await page.locator("#trace-about").inputValue(), "e", "a field takes the key");
  await page.locator("#accounts-rows a", { hasText: ANNA }).focus();
  await page.keyboard.press("Enter");
  await page.locator("#account-body").waitFor();
  await page.keyboard.press("o");
  await page.locator("#mail-facts", { hasText: "since the start" }).waitFor();
  assert.deepEqual(problems, []);
});

for (const [name, options] of [
  ["light", { colorScheme: "light" }],
  ["dark", { colorScheme: "dark" }],
  ["phone", { ...PHONE, colorScheme: "light" }],
  ["phone-dark", { ...PHONE, colorScheme: "dark" }],
]) {
  test(`in ${name} the pages of mail are accessible, and nothing is wider than the window`, TIMEOUT, async (t) => {
    const { page, problems } = await visit(t, "#/mail", options);
    await isReady(page);
    await page.locator("#accounts-rows tr").first().waitFor();
    await page.locator("#deliveries-rows tr").first().waitFor();
    assert.ok(await isStill(page), "mail is no wider than the window");
    await shoot(page, `mail-${name}`, { fullPage: true });
    const { violations, passes } = await accessibility(page);
    assert.deepEqual(violations, []);
    assert.ok(passes > 15, "axe has looked at the page");
    await page.goto(`${server.url}/#/account?address=${encodeURIComponent(ANNA)}`);
    await page.locator("#account-deliveries-rows tr").first().waitFor();
    assert.ok(await isStill(page), "an account is no wider than the window");
    await shoot(page, `account-${name}`, { fullPage: true });
    assert.deepEqual((await accessibility(page)).violations, []);
    assert.deepEqual(problems, []);
  });
}
