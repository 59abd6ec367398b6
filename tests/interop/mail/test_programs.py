"""JMAP clients of other languages, a JMAP program for the command line, and senders of mail, each as its project ships it."""

import asyncio
import json
import pathlib
import shutil
import sys
import unittest

import aiosmtplib
from jmapc.methods import EmailGet

from server import INSTALLED, PASSWORD, USER, Server, ServerTest, message, needs

HERE = pathlib.Path(__file__).parent


class ClientsTest(ServerTest):
    """Each client does the whole round: session, mailboxes, query, get, flags, move, upload, import, search, push, destroy."""

    @classmethod
    def setUpClass(cls):
        cls.serve(Server())
        # A token is created while the server is stopped.
        cls.server.process.terminate()
        cls.server.process.wait()
        cls.token = cls.server.run("token", "create", USER, "--name", "interop", "--scope", "mail").strip()
        cls.server.start()

    def test_jmap_jam(self):
        if not (HERE / "js/node_modules").exists():
            needs("jmap-jam")  # which is nowhere else
        said = self.program(
            "node", HERE / "js/jam.mjs", SESSION_URL=f"{self.server.url}/.well-known/jmap", TOKEN=self.token,
            NODE_EXTRA_CA_CERTS=str(self.server.certificate),
        )
        self.assertIn("passed", said)

    def test_jmap_client_of_rust(self):
        said = self.program(needs("interop-jmap-client"), self.server.url, USER, PASSWORD=PASSWORD)
        self.assertIn("passed", said)


class JmaxTest(ServerTest):
    """A program that people use at the prompt."""

    def jmax(self, *arguments):
        program = pathlib.Path(sys.executable).parent / "jmax"
        said = self.program(
            program, *arguments, JMAP_URL=self.server.url, JMAP_USER=USER, JMAP_PASSWORD=PASSWORD,
            JMAX_AUTH_PATH=str(self.server.folder / "none"), SSL_CERT_FILE=str(self.server.certificate),
        )
        return json.loads(said) if said.startswith(("[", "{")) else said

    def test_a_user_reads_flags_moves_and_deletes(self):
        mail = message("Invoice 7", "Please pay for the pancakes.")
        mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
        self.deliver(mail)
        self.deliver(message("Holiday", "We are away."))
        self.assertEqual(self.jmax("inbox", "--count").strip(), "2")
        inbox = self.jmax("inbox")
        self.assertEqual(sorted(email["subject"] for email in inbox), ["Holiday", "Invoice 7"])
        (found,) = self.jmax("search", "pancakes", "--in", "inbox")
        identifier = found["id"]
        self.assertIn("Please pay", self.jmax("get", identifier, "--body"))
        target = self.server.folder / "invoice.pdf"
        self.jmax("attachment", identifier, "invoice.pdf", "-o", target)
        self.assertEqual(target.read_bytes(), b"%PDF")

        self.jmax("read", identifier)
        self.jmax("flag", identifier)
        self.assertEqual([email["subject"] for email in self.jmax("inbox", "--unread")], ["Holiday"])
        self.jmax("unflag", identifier)
        self.jmax("move", identifier, "--to", "archive")
        boxes = {box["role"]: box for box in self.jmax("mailboxes") if box.get("role")}
        self.assertEqual(boxes["inbox"]["totalEmails"], 1)
        self.assertEqual(boxes["archive"]["totalEmails"], 1)
        self.jmax("trash", identifier)
        self.jmax("delete", identifier, "--permanent", "--yes")
        self.assertEqual(self.jmax("search", "away")[0]["subject"], "Holiday")
        with self.assertRaisesRegex(AssertionError, "1 != 0"):  # its answer to a search that finds nothing
            self.jmax("search", "pancakes")


class SendersTest(ServerTest):
    def test_aiosmtplib_sends_over_tls_with_several_connections_at_once(self):
        subjects = [f"Async {number}" for number in range(20)]

        async def send(mine):
            client = aiosmtplib.SMTP(
                hostname="localhost", port=self.server.smtp, start_tls=True, cert_bundle=str(self.server.certificate)
            )
            async with client:
                for subject in mine:
                    errors, _ = await client.send_message(message(subject), sender="bert@example.net", recipients=[USER])
                    self.assertEqual(errors, {})
                with self.assertRaises(aiosmtplib.SMTPRecipientsRefused):
                    await client.send_message(message("Relay"), recipients=["carl@elsewhere.example"])

        async def send_all():
            await asyncio.gather(*(send(subjects[number::4]) for number in range(4)))

        asyncio.run(send_all())
        self.assertEqual(self.subjects(self.server.client(), text="async"), sorted(subjects))

    def swaks(self, protocol, port, *arguments):
        program = shutil.which("swaks") or INSTALLED / "debian/usr/bin/swaks"
        if not pathlib.Path(program).exists():
            self.skipTest("swaks is not here")
        return self.program(
            program, "--protocol", protocol, "--server", f"127.0.0.1:{port}", "--helo", "client.example",
            "--from", "bert@example.net", *arguments,
        )

    def test_swaks_delivers_by_lmtp_and_smtp(self):
        header = ["--header", "Subject: By swaks"]
        self.swaks("LMTP", self.server.lmtp, "--to", USER, *header, "--body", "one\n.two\n..three")
        self.swaks("ESMTP", self.server.smtp, "--to", USER, "--pipeline", *header, "--attach", f"@{__file__}")
        self.swaks("SMTP", self.server.smtp, "--to", USER, *header)
        client = self.server.client()
        self.assertEqual(self.subjects(client, text="swaks"), ["By swaks"] * 3)
        (dots,) = self.find(client, body="three")
        get = EmailGet(ids=[dots], fetch_text_body_values=True)
        (value,) = self.one(client, get).data[0].body_values.values()
        self.assertIn("one\n.two\n..three\n", value.value)
        (attached,) = self.find(client, text="swaks", has_attachment=True)
        email = self.one(client, EmailGet(ids=[attached])).data[0]
        target = self.server.folder / "attached"
        client.download_attachment(email.attachments[0], target)
        self.assertEqual(target.read_bytes(), pathlib.Path(__file__).read_bytes())

    def test_swaks_is_refused_a_relay(self):
        with self.assertRaisesRegex(AssertionError, "554 5.7.1"):
            self.swaks("ESMTP", self.server.smtp, "--to", "carl@elsewhere.example")


if __name__ == "__main__":
    unittest.main(verbosity=2)
