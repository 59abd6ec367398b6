// The round of `jmap-jam` against the server whose session is at SESSION_URL, with the bearer token TOKEN.
import assert from "node:assert/strict";
import { EventSource } from "eventsource";
import JamClient from "jmap-jam";

const { SESSION_URL: sessionUrl, TOKEN: bearerToken } = process.env;
const SUBJECT = "Brought by jmap-jam";
const MESSAGE = [
  "From: Bert <bert@example.net>", "To: anna@example.org", `Subject: ${SUBJECT}`, "Message-ID: <by.jam@example.net>",
  "MIME-Version: 1.0", "Content-Type: text/plain; charset=utf-8", "Content-Transfer-Encoding: 8bit", "", "Käse für den Fuchs.", "",
].join("\r\n");

// jmap-jam uses the EventSource of its environment, which Node doesn't have yet. A browser's has cookies; this one sends the
// token.
globalThis.EventSource = class extends EventSource {
  constructor(url) {
    super(url, {
      fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, Authorization: `Bearer ${bearerToken}` } }),
    });
  }
};

const refused = new JamClient({ sessionUrl, bearerToken: "wrong" });
assert.equal((await refused.session).apiUrl, undefined, "a wrong token has no session");

const jam = new JamClient({ sessionUrl, bearerToken });
const accountId = await jam.getPrimaryAccount();
assert.ok(accountId);

// Mailboxes.
const [mailboxes] = await jam.api.Mailbox.get({ accountId, ids: null });
const inbox = mailboxes.list.find((mailbox) => mailbox.role === "inbox").id;
const [made] = await jam.api.Mailbox.set({ accountId, create: { new: { name: "Jam", parentId: null } } });
const folder = made.created.new.id;
const [byName] = await jam.api.Mailbox.query({ accountId, filter: { name: "jam" } });
assert.deepEqual(byName.ids, [folder]);

// A message is uploaded and imported, while the client listens.
const [{ state }] = await jam.api.Email.get({ accountId, ids: [] });
const events = await jam.connectEventSource({ types: ["Email", "Mailbox"], ping: 30 });
const changed = new Promise((resolve, reject) => {
  events.addEventListener("state", (event) => resolve(JSON.parse(event.data).changed[accountId]));
  setTimeout(() => reject(new Error("no push came")), 60_000).unref();
});
await new Promise((resolve, reject) => {
  events.addEventListener("open", resolve);
  events.addEventListener("error", (event) => reject(new Error(event.message)));
});
const blob = await jam.uploadBlob(accountId, new Blob([MESSAGE], { type: "message/rfc822" }));
assert.equal(blob.size, Buffer.byteLength(MESSAGE));
const [imported] = await jam.api.Email.import({
  accountId,
  emails: { mail: { blobId: blob.blobId, mailboxIds: { [inbox]: true }, keywords: { $flagged: true } } },
});
const { id, blobId, threadId } = imported.created.mail;
const states = await changed;
events.close();
assert.ok(states.Email && states.Mailbox, JSON.stringify(states));

// Found and read, by references in one request.
const [{ found, emails, snippets }] = await jam.requestMany((t) => {
  const filter = { operator: "AND", conditions: [{ inMailbox: inbox }, { text: "KASE" }, { hasKeyword: "$flagged" }] };
  const found = t.Email.query({ accountId, filter, sort: [{ property: "receivedAt", isAscending: false }], calculateTotal: true });
  const emails = t.Email.get({ accountId, ids: found.$ref("/ids"), fetchTextBodyValues: true });
  const snippets = t.SearchSnippet.get({ accountId, emailIds: found.$ref("/ids"), filter });
  return { found, emails, snippets };
});
assert.deepEqual([found.ids, found.total], [[id], 1]);
const [email] = emails.list;
assert.deepEqual([email.subject, email.from[0].email, email.threadId], [SUBJECT, "bert@example.net", threadId]);
assert.equal(Object.values(email.bodyValues)[0].value, "Käse für den Fuchs.\n");
assert.match(snippets.list[0].preview, /<mark>Käse<\/mark>/);
const raw = await jam.downloadBlob({ accountId, blobId, mimeType: "message/rfc822", fileName: "mail.eml" });
assert.equal(await raw.text(), MESSAGE);
const [thread] = await jam.api.Thread.get({ accountId, ids: [threadId] });
assert.deepEqual(thread.list[0].emailIds, [id]);

// Flagged, moved, and the changes requested.
const [set] = await jam.api.Email.set({
  accountId,
  update: { [id]: { "keywords/$seen": true, "keywords/$flagged": null, mailboxIds: { [folder]: true } } },
});
assert.deepEqual(Object.keys(set.updated), [id]);
const [changes] = await jam.api.Email.changes({ accountId, sinceState: state });
assert.deepEqual([changes.created, changes.updated, changes.destroyed], [[id], [], []]);
const [moved] = await jam.api.Mailbox.get({ accountId, ids: [folder], properties: ["totalEmails", "unreadEmails"] });
assert.deepEqual(moved.list, [{ id: folder, totalEmails: 1, unreadEmails: 0 }]);

// Errors have the type of the RFC.
await assert.rejects(jam.api.Email.query({ accountId, filter: { unheardOf: true } }), { type: "unsupportedFilter" });
await assert.rejects(jam.api.Email.get({ accountId: "none", ids: [] }), { type: "accountNotFound" });

// Destroyed again.
const [destroyed] = await jam.api.Email.set({ accountId, destroy: [id] });
assert.deepEqual(destroyed.destroyed, [id]);
const [gone] = await jam.api.Mailbox.set({ accountId, destroy: [folder] });
assert.deepEqual(gone.destroyed, [folder]);
console.log("passed");
