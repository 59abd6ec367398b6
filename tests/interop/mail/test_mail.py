"""jmapc and smtplib: smtplib delivers by LMTP and SMTP, jmapc reads by JMAP over TLS."""

import base64
import smtplib
import threading
import time
import unittest

import jmapc
from jmapc import EmailQueryFilterCondition, Ref
from jmapc.methods import (
    CustomMethod,
    EmailChanges,
    EmailGet,
    EmailQuery,
    EmailSet,
    MailboxGet,
    SearchSnippetGet,
    ThreadGet,
)

from server import PASSWORD, PATIENCE_SECONDS, USER, ServerTest, message


class MailTest(ServerTest):
    def test_a_mail_makes_the_round_of_a_client(self):
        client = self.server.client()
        mail = message("Round", "The quick brown fox\nreads its mail.")
        mail.add_attachment(b"\x00\x01\x02", maintype="application", subtype="octet-stream", filename="b.bin")
        self.deliver(mail)
        inbox, archive = self.mailbox(client, "inbox"), self.mailbox(client, "archive")
        (identifier,) = self.find(client, in_mailbox=inbox, text="round")
        self.assertEqual(self.find(client, text="BROWN fox"), [identifier], "what just came is found")
        self.assertEqual(self.find(client, text="brown dog"), [])

        get = EmailGet(ids=[identifier], fetch_text_body_values=True)
        email = self.one(client, get).data[0]
        self.assertEqual((email.subject, email.mail_from[0].email), ("Round", "bert@example.net"))
        self.assertTrue(email.has_attachment)
        (value,) = email.body_values.values()
        self.assertEqual(value.value, "The quick brown fox\nreads its mail.\n")
        (attachment,) = email.attachments
        target = self.server.folder / "b.bin"
        client.download_attachment(attachment, target)
        self.assertEqual(target.read_bytes(), b"\x00\x01\x02")

        state = self.one(client, EmailGet(ids=[])).state
        changed = self.one(
            client,
            EmailSet(update={identifier: {"keywords/$seen": True, "mailboxIds": {archive: True}}}),
        )
        self.assertIn(identifier, changed.updated)
        changes = self.one(client, EmailChanges(since_state=state))
        self.assertEqual((changes.updated, changes.has_more_changes), ([identifier], False))
        self.assertNotIn(identifier, self.find(client, in_mailbox=inbox))
        boxes = {box.id: box for box in self.one(client, MailboxGet(ids=[inbox, archive])).data}
        self.assertEqual((boxes[archive].total_emails, boxes[archive].unread_emails), (1, 0))
        snippet = self.one(
            client, SearchSnippetGet(filter=EmailQueryFilterCondition(text="fox"), ids=[identifier])
        ).data[0]
        self.assertIn("<mark>fox</mark>", snippet.preview)
        destroyed = self.one(client, EmailSet(destroy=[identifier]))
        self.assertEqual(destroyed.destroyed, [identifier])
        self.assertEqual(self.find(client, text="brown fox"), [])

    def test_replies_are_one_thread(self):
        client = self.server.client()
        self.deliver(message("Lunch"))
        self.deliver(message("Re: Lunch", In_Reply_To="<Lunch@example.net>", References="<Lunch@example.net>"))
        results = client.request(
            [
                EmailQuery(filter=EmailQueryFilterCondition(text="lunch"), collapse_threads=True),
                EmailGet(ids=Ref("/ids"), properties=["threadId"]),
                ThreadGet(ids=Ref("/list/*/threadId")),
            ],
            raise_errors=True,
        )
        (thread,) = results[-1].response.data
        self.assertEqual(len(thread.email_ids), 2)

    def test_an_upload_is_imported(self):
        client = self.server.client()
        inbox = self.mailbox(client, "inbox")
        file = self.server.folder / "imported.eml"
        file.write_bytes(message("Imported", "from a file").as_bytes())
        blob = client.upload_blob(file)
        method = CustomMethod(data={
            "accountId": client.account_id,
            "emails": {"a": {"blobId": blob.id, "mailboxIds": {inbox: True}, "keywords": {"$flagged": True}}},
        })
        method.jmap_method = "Email/import"
        method.using = {"urn:ietf:params:jmap:mail"}
        imported = client.request(method).data["created"]["a"]["id"]
        self.assertEqual(self.find(client, has_keyword="$flagged"), [imported])
        self.assertEqual(self.find(client, body="file"), [imported])

    def test_a_client_that_listens_gets_the_new_state(self):
        client = self.server.client()
        states = []
        ready = threading.Event()

        def listen():
            client.jmap_session
            ready.set()
            for event in client.events:
                states.append(event.data.changed)
                return

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        self.assertTrue(ready.wait(PATIENCE_SECONDS))
        end = time.monotonic() + PATIENCE_SECONDS
        number = 0
        # Mail is delivered repeatedly, until the stream was open early enough to see it.
        while not states and time.monotonic() < end:
            number += 1
            self.deliver(message(f"Push {number}"))
            listener.join(1)
        (changed,) = states[0].values()
        self.assertIsNotNone(changed.email)
        self.assertIsNotNone(changed.email_delivery)

    def test_smtp_takes_mail_for_its_users_alone_over_tls(self):
        with smtplib.SMTP("127.0.0.1", self.server.smtp, local_hostname="client.example") as smtp:
            smtp.ehlo()
            self.assertTrue(smtp.has_extn("starttls") and smtp.has_extn("pipelining"))
            smtp.starttls()
            smtp.ehlo()
            self.assertFalse(smtp.has_extn("starttls"))
            smtp.send_message(message("By SMTP"), "bert@example.net", [USER])
            with self.assertRaises(smtplib.SMTPRecipientsRefused) as refused:
                smtp.send_message(message("Relay"), "bert@example.net", ["carl@elsewhere.example"])
            self.assertEqual(refused.exception.recipients["carl@elsewhere.example"][0], 554)
        client = self.server.client()
        (identifier,) = self.find(client, text='"by smtp"')
        raw = EmailGet(ids=[identifier], properties=["headers"])
        headers = self.one(client, raw).data[0].headers
        received = next(header.value for header in headers if header.name == "Received")
        self.assertIn("with ESMTPS", received)

    def test_a_wrong_password_is_refused(self):
        wrong = jmapc.Client.create_with_password(f"localhost:{self.server.jmap}", USER, "wrong")
        with self.assertRaises(Exception) as refused:
            wrong.jmap_session
        self.assertIn("401", str(refused.exception))
        credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        self.assertNotIn(credentials, str(refused.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
