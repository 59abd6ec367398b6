"""rspamd judges what restante receives, and learns from what users move into and out of Junk."""

import email
import json
import os
import pathlib
import shutil
import signal
import smtplib
import subprocess
import tempfile
import textwrap
import time
import unittest
import urllib.request

from opinions import NameServer, Zone
from server import INSTALLED, PATIENCE_SECONDS, USER, Server, ServerTest, free_port, message
from test_corpus import Reader

CONTROLLER_PASSWORD = "let me learn"
# Texts for which rspamd returns a known action, whatever else a message has.
REJECT = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
ADD_HEADER = REJECT.replace("XJS", "YJS")


def root_folder():
    """Below what rspamd is: this machine's, or what `run` has unpacked."""
    return pathlib.Path("/") if shutil.which("rspamd") else INSTALLED / "debian"


class Rspamd:
    """rspamd without its rules, which take long to compile, and without its network: it asks no name server and keeps what it learns in files."""

    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="interop-rspamd-")
        self.folder = pathlib.Path(self.temporary.name)
        self.normal, self.controller = free_port(), free_port()
        root = root_folder()
        share = root / "usr/share/rspamd"
        (self.folder / "password").write_text(CONTROLLER_PASSWORD + "\n")
        (self.folder / "top-level-domains").write_text("com\nnet\norg\n")  # all of them take long to compile
        (self.folder / "rspamd.conf").write_text(textwrap.dedent(f"""
            options {{
              pidfile = "{self.folder}/pid"
              filters = ""
              dns {{ nameserver = ["127.0.0.1:9"]; timeout = 0.1s; retransmits = 1; }}
              url_tld = "{self.folder}/top-level-domains"
              control_socket = "{self.folder}/socket mode=0600"
              hs_cache_dir = "{self.folder}"
              cache_file = "{self.folder}/symbols"
              stats_file = "{self.folder}/stats"
              enable_test_patterns = true
              disable_hyperscan = true
            }}
            logging {{ type = "console"; level = "notice"; }}
            worker "normal" {{ bind_socket = "127.0.0.1:{self.normal}"; count = 1; }}
            worker "controller" {{
              bind_socket = "127.0.0.1:{self.controller}"
              count = 1
              password = "{CONTROLLER_PASSWORD}"
              secure_ip = []
            }}
            actions {{ reject = 15; add_header = 6; greylist = 4; }}
            classifier "bayes" {{
              tokenizer {{ name = "osb"; }}
              backend = "sqlite3"
              min_tokens = 5
              min_learns = 1
              cache {{ type = "sqlite3"; file = "{self.folder}/learned"; }}
              statfile {{ symbol = "BAYES_HAM"; spam = false; path = "{self.folder}/ham"; }}
              statfile {{ symbol = "BAYES_SPAM"; spam = true; path = "{self.folder}/spam"; }}
            }}
        """))
        libraries = [root / "usr/lib/rspamd", *(root / "usr/lib").glob("*-linux-gnu")]
        places = {
            "CONFDIR": root / "etc/rspamd", "LOCAL_CONFDIR": self.folder, "DBDIR": self.folder, "RUNDIR": self.folder,
            "SHAREDIR": share, "RULESDIR": share / "rules", "LUALIBDIR": share / "lualib", "PLUGINSDIR": share / "plugins",
        }
        self.log = open(self.folder / "log", "w+")
        self.process = subprocess.Popen(
            [root / "usr/bin/rspamd", "--no-fork", "--insecure", "--user=root", "--group=root", f"--config={self.folder}/rspamd.conf"]
            + [f"--var={name}={place}" for name, place in places.items()],
            env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ":".join(map(str, libraries))},
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )
        self.wait()

    def settings(self):
        return "\n".join([
            f'filter.url = "http://127.0.0.1:{self.normal}"',
            f'filter.learn_url = "http://127.0.0.1:{self.controller}"',
            f'filter.password_file = "{self.folder}/password"',
            "filter.timeout_ms = 2000",
        ])

    def wait(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                for port in (self.normal, self.controller):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=1).read()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise RuntimeError("rspamd does not listen\n" + (self.folder / "log").read_text(errors="replace"))

    def learned(self):
        """How many messages it has learned, by the class."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.controller}/stat", headers={"Password": CONTROLLER_PASSWORD})
        stat = json.loads(urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).read())
        return {statfile["symbol"]: statfile["revision"] for statfile in stat["statfiles"]}

    def signal(self, number):
        """To all of its processes."""
        os.killpg(self.process.pid, number)

    def close(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.process.wait(PATIENCE_SECONDS)
        self.log.close()
        self.temporary.cleanup()


class RspamdTest(ServerTest):
    @classmethod
    def setUpClass(cls):
        if not (root_folder() / "usr/bin/rspamd").exists() or os.geteuid() != 0:
            raise unittest.SkipTest("rspamd is not here, or the tests do not run as root; tests/interop/run says why")
        names_port = free_port()
        names = NameServer(Zone(), names_port)
        cls.addClassCleanup(names.close)
        cls.rspamd = Rspamd()
        cls.addClassCleanup(cls.rspamd.close)
        cls.serve(Server(settings={
            "checks": "exempt = []\n" + cls.rspamd.settings(),
            "delivery.remote": f'resolver = ["127.0.0.1:{names_port}"]',
        }))

    def setUp(self):
        self.reader = Reader(self.server, USER)

    def send(self, subject, text):
        with smtplib.SMTP("127.0.0.1", self.server.smtp, "client.example.net", source_address=("127.0.0.5", 0)) as smtp:
            smtp.send_message(message(subject, text), "bert@example.net", [USER])

    def found(self, subject):
        return self.reader.call("Email/query", filter={"subject": subject})["ids"]

    def stored(self, subject):
        """The one email with this subject, and its header."""
        (found,) = self.found(subject)
        (mail,) = self.reader.call("Email/get", ids=[found], properties=["mailboxIds", "keywords", "blobId"])["list"]
        return mail, email.message_from_bytes(self.reader.blob(mail["blobId"]))

    def assert_in(self, mail, role):
        self.assertEqual(list(mail["mailboxIds"]), [self.mailbox(self.server.client(), role)])

    def test_advice_is_followed(self):
        self.send("Good news", "We have lunch at noon.")
        mail, header = self.stored("Good news")
        self.assert_in(mail, "inbox")
        self.assertRegex(header["X-Spam-Status"], r"^No, score=-?[0-9.]+ required=15\.0\b")
        self.send("Junk mail", ADD_HEADER)
        mail, header = self.stored("Junk mail")
        self.assert_in(mail, "junk")
        self.assertIn("$junk", mail["keywords"])
        self.assertRegex(" ".join(header["X-Spam-Status"].split()), r"^Yes, score=6\.0 required=15\.0 tests=.*\bGTUBE\b")
        with self.assertRaises(smtplib.SMTPDataError) as refused:
            self.send("Bad news", REJECT)
        self.assertEqual(refused.exception.smtp_code, 550)
        self.assertIn(b"Gtube pattern", refused.exception.smtp_error)
        self.assertEqual(self.found("Bad news"), [])

    def test_mail_is_taken_while_it_hangs(self):
        self.rspamd.signal(signal.SIGSTOP)
        try:
            self.send("Not judged", ADD_HEADER)
        finally:
            self.rspamd.signal(signal.SIGCONT)
        mail, header = self.stored("Not judged")
        self.assert_in(mail, "inbox")
        self.assertIsNone(header["X-Spam-Status"])

    def test_it_learns_from_moves(self):
        self.send("Watches", " ".join(f"watch{chr(97 + at % 26)}{chr(97 + at // 26)} cheap offer" for at in range(100)))
        (found,) = self.found("Watches")
        time.sleep(3)  # what is moved before restante has seen its delivery counts as delivered there
        # An email that it has learned in the other class before moves from one class to the other.
        for role, symbol in [("junk", "BAYES_SPAM"), ("inbox", "BAYES_HAM")]:
            before = self.rspamd.learned()[symbol]
            target = {"mailboxIds": {self.mailbox(self.server.client(), role): True}}
            self.assertIn(found, self.reader.call("Email/set", update={found: target})["updated"])
            end = time.monotonic() + PATIENCE_SECONDS
            while self.rspamd.learned()[symbol] == before:
                self.assertLess(time.monotonic(), end, f"{symbol} learns nothing")
                time.sleep(0.1)
            self.assertEqual(self.rspamd.learned()[symbol], before + 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
