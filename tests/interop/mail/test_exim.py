"""Exim submits mail to restante, and takes mail from it."""

import grp
import os
import pathlib
import pwd
import shutil
import signal
import smtplib
import socket
import subprocess
import tempfile
import textwrap
import time
import unittest

from server import INSTALLED, PASSWORD, PATIENCE_SECONDS, USER, Server, ServerTest, free_port
from test_sending import OTHER, Sink, draft

SENT = "carl@by-submission.example"
MAILS = 30


def program():
    """Exim of this machine, or the one that `run` has unpacked."""
    return shutil.which("exim4") or INSTALLED / "debian/usr/sbin/exim4"


def needs_exim():
    """Ends the tests of a class where Exim is not here or may not be started."""
    if pathlib.Path(program()).exists() and os.geteuid() == 0:
        return
    raise unittest.SkipTest("exim4 is not here, or the tests do not run as root; tests/interop/run says why")


class Exim:
    """An instance with a queue of its own that retries after a second. Mail for `by-submission.example` is submitted to a server as its user; that for
    `elsewhere.example` goes to another server by LMTP."""

    def __init__(self, server=None, other=None):
        self.temporary = tempfile.TemporaryDirectory(prefix="interop-exim-")
        self.folder = pathlib.Path(self.temporary.name)
        self.folder.chmod(0o755)
        self.port = free_port()
        libraries = [*(INSTALLED / "debian/usr/lib").glob("*-linux-gnu"), INSTALLED / "debian/usr/lib"]
        self.environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
        self.environment.update(self.known_user())
        for name in ("spool", "log"):
            (self.folder / name).mkdir()
            shutil.chown(self.folder / name, "mail", "mail")
        self.configuration = self.folder / "exim.conf"
        self.configuration.write_text(textwrap.dedent(f"""
            exim_path = {program()}
            exim_user = mail
            exim_group = mail
            never_users =
            spool_directory = {self.folder}/spool
            log_file_path = {self.folder}/log/%s
            primary_hostname = exim.example.net
            local_interfaces = 127.0.0.1
            daemon_smtp_ports = {self.port}
            # Names of this test are not in DNS.
            host_lookup =
            hosts_treat_as_local =
            rfc1413_query_timeout = 0s
            keep_environment = ^LD_ : ^NSS_WRAPPER_
            deliver_drop_privilege = true
            trusted_users = root
            qualify_domain = example.org
            tls_advertise_hosts =
            acl_smtp_rcpt = take
            acl_smtp_data = take
            begin acl
            take:
              accept
            begin routers
            submitted:
              driver = manualroute
              domains = by-submission.example
              transport = submission
              route_list = * 127.0.0.1
              self = send
            placed:
              driver = manualroute
              domains = elsewhere.example
              transport = lmtp
              route_list = * 127.0.0.1
              self = send
            begin transports
            submission:
              driver = smtp
              port = {server.submission if server else 9}
              allow_localhost
              hosts_require_auth = *
              hosts_require_tls = *
              tls_verify_certificates = {server.certificate if server else "/dev/null"}
              tls_verify_hosts = *
              tls_verify_cert_hostnames =
            lmtp:
              driver = smtp
              protocol = lmtp
              port = {other.lmtp if other else 9}
              allow_localhost
              hosts_avoid_tls = *
            begin retry
            * * F,1h,1s
            begin authenticators
            plain:
              driver = plaintext
              public_name = PLAIN
              client_send = ^{USER}^{PASSWORD}
        """))
        if server:
            certificate = self.folder / "trusted.pem"
            shutil.copy(server.certificate, certificate)
            certificate.chmod(0o644)
            text = self.configuration.read_text().replace(str(server.certificate), str(certificate))
            self.configuration.write_text(text)
        self.process = subprocess.Popen(
            [program(), "-C", self.configuration, "-bdf", "-q1s"], env=self.environment, start_new_session=True,
            stdout=open(self.folder / "output", "wb"), stderr=subprocess.STDOUT,
        )
        self.wait()

    def known_user(self):
        """Debian's Exim does not start without its user, which only an installation makes."""
        try:
            pwd.getpwnam("Debian-exim")
            return {}
        except KeyError:
            user, group = pwd.getpwnam("mail"), grp.getgrnam("mail")
        passwd = pathlib.Path("/etc/passwd").read_text() + f"Debian-exim:x:{user.pw_uid}:{group.gr_gid}::/:/bin/false\n"
        (self.folder / "passwd").write_text(passwd)
        groups = pathlib.Path("/etc/group").read_text() + f"Debian-exim:x:{group.gr_gid}:\n"
        (self.folder / "group").write_text(groups)
        (wrapper,) = (INSTALLED / "debian/usr/lib").glob("*-linux-gnu/libnss_wrapper.so")
        return {
            "LD_PRELOAD": str(wrapper), "NSS_WRAPPER_PASSWD": f"{self.folder}/passwd",
            "NSS_WRAPPER_GROUP": f"{self.folder}/group",
        }

    def wait(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise RuntimeError("exim does not listen\n" + self.logged())

    def logged(self):
        files = [self.folder / "output", *(self.folder / "log").iterdir()]
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-5_000:]}" for file in files)

    def sendmail(self, recipient, mail):
        done = subprocess.run(
            [program(), "-C", self.configuration, "-f", USER, "-odq", recipient], env=self.environment,
            input=mail.as_bytes(), timeout=PATIENCE_SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            raise RuntimeError(f"exim: {done.stdout.decode(errors='replace')}\n{self.logged()}")

    def close(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(PATIENCE_SECONDS)
        self.temporary.cleanup()


class EximSubmitsTest(ServerTest):
    """Exim submits to restante with a password in TLS, and restante sends that on."""

    @classmethod
    def setUpClass(cls):
        needs_exim()
        cls.sink = Sink()
        cls.addClassCleanup(cls.sink.controller.stop)
        cls.serve(Server(smarthost=cls.sink.port))
        cls.exim = Exim(server=cls.server)
        cls.addClassCleanup(cls.exim.close)

    def test_exim_submits(self):
        self.exim.sendmail(SENT, draft("By Exim", to=SENT))
        try:
            (taken,) = self.sink.find("By Exim")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.exim.logged()}") from error
        self.assertEqual((taken.mail_from, taken.rcpt_tos), (USER, [SENT]))
        self.assertIn(b"with ESMTPSA", taken.content)


class EximTakesTest(ServerTest):
    """Exim takes mail from one restante and delivers it to another."""

    @classmethod
    def setUpClass(cls):
        needs_exim()
        cls.other = Server((OTHER,), ("elsewhere.example",))
        cls.addClassCleanup(cls.other.close)
        cls.exim = Exim(other=cls.other)
        cls.addClassCleanup(cls.exim.close)
        cls.serve(Server(smarthost=cls.exim.port))

    def test_mail_passes_exim_once(self):
        subjects = [f"Through {number:02}" for number in range(MAILS)]
        with smtplib.SMTP_SSL("localhost", self.server.submissions, context=self.server.trust()) as smtp:
            smtp.login(USER, PASSWORD)
            for subject in subjects:
                smtp.send_message(draft(subject), USER, [OTHER])
        os.environ["REQUESTS_CA_BUNDLE"] = str(self.other.certificate)
        self.addCleanup(os.environ.update, REQUESTS_CA_BUNDLE=str(self.server.certificate))
        client = self.other.client(OTHER)
        end = time.monotonic() + PATIENCE_SECONDS
        while len(self.find(client, text="Through")) < len(subjects):
            self.assertLess(time.monotonic(), end, self.exim.logged())
            time.sleep(0.2)
        self.assertEqual(self.subjects(client, text="Through"), subjects)


if __name__ == "__main__":
    unittest.main(verbosity=2)
