"""Other implementations judge who has sent mail as restante does."""

import concurrent.futures
import email
import re
import smtplib
import threading
import unittest

import authres

from opinions import (
    SPF_ADDRESSES, SPF_RECORDS, NameServer, Zone, dkimpy_on_chain, dkimpy_on_signatures, pyspf_on, signed_mails, spf_names,
)
from server import PATIENCE_SECONDS, USER, Server, ServerTest, free_port
from test_corpus import Reader, on_the_wire

HELLO = "client.example.net"
MAILS = 260
CONNECTIONS = 8

# Where restante differs from dkimpy or pyspf: what is judged, and the rule by which it differs.
EXPLAINED = [
    ("dkim", ": length, ", ((False,), (True,)), "RFC 6376, section 8.2: a verifier may ignore a signature whose l= leaves out a part of the body"),
    ("dkim", ": sha1", ((False,), (True,)), "RFC 8301, section 3.1: signatures by rsa-sha1 are not valid"),
    ("spf", "%{d0}", ("permerror", "fail"), "RFC 7208, section 7.1: a number of parts must be nonzero"),
    ("spf", "ptr:example.net -all of 127.", ("fail", "pass"), "RFC 6303 §4.2: names of addresses of loopback are not asked for elsewhere"),
    ("spf", "%{p}.e.example.net -all of 127.", ("fail", "pass"), "RFC 6303 §4.2: the same"),
]


def is_explained(kind, name, ours, theirs):
    return any(
        kind == other and pattern in name and (ours, theirs) == outcomes for other, pattern, outcomes, _ in EXPLAINED
    )


class ChecksTest(ServerTest):
    @classmethod
    def setUpClass(cls):
        cls.zone = Zone()
        spf_names(cls.zone)
        cls.mails = [(name, on_the_wire(mail)[0]) for name, mail in signed_mails(cls.zone, MAILS)]
        port = free_port()
        cls.names = NameServer(cls.zone, port)
        cls.addClassCleanup(cls.names.close)
        cls.serve(Server(settings={
            "smtp": "messages_per_minute_max = 1000000\nconnects_per_minute_max = 1000000",
            "checks": "exempt = []",
            "delivery.remote": f'resolver = ["127.0.0.1:{port}"]',
        }))

    def send_all(self, mails):
        """Sends mails, each a number, an address, a sender and its bytes; the replies to those that were refused."""
        waiting, refused, lock = list(mails), {}, threading.Lock()

        def send():
            while True:
                with lock:
                    if not waiting:
                        return
                    number, address, sender, raw = waiting.pop()
                with smtplib.SMTP(
                    "127.0.0.1", self.server.smtp, HELLO, timeout=PATIENCE_SECONDS, source_address=(address, 0)
                ) as smtp:
                    try:
                        smtp.sendmail(sender, [USER.replace("@", f"+{number}@")], raw, ["BODY=8BITMIME"])
                    except smtplib.SMTPDataError as error:
                        refused[number] = error.smtp_code

        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            for done in [pool.submit(send) for _ in range(CONNECTIONS)]:
                done.result()
        return refused

    def results(self):
        """What stands in the topmost `Authentication-Results` of each mail that was stored, by its number."""
        reader, found = Reader(self.server, USER), {}
        for mail in reader.all():
            raw = reader.blob(mail["blobId"])
            number = re.search(rb"for <anna\+(\d+)@example\.org>", raw)
            if number:
                fields = email.message_from_bytes(raw).get_all("Authentication-Results")
                header = authres.AuthenticationResultsHeader.parse(f"Authentication-Results: {fields[0]}")
                self.assertEqual(header.authserv_id, "mail.example.org")
                found[int(number[1])] = header.results
        return found

    def compare(self, differences):
        different = [difference for difference in differences if not is_explained(*difference)]
        self.assertEqual(different, [], f"{len(different)} of them are not explained")

    def test_dkimpy_agrees_on_signatures_and_chains(self):
        refused = self.send_all((number, "127.0.0.5", "", raw) for number, (_, raw) in enumerate(self.mails))
        found = self.results()
        differences = []
        for number, (name, raw) in enumerate(self.mails):
            header = email.message_from_bytes(raw)
            if len(header.get_all("From", [])) != 1:
                self.assertEqual(refused.get(number), 550, name)
                continue
            self.assertNotIn(number, refused, name)
            results = found[number]
            ours = [result.result == "pass" for result in results if result.method == "dkim" and result.result != "none"]
            theirs = dkimpy_on_signatures(self.zone, raw)
            if ours != theirs:
                differences.append(("dkim", name, tuple(ours), tuple(theirs)))
            ours = next((result.result for result in results if result.method == "arc"), "none")
            theirs = dkimpy_on_chain(self.zone, raw)
            if ours != theirs:
                differences.append(("arc", name, ours, theirs))
        self.assertGreaterEqual(len(found), 300)
        self.compare(differences)

    def test_pyspf_agrees_on_senders(self):
        asked = [
            (record, address, f"anna@d{number}.example.com")
            for number, record in enumerate(SPF_RECORDS) for address in SPF_ADDRESSES
        ]
        first = len(self.mails)  # the earlier numbers belong to the other test
        # All are different: equal bytes are stored once in an account.
        mails = [f"From: a@example.com\r\nTo: b@example.org\r\nSubject: {at}\r\n\r\nHello!\r\n".encode() for at in range(len(asked))]
        sent = ((first + at, address, sender, mails[at]) for at, (_, address, sender) in enumerate(asked))
        self.assertEqual(self.send_all(sent), {})
        found = self.results()
        differences = []
        for at, (record, address, sender) in enumerate(asked):
            (ours,) = [result.result for result in found[first + at] if result.method == "spf"]
            theirs = pyspf_on(self.zone, address, sender, HELLO)
            if ours != theirs:
                differences.append(("spf", f"{record} of {address}", ours, theirs))
        self.compare(differences)


if __name__ == "__main__":
    unittest.main(verbosity=2)
