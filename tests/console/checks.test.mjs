// Uses the pages of what checks found, as operators do: mail in quarantine, and DMARC results of domains.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { accessibility, launch, open, shoot } from "./browser.mjs";
import { answerNames } from "./dns.mjs";
import { addAccount, freePort, operate, send } from "./mail.mjs";
import { Server, until } from "./server.mjs";

const TIMEOUT = { timeout: 120_000 };
const ANNA = "anna@example.org";
const NARROW = { viewport: { width: 480, height: 800 } };
const RECORDS = { "_dmarc.good.example": "v=DMARC1; p=none", "good.example": "v=spf1 ip4:127.0.0.1 -all", "_dmarc.bad.example": "v=DMARC1; p=none", "bad.example": "v=spf1 -all" };

let browser;
let server;
let smtp;
let names;

/** Mail with a file that is not accepted, unless it is named otherwise. */
const message = (subject, domain, file = "Setup.EXE") => `From: Bob <bob@${domain}>\nTo: ${ANNA}\nMessage-ID: <${subject.length}.${domain}@x>\nSubject: ${subject}\nContent-Type: application/octet-stream; name="${file}"\n\nHello\n`;

before(async () => {
  browser = await launch();
  names = await answerNames(RECORDS);
  smtp = await freePort();
  const settings = `[checks]\nexempt = []\nattachments = ["*.exe"]\nattachments_action = "quarantine"\n[delivery.remote]\nresolver = ["127.0.0.1:${names.port}"]\n`;
  server = await Server.start("--rest-admin", "--smtp-listen", `127.0.0.1:${smtp}`, "--config", (own) => own.file("restante.toml", settings));
  await operate(server, { do: "add_domain", domain: "example.org", separator: null, catch_all: null });
  await addAccount(server, ANNA, "correct horse");
  for (const subject of ["An invoice", "A <b>parcel</b>", "A prize"]) assert.match(await send(smtp, ANNA, message(subject, "bad.example"), "bob@bad.example"), /^250 /);
  assert.match(await send(smtp, ANNA, message("plain", "good.example", "a.txt"), "bob@good.example"), /^250 /);
  // DMARC results are written when the server stops, and otherwise each minute.
  await server.stop();
  await server.start();
});

after(async () => {
  await browser?.close();
  await server?.remove();
  names?.close();
});

/** A page at a part of the console, closed again when the test is over. */
async function visit(t, hash, options = {}) {
  const visited = await open(browser, `${server.url}/${hash}`, options);
  t.after(() => visited.close());
  return visited;
}

const text = (page, selector) => page.locator(selector).innerText();
const isReady = (page) => page.locator('#pulse[data-state="ready"]').waitFor();
const isStill = async (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);

test("operators see what DMARC found, by domain and by address", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, "#/mail");
  await isReady(page);
  await page.getByRole("link", { name: "DMARC, by domain" }).click();
  const rows = page.locator("#dmarc-rows tr");
  await until("the domains", async () => (await rows.count()) === 2);
  assert.equal(await page.title(), "DMARC – restante");
  assert.match(await rows.first().innerText(), /bad\.example[\s\S]*3 failed[\s\S]*0 passed/, "those with failures come first");
  assert.match(await rows.last().innerText(), /good\.example[\s\S]*0 failed[\s\S]*1 passed/);
  await rows.last().getByRole("link").click();
  await page.locator("#sources-rows tr", { hasText: "127.0.0.1" }).filter({ hasText: "1 by SPF" }).filter({ hasText: "0 by DKIM" }).waitFor();
  assert.match(await text(page, "#sources"), /restante dmarc report good\.example --day \d{4}-\d\d-\d\d/);
  await shoot(page, "dmarc-light", { fullPage: true });
  assert.deepEqual((await accessibility(page)).violations, []);
  await page.goto(`${server.url}/#/dmarc?day=19000`);
  await page.getByText("No mail of 2022-01-08 has a domain with a DMARC record.").waitFor();
  assert.deepEqual(problems, []);
});

test("in a narrow window the pages of checks are accessible, and nothing is wider than the window", TIMEOUT, async (t) => {
  for (const colorScheme of ["light", "dark"]) {
    const { page, problems } = await visit(t, "#/dmarc?domain=bad.example", { ...NARROW, colorScheme });
    await isReady(page);
    await page.locator("#sources-rows tr", { hasText: "3 failed" }).waitFor();
    assert.ok(await isStill(page), "DMARC is no wider than the window");
    await shoot(page, `dmarc-narrow-${colorScheme}`, { fullPage: true });
    assert.deepEqual((await accessibility(page)).violations, []);
    await page.goto(`${server.url}/#/quarantine`);
    await page.getByRole("button", { name: "Show “An invoice”" }).click();
    await page.locator("#quarantined-text").waitFor();
    assert.ok(await isStill(page), "the quarantine is no wider than the window");
    await shoot(page, `quarantine-narrow-${colorScheme}`, { fullPage: true });
    assert.deepEqual((await accessibility(page)).violations, []);
    assert.deepEqual(problems, []);
  }
});

test("operators look into the quarantine, release and drop", TIMEOUT, async (t) => {
  const { page, problems } = await visit(t, "#/mail");
  await isReady(page);
  await until("the count", async () => /In quarantine\s+3 messages/.test(await text(page, "#checks-facts")));
  await page.getByRole("link", { name: "Quarantine" }).click();
  const rows = page.locator("#quarantine-rows tr");
  await until("the messages", async () => (await rows.count()) === 3);
  assert.equal(await page.title(), "Quarantine – restante");
  const parcel = rows.filter({ hasText: "A <b>parcel</b>" });
  assert.match(await parcel.innerText(), /bob@bad\.example → anna@example\.org[\s\S]*Setup\.EXE/);
  await page.getByRole("button", { name: "Show “A <b>parcel</b>”" }).click();
  await page.locator("#quarantined-text", { hasText: "Subject: A <b>parcel</b>" }).waitFor();
  assert.match(await text(page, "#quarantined-facts"), /Reason\s+\S[\s\S]*Sender\s+bob@bad\.example[\s\S]*Recipients\s+anna@example\.org[\s\S]*\[127\.0\.0\.1\]/);
  assert.ok(await isStill(page), "the quarantine is no wider than the window");
  await shoot(page, "quarantine-light", { fullPage: true });
  assert.deepEqual((await accessibility(page)).violations, []);

  const dialog = page.getByRole("dialog");
  await parcel.getByRole("button", { name: "Release" }).click();
  await dialog.getByRole("button", { name: "Leave it" }).click();
  assert.equal(await rows.count(), 3);
  await parcel.getByRole("button", { name: "Release" }).click();
  await dialog.getByRole("button", { name: "Release" }).click();
  await until("it was released", async () => (await rows.count()) === 2);
  assert.ok(!(await page.locator("#quarantined").isVisible()), "it is not shown any more");
  await page.getByRole("button", { name: "Drop “A prize”" }).click();
  await dialog.getByRole("button", { name: "Drop" }).click();
  await until("it was dropped", async () => (await rows.count()) === 1);

  await page.locator("#quarantine-domain").fill("good.example");
  await page.keyboard.press("Enter");
  await page.getByText("No message is here.").waitFor();
  await page.locator("#quarantine-domain").fill("");
  await page.locator("#quarantine-recipient").fill(ANNA);
  await page.keyboard.press("Enter");
  await rows.filter({ hasText: "An invoice" }).waitFor();

  // The operator is named among the deliveries.
  await page.goto(`${server.url}/#/mail`);
  const deliveries = page.locator("#deliveries-rows tr");
  await deliveries.filter({ hasText: "dropped" }).filter({ hasText: "by the console over HTTP" }).waitFor();
  await deliveries.filter({ hasText: "released" }).filter({ hasText: "by the console over HTTP" }).waitFor();
  assert.equal(await deliveries.filter({ hasText: "to quarantine" }).count(), 3);
  assert.deepEqual(problems, []);
});
