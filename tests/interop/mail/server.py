"""A restante with an account, for tests of mail; and the messages, programs and packages that they share."""

import os
import pathlib
import shutil
import signal
import smtplib
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
from email.message import EmailMessage

import jmapc
from jmapc import EmailQueryFilterCondition, MailboxQueryFilterCondition
from jmapc.methods import EmailGet, EmailQuery, MailboxQuery

USER = "anna@example.org"
PASSWORD = "correct horse"
PATIENCE_SECONDS = 60
# What `run` has installed: programs of other languages and of Debian, and collections of mails.
INSTALLED = pathlib.Path(os.environ.get("RESTANTE_INTEROP_INSTALLED", "/nonexistent"))
IS_REQUIRED = "interop" in os.environ.get("RESTANTE_TEST_REQUIRE", "").split(",")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def needs(path):
    """What is below this path; without it the test is skipped, or fails where everything is required."""
    found = INSTALLED / path
    if not found.exists():
        why = f"{path} is not installed; tests/interop/run says why"
        if IS_REQUIRED:
            raise AssertionError(f"{why}, and RESTANTE_TEST_REQUIRE names interop")
        raise unittest.SkipTest(why)
    return found


class Server:
    """A server with accounts, in a folder of its own, that speaks JMAP over TLS, LMTP and SMTP, and takes mail of its users. All mail for
    others goes to `smarthost`, a port of this machine. `settings` are lines of tables."""

    def __init__(self, users=(USER,), domains=("example.org",), smarthost=None, settings={}):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.jmap, self.lmtp, self.smtp = free_port(), free_port(), free_port()
        self.submission, self.submissions = free_port(), free_port()
        self.url = f"https://localhost:{self.jmap}"
        self.certificate = self.folder / "certificate.pem"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("RESTANTE_")
        }
        self.log = open(self.folder / "log", "w+")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
            + ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
            + ["-keyout", "key.pem", "-out", "certificate.pem"],
            cwd=self.folder, check=True, stderr=subprocess.DEVNULL,
        )
        os.environ["REQUESTS_CA_BUNDLE"] = str(self.certificate)
        (self.folder / "restante.toml").write_text(f"""
            [operate]
            listen = ""
            [rest]
            port = 0
            [waku.node]
            enabled = false
            [tls]
            certificate_files = ["certificate.pem"]
            certificate_key_files = ["key.pem"]
            [public]
            listen = ["127.0.0.1:{self.jmap}"]
            tls = true
            [lmtp]
            listen = ["127.0.0.1:{self.lmtp}"]
            [smtp]
            listen = ["127.0.0.1:{self.smtp}"]
            hostname = "mail.example.org"
            {settings.get("smtp", "")}
            [checks]
            {settings.get("checks", "")}
            [submission]
            listen = ["127.0.0.1:{self.submission}"]
            listen_tls = ["127.0.0.1:{self.submissions}"]
            [delivery]
            retry_seconds = [0, 1]
            [delivery.remote]
            smarthost = "{f'127.0.0.1:{smarthost}' if smarthost else ''}"
            {settings.get("delivery.remote", "")}
        """)
        for domain in domains:
            self.run("domain", "add", domain)
        for user in users:
            self.run("account", "add", user, "--password-file", "-", input=PASSWORD)
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [os.environ["RESTANTE_BIN"], "serve"], cwd=self.folder, env=self.environment,
            stdout=subprocess.DEVNULL, stderr=self.log,
        )
        self.wait()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def run(self, *arguments, input=None):
        """What a command prints, while no server runs."""
        return subprocess.run(
            [os.environ["RESTANTE_BIN"], *arguments], cwd=self.folder, env=self.environment,
            input=input, text=True, check=True, stdout=subprocess.PIPE,
        ).stdout

    def wait(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                for port in (self.jmap, self.lmtp, self.smtp, self.submission, self.submissions):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise RuntimeError("the server does not listen\n" + self.logged())

    def logged(self):
        return (self.folder / "log").read_text(errors="replace")

    def client(self, user=USER):
        return jmapc.Client.create_with_password(f"localhost:{self.jmap}", user, PASSWORD)

    def trust(self):
        """A TLS context that trusts the server's certificate."""
        return ssl.create_default_context(cafile=self.certificate)

    def close(self):
        self.process.terminate()
        code = self.process.wait(PATIENCE_SECONDS)
        log = self.logged()
        self.log.close()
        self.temporary.cleanup()
        if code != 0:
            raise RuntimeError(f"the server ended with {code}\n{log}")


def message(subject, text="Hello!", **headers):
    mail = EmailMessage()
    mail["From"] = "Bert <bert@example.net>"
    mail["To"] = USER
    mail["Subject"] = subject
    mail["Message-ID"] = f"<{subject.replace(' ', '.')}@example.net>"
    for name, value in headers.items():
        mail[name.replace("_", "-")] = value
    mail.set_content(text)
    return mail


class ServerTest(unittest.TestCase):
    """Tests that share a server."""

    @classmethod
    def setUpClass(cls):
        cls.serve(Server())

    @classmethod
    def serve(cls, server):
        cls.server = server
        cls.addClassCleanup(server.close)

    def deliver(self, mail):
        with smtplib.LMTP("127.0.0.1", self.server.lmtp) as lmtp:
            self.assertEqual(lmtp.send_message(mail, "bert@example.net", [USER]), {})

    def one(self, client, method):
        response = client.request(method)
        self.assertNotIsInstance(response, jmapc.Error, response)
        return response

    def mailbox(self, client, role):
        found = self.one(client, MailboxQuery(filter=MailboxQueryFilterCondition(role=role)))
        self.assertEqual(len(found.ids), 1, role)
        return found.ids[0]

    def find(self, client, **conditions):
        return self.one(client, EmailQuery(filter=EmailQueryFilterCondition(**conditions))).ids

    def subjects(self, client, **conditions):
        """The subjects of the emails that match, sorted."""
        ids = self.find(client, **conditions)
        emails = self.one(client, EmailGet(ids=ids, properties=["subject"])).data
        return sorted(email.subject for email in emails)

    def program(self, *command, **environment):
        """What another program prints that ends well; its time is bounded."""
        shell = {**self.server.environment, **environment}
        done = subprocess.run(
            [str(argument) for argument in command], env=shell, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2 * PATIENCE_SECONDS,
        )
        self.assertEqual(done.returncode, 0, f"{command[0]}:\n{done.stdout}\nserver:\n{self.server.logged()}")
        return done.stdout
