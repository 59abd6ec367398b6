"""Postfix feeds restante, by LMTP for one domain and by SMTP for another."""

import os
import pathlib
import shutil
import smtplib
import socket
import subprocess
import tempfile
import textwrap
import time
import unittest

from jmapc.methods import EmailGet, EmailSet

from server import INSTALLED, PATIENCE_SECONDS, Server, ServerTest, free_port, message

BY_LMTP = "anna@lmtp.example.org"
BY_SMTP = "anna@smtp.example.org"
MAILS = 150


def root_folder():
    """Below what Postfix is: this machine's, or what `run` has unpacked."""
    if shutil.which("postfix"):
        return pathlib.Path("/")
    return INSTALLED / "postfix"


def has_postfix():
    """Whether it is here, and may be started."""
    return (root_folder() / "usr/sbin/postfix").exists() and os.geteuid() == 0


class Postfix:
    """An instance with a queue of its own that retries after a second. It feeds a server, for `domain` by LMTP."""

    def __init__(self, server, domain="lmtp.example.org"):
        self.temporary = tempfile.TemporaryDirectory(prefix="interop-postfix-")
        self.folder = pathlib.Path(self.temporary.name)
        self.folder.chmod(0o755)
        self.port = free_port()
        root = root_folder()
        self.programs = root / "usr/sbin"
        libraries = root / "usr/lib/postfix"
        folders_of_libraries = [libraries, *(INSTALLED / "debian/usr/lib").glob("*-linux-gnu")]
        self.environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ":".join(map(str, folders_of_libraries))}
        for name in ("etc", "queue", "data"):
            (self.folder / name).mkdir()
        shutil.chown(self.folder / "data", "daemon", "daemon")
        (self.folder / "etc/main.cf").write_text(textwrap.dedent(f"""
            compatibility_level = 3.6
            queue_directory = {self.folder}/queue
            data_directory = {self.folder}/data
            command_directory = {self.programs}
            daemon_directory = {libraries}/sbin
            shlib_directory = {libraries}
            meta_directory = {root}/etc/postfix
            sendmail_path = {self.programs}/sendmail
            newaliases_path = {self.programs}/sendmail
            mailq_path = {self.programs}/sendmail
            maillog_file = {self.folder}/maillog
            maillog_file_prefixes = {self.folder}
            import_environment = MAIL_CONFIG MAIL_LOGTAG TZ LANG=C LD_LIBRARY_PATH
            export_environment = TZ MAIL_CONFIG LANG LD_LIBRARY_PATH
            mail_owner = daemon
            setgid_group = games
            default_privs = nobody
            myhostname = feeder.example.net
            mydestination =
            local_recipient_maps =
            alias_maps =
            alias_database =
            inet_interfaces = 127.0.0.1
            inet_protocols = ipv4
            mynetworks = 127.0.0.0/8
            # Names of this test are not in DNS, and Postfix does not need it.
            smtpd_peername_lookup = no
            smtp_host_lookup = native
            virtual_mailbox_domains = {domain}
            virtual_mailbox_maps = static:x
            virtual_transport = lmtp:inet:127.0.0.1:{server.lmtp}
            relay_domains = smtp.example.org
            relay_recipient_maps =
            relay_transport = smtp:[127.0.0.1]:{server.smtp}
            smtp_tls_security_level = encrypt
            minimal_backoff_time = 1s
            maximal_backoff_time = 1s
            queue_run_delay = 1s
            lmtp_data_done_timeout = 30s
        """))
        daemons = [
            ("pickup", "unix", "60", "1"), ("cleanup", "unix", "-", "0"), ("qmgr", "unix", "1", "1"),
            ("rewrite", "unix", "-", "-"), ("bounce", "unix", "-", "0"), ("defer", "unix", "-", "0"),
            ("trace", "unix", "-", "0"), ("verify", "unix", "-", "1"), ("flush", "unix", "1000?", "0"),
            ("proxymap", "unix", "-", "-"), ("smtp", "unix", "-", "-"), ("relay", "unix", "-", "-"),
            ("showq", "unix", "-", "-"), ("error", "unix", "-", "-"), ("retry", "unix", "-", "-"),
            ("discard", "unix", "-", "-"), ("lmtp", "unix", "-", "-"), ("anvil", "unix", "-", "1"),
            ("scache", "unix", "-", "1"), ("tlsmgr", "unix", "1000?", "1"), ("postlog", "unix-dgram", "-", "1"),
        ]
        command = {
            "rewrite": "trivial-rewrite", "defer": "bounce", "trace": "bounce", "relay": "smtp", "retry": "error",
            "postlog": "postlogd",
        }
        lines = [f"127.0.0.1:{self.port} inet n - n - - smtpd\n"]
        for name, kind, wakeup, limit in daemons:
            is_public = "n" if name in ("pickup", "cleanup", "qmgr", "flush", "showq", "postlog") else "-"
            lines.append(f"{name} {kind} {is_public} - n {wakeup} {limit} {command.get(name, name)}\n")
        (self.folder / "etc/master.cf").write_text("".join(lines))
        self.run("postfix", "-c", self.folder / "etc", "start")
        self.wait()

    def run(self, program, *arguments, **options):
        done = subprocess.run(
            [self.programs / program, *arguments], env=self.environment, timeout=PATIENCE_SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stdout.decode(errors='replace')}\n{self.logged()}")
        return done.stdout

    def wait(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("postfix does not listen\n" + self.logged())

    def logged(self):
        log = self.folder / "maillog"
        return log.read_text(errors="replace")[-10_000:] if log.exists() else "no log"

    def sendmail(self, recipient, mail):
        self.run("sendmail", "-C", self.folder / "etc", "-f", "bert@example.net", recipient, input=mail.as_bytes())

    def is_empty(self):
        return b"Mail queue is empty" in self.run("postqueue", "-c", self.folder / "etc", "-p")

    def close(self):
        self.run("postfix", "-c", self.folder / "etc", "stop")
        self.temporary.cleanup()


class PostfixTest(ServerTest):
    @classmethod
    def setUpClass(cls):
        if not (root_folder() / "usr/sbin/postfix").exists():
            raise unittest.SkipTest("postfix is not here; tests/interop/run says why")
        if os.geteuid() != 0:
            raise unittest.SkipTest("only root starts postfix")
        cls.serve(Server((BY_LMTP, BY_SMTP), ("lmtp.example.org", "smtp.example.org")))
        cls.postfix = Postfix(cls.server)
        cls.addClassCleanup(cls.postfix.close)

    def received(self, user):
        """The subjects of all emails of a user, sorted."""
        client = self.server.client(user)
        return self.subjects(client, in_mailbox=self.mailbox(client, "inbox"))

    def wait_until_sent(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.postfix.is_empty():
            self.assertLess(time.monotonic(), end, self.postfix.logged())
            time.sleep(0.2)

    def test_mail_comes_once_by_lmtp_and_by_smtp_also_when_the_server_is_killed(self):
        expected = {BY_LMTP: [], BY_SMTP: []}
        with smtplib.SMTP("127.0.0.1", self.postfix.port) as smtp:
            for number in range(MAILS):
                for user, subjects in expected.items():
                    subject = f"Mail {number:03}"
                    subjects.append(subject)
                    smtp.sendmail("bert@example.net", [user], message(subject, f"To {user}").as_bytes())
                if number % 50 == 25:
                    self.server.kill()
                    self.server.start()
        self.wait_until_sent()
        for user, subjects in expected.items():
            self.assertEqual(self.received(user), subjects, f"{user}\n{self.postfix.logged()}")

    def test_local_programs_send_by_sendmail(self):
        mail = message("By sendmail", "as cron does\nfrom one to another")
        self.postfix.sendmail(BY_LMTP, mail)
        self.wait_until_sent()
        client = self.server.client(BY_LMTP)
        (identifier,) = self.find(client, text="cron")
        email = self.one(client, EmailGet(ids=[identifier], properties=["subject", "headers"])).data[0]
        received = [header.value for header in email.headers if header.name == "Received"]
        self.assertIn("with LMTP", received[0])
        self.assertIn("feeder.example.net (Postfix", received[1])
        self.one(client, EmailSet(destroy=[identifier]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
