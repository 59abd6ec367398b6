"""Foreign clients submit mail to restante, and foreign servers take it from restante."""

import asyncio
import email
import email.policy
import json
import os
import pathlib
import shutil
import smtplib
import ssl
import time
import unittest

import aiosmtplib
import dkim
from aiosmtpd.controller import Controller
from jmapc import Address, Email, EmailAddress, EmailBodyPart, EmailBodyValue, EmailSubmission
from jmapc.methods import EmailSet, EmailSubmissionSet, IdentityGet

from server import INSTALLED, PASSWORD, PATIENCE_SECONDS, USER, Server, ServerTest, free_port, message
from test_postfix import Postfix, has_postfix

HERE = pathlib.Path(__file__).parent
OTHER = "carl@elsewhere.example"


class Sink:
    """A server in Python that keeps what it is sent."""

    def __init__(self):
        self.taken = []
        self.controller = Controller(self, hostname="127.0.0.1", port=free_port(), enable_SMTPUTF8=True)
        self.controller.start()

    async def handle_DATA(self, server, session, envelope):
        self.taken.append(envelope)
        return "250 2.0.0 taken"

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody"):
            return "550 5.1.1 nobody here"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 ok"

    @property
    def port(self):
        return self.controller.port

    def find(self, subject):
        """The messages with this subject, waited for."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            found = [envelope for envelope in self.taken if f"Subject: {subject}\r\n".encode() in envelope.content]
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"{subject} has not arrived")


def draft(subject, to=OTHER, text="Hello!"):
    mail = message(subject, text)
    mail.replace_header("From", f"Anna <{USER}>")
    mail.replace_header("To", to)
    del mail["Message-ID"]
    return mail


class SubmissionTest(ServerTest):
    """Clients submit to restante, which sends to a server in Python."""

    @classmethod
    def setUpClass(cls):
        cls.sink = Sink()
        cls.addClassCleanup(cls.sink.controller.stop)
        cls.serve(Server(smarthost=cls.sink.port))

    def check(self, subject, recipients=(OTHER,), fields=("Message-ID", "Date", "Received")):
        (taken,) = self.sink.find(subject)
        self.assertEqual((taken.mail_from, sorted(taken.rcpt_tos)), (USER, sorted(recipients)))
        mail = email.message_from_bytes(taken.content, policy=email.policy.default)
        for field in fields:
            self.assertIn(field, mail, subject)
        return mail

    def test_smtplib_by_each_mechanism_and_port(self):
        for mechanism in ("auth_plain", "auth_login"):
            with smtplib.SMTP("localhost", self.server.submission) as smtp:
                smtp.starttls(context=self.server.trust())
                smtp.ehlo()
                smtp.user, smtp.password = USER, PASSWORD
                smtp.auth(mechanism.removeprefix("auth_"), getattr(smtp, mechanism))
                smtp.send_message(draft(f"By {mechanism}"), USER, [OTHER])
            self.check(f"By {mechanism}")
        with smtplib.SMTP_SSL("localhost", self.server.submissions, context=self.server.trust()) as smtp:
            smtp.login(USER, PASSWORD)
            smtp.send_message(draft("By 465"), USER, [OTHER, "dora@elsewhere.example"])
        self.check("By 465", [OTHER, "dora@elsewhere.example"])

    def test_smtplib_is_refused_what_others_may(self):
        with smtplib.SMTP("localhost", self.server.submission) as smtp:
            smtp.ehlo()
            self.assertFalse(smtp.has_extn("auth"), "no password without TLS")
            smtp.starttls(context=self.server.trust())
            smtp.ehlo()
            with self.assertRaises(smtplib.SMTPAuthenticationError):
                smtp.login(USER, "wrong")
            self.assertEqual(smtp.mail(USER)[0], 530)
            smtp.login(USER, PASSWORD)
            self.assertEqual(smtp.mail("bert@example.org")[0], 553)

    def test_aiosmtplib_submits_over_several_connections(self):
        async def send(number):
            client = aiosmtplib.SMTP(
                hostname="localhost", port=self.server.submission, start_tls=True, username=USER, password=PASSWORD,
                cert_bundle=str(self.server.certificate),
            )
            async with client:
                await client.send_message(draft(f"Async {number}."), sender=USER, recipients=[OTHER])

        async def send_all():
            await asyncio.gather(*(send(number) for number in range(10)))

        asyncio.run(send_all())
        for number in range(10):
            self.check(f"Async {number}.")

    def test_nodemailer_submits_with_attachments_and_other_alphabets(self):
        if not (HERE / "js/node_modules/nodemailer").exists():
            self.skipTest("nodemailer is not installed")
        self.program(
            "node", HERE / "js/nodemailer.mjs", PORT=str(self.server.submissions), PASSWORD=PASSWORD,
            NODE_EXTRA_CA_CERTS=str(self.server.certificate),
        )
        mail = self.check("By nodemailer")
        (attached,) = mail.iter_attachments()
        self.assertEqual((attached.get_filename(), attached.get_content()), ("ελληνικά.txt", "Γειά\n"))

    def test_msmtp_submits(self):
        program = shutil.which("msmtp") or INSTALLED / "debian/usr/bin/msmtp"
        if not pathlib.Path(program).exists():
            self.skipTest("msmtp is not here")
        mail = self.server.folder / "draft"
        mail.write_bytes(draft("By msmtp").as_bytes())
        libraries = ":".join(map(str, (INSTALLED / "debian/usr/lib").glob("*-linux-gnu")))
        self.program(
            "sh", "-c", f'"{program}" "$@" < "{mail}"', "msmtp", "--file=/dev/null", "--host=localhost",
            f"--port={self.server.submission}", "--tls=on", f"--tls-trust-file={self.server.certificate}",
            "--auth=plain", f"--user={USER}", f"--passwordeval=echo '{PASSWORD}'", f"--from={USER}", "--", OTHER,
            LD_LIBRARY_PATH=libraries,
        )
        self.check("By msmtp")

    def test_jmapc_submits_a_draft(self):
        client = self.server.client()
        identity = self.one(client, IdentityGet()).data[0]
        self.assertEqual(identity.email, USER)
        drafts, sent = self.mailbox(client, "drafts"), self.mailbox(client, "sent")
        body = {"1": EmailBodyValue(value="Hello!")}
        mail = Email(
            mail_from=[EmailAddress(email=USER, name="Anna")], to=[EmailAddress(email=OTHER)], subject="By JMAP",
            keywords={"$draft": True}, mailbox_ids={drafts: True}, body_values=body,
            text_body=[EmailBodyPart(part_id="1", type="text/plain")],
        )
        made = self.one(client, EmailSet(create={"d": mail})).created["d"]
        submission = EmailSubmission(email_id=made.id, identity_id=identity.id)
        submit = EmailSubmissionSet(
            create={"s": submission},
            on_success_update_email={"#s": {"keywords/$draft": None, f"mailboxIds/{drafts}": None, f"mailboxIds/{sent}": True}},
        )
        answers = client.request([submit])
        self.assertIn("s", answers[0].response.created)
        self.check("By JMAP", fields=("Message-ID", "Date"))
        self.assertEqual(self.subjects(client, in_mailbox=sent), ["By JMAP"])

    def test_what_the_other_server_refuses_comes_back(self):
        with smtplib.SMTP_SSL("localhost", self.server.submissions, context=self.server.trust()) as smtp:
            smtp.login(USER, PASSWORD)
            smtp.send_message(draft("Comes back"), USER, ["nobody@elsewhere.example"])
        client = self.server.client()
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.find(client, text="nobody@elsewhere.example")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        self.one(client, EmailSet(destroy=found))


class SignatureTest(ServerTest):
    """dkimpy verifies what restante signs."""

    @classmethod
    def setUpClass(cls):
        cls.sink = Sink()
        cls.addClassCleanup(cls.sink.controller.stop)
        server = Server(smarthost=cls.sink.port)
        cls.serve(server)
        server.process.terminate()
        server.process.wait()
        cls.keys = {}
        server.run("domain", "dkim", "create", "example.org")
        for key in json.loads(server.run("domain", "dkim", "list", "example.org", "--format", "json")):
            server.run("domain", "dkim", "activate", "example.org", key["selector"])
        server.run("alias", "add", "team@example.org", OTHER)
        for line in server.run("domain", "records", "example.org").splitlines():
            name, _, value = line.partition(" TXT ")
            if "._domainkey." in name and not name.startswith(";"):
                cls.keys[name.split()[0].encode()] = "".join(value.split('"')[1::2]).encode()
        server.start()

    def test_dkimpy_verifies_both_signatures(self):
        self.assertEqual(len(self.keys), 2)
        bodies = {"Plain": "Hello!\n", "Ends in lines": "Hello!\n \n\t\n\n", "Long": "x" * 900 + "\n", "Empty": ""}
        with smtplib.SMTP_SSL("localhost", self.server.submissions, context=self.server.trust()) as smtp:
            smtp.login(USER, PASSWORD)
            for subject, text in bodies.items():
                smtp.send_message(draft(subject, text=text), USER, [OTHER])
        for subject in bodies:
            (taken,) = self.sink.find(subject)
            content = taken.content
            signatures = content.count(b"DKIM-Signature:")
            self.assertEqual(signatures, 2, subject)
            for index in range(signatures):
                verifier = dkim.DKIM(content)
                is_valid = verifier.verify(index, dnsfunc=lambda name, **_: self.keys[name])
                self.assertTrue(is_valid, f"{subject}, signature {index}\n{content.decode(errors='replace')}")
            changed = content.replace(b"Subject: ", b"Subject: X", 1)
            self.assertFalse(dkim.DKIM(changed).verify(0, dnsfunc=lambda name, **_: self.keys[name]))

    def test_dkimpy_verifies_the_seal_of_a_forward(self):
        with smtplib.SMTP("127.0.0.1", self.server.smtp) as smtp:
            smtp.sendmail("bert@example.net", ["team@example.org"], message("Forwarded").as_string())
        (taken,) = self.sink.find("Forwarded")
        self.assertEqual(taken.rcpt_tos, [OTHER])
        result, sets, reason = dkim.arc_verify(taken.content, dnsfunc=lambda name, **_: self.keys[name])
        self.assertEqual((result, len(sets)), (b"pass", 1), f"{reason}\n{taken.content.decode(errors='replace')}")
        changed = taken.content.replace(b"Hello!", b"Hallo!")
        self.assertEqual(dkim.arc_verify(changed, dnsfunc=lambda name, **_: self.keys[name])[0], b"fail")

    def test_opendkim_verifies_both_signatures(self):
        program = shutil.which("opendkim") or INSTALLED / "debian/usr/sbin/opendkim"
        if not pathlib.Path(program).exists():
            self.skipTest("opendkim is not here; tests/interop/run says why")
        libraries = [INSTALLED / "debian/usr/lib", *(INSTALLED / "debian/usr/lib").glob("*-linux-gnu")]
        folder = self.server.folder
        records = [f"{name.decode().rstrip('.')} {text.decode()}\n" for name, text in self.keys.items()]
        (folder / "keys").write_text("".join(records))
        (folder / "opendkim.conf").write_text(f"TestPublicKeys {folder}/keys\nMode v\n")
        with smtplib.SMTP_SSL("localhost", self.server.submissions, context=self.server.trust()) as smtp:
            smtp.login(USER, PASSWORD)
            smtp.send_message(draft("For OpenDKIM"), USER, [OTHER])
        (taken,) = self.sink.find("For OpenDKIM")
        for changed, result in ((taken.content, "pass"), (taken.content.replace(b"Hello!", b"Hallo!"), "fail")):
            (folder / "signed").write_bytes(changed)
            printed = self.program(
                program, "-x", folder / "opendkim.conf", "-t", folder / "signed", "-vvv",
                LD_LIBRARY_PATH=":".join(map(str, libraries)),
            )
            for algorithm in ("rsa-sha256", "ed25519-sha256"):
                found = [line for line in printed.splitlines() if f"header.a={algorithm}" in line]
                self.assertEqual(len(found), 1, printed)
                self.assertIn(f"dkim={result}", found[0], printed)


class PostfixTakesTest(ServerTest):
    """Postfix takes mail from one restante and delivers it to another."""

    @classmethod
    def setUpClass(cls):
        if not has_postfix():
            raise unittest.SkipTest("postfix is not here; tests/interop/run says why")
        cls.other = Server((OTHER,), ("elsewhere.example",))
        cls.addClassCleanup(cls.other.close)
        cls.postfix = Postfix(cls.other, domain="elsewhere.example")
        cls.addClassCleanup(cls.postfix.close)
        cls.serve(Server(smarthost=cls.postfix.port))

    def test_mail_passes_postfix_once(self):
        subjects = [f"Through {number:02}" for number in range(30)]
        with smtplib.SMTP_SSL("localhost", self.server.submissions, context=self.server.trust()) as smtp:
            smtp.login(USER, PASSWORD)
            for subject in subjects:
                smtp.send_message(draft(subject), USER, [OTHER])
        os.environ["REQUESTS_CA_BUNDLE"] = str(self.other.certificate)
        self.addCleanup(os.environ.update, REQUESTS_CA_BUNDLE=str(self.server.certificate))
        client = self.other.client(OTHER)
        end = time.monotonic() + PATIENCE_SECONDS
        while len(self.find(client, text="Through")) < len(subjects):
            self.assertLess(time.monotonic(), end, self.postfix.logged())
            time.sleep(0.2)
        self.assertEqual(self.subjects(client, text="Through"), subjects)


if __name__ == "__main__":
    unittest.main(verbosity=2)
