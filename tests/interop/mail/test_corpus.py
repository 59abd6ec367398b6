"""Real and awkward mails come in by LMTP, and are read back byte for byte."""

import concurrent.futures
import http.client
import json
import re
import smtplib
import threading
import unittest
from base64 import b64encode

from server import PASSWORD, PATIENCE_SECONDS, Server, ServerTest, needs

READER = "reader@example.org"
COLLECTOR = "collector@example.org"
CONNECTIONS = 16
# What is added in front of a message from outside.
TRACE = re.compile(rb"Return-Path: <[^\r\n]*>\r\nReceived: from [^\r\n]*\r\n(\t[^\r\n]*\r\n)+")
RETURN_PATH = re.compile(rb"^Return-Path[ \t]*(:.*)?\n([ \t].*\n)*", re.IGNORECASE | re.MULTILINE)
LIST = ["id", "blobId", "size", "subject", "from", "sentAt", "preview", "hasAttachment"]
USING = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:mail"]


def on_the_wire(raw):
    """A mail of a file as a sender transmits it and as it is stored, both without what the server adds."""
    sent = re.sub(rb"\r?\n", b"\r\n", raw)
    if not sent.endswith(b"\r\n"):
        sent += b"\r\n"
    # For trusted clients a lone CR becomes a line end, and several before LF become one.
    stored = re.sub(rb"\r*\n|\r", b"\r\n", sent)
    # A header field with the sender of an envelope is not about this delivery.
    header, empty, body = (b"", b"\r\n", stored[2:]) if stored.startswith(b"\r\n") else stored.partition(b"\r\n\r\n")
    if empty == b"\r\n\r\n":
        header += b"\r\n"
        empty = b"\r\n"
    return sent, RETURN_PATH.sub(b"", header) + empty + body


class Reader:
    """A client of JMAP over one connection, as plain as the protocol allows, for its speed."""

    def __init__(self, server, user):
        self.connection = http.client.HTTPSConnection("localhost", server.jmap, timeout=PATIENCE_SECONDS, context=server.trust())
        self.headers = {
            "Authorization": "Basic " + b64encode(f"{user}:{PASSWORD}".encode()).decode(),
            "Content-Type": "application/json",
        }
        session = json.loads(self.fetch("GET", "/.well-known/jmap"))
        self.account = session["primaryAccounts"]["urn:ietf:params:jmap:mail"]
        self.api, self.download = session["apiUrl"], session["downloadUrl"]

    def fetch(self, method, url, body=None):
        path = re.sub("^https://[^/]*", "", url)
        self.connection.request(method, path, body, self.headers)
        response = self.connection.getresponse()
        content = response.read()
        if response.status in (301, 302, 307, 308):
            return self.fetch(method, response.headers["Location"], body)
        if response.status != 200:
            raise AssertionError(f"{method} {path}: {response.status} {content[:500]}")
        return content

    def call(self, name, **arguments):
        body = {"using": USING, "methodCalls": [[name, {"accountId": self.account, **arguments}, "0"]]}
        ((answered, result, _),) = json.loads(self.fetch("POST", self.api, json.dumps(body)))["methodResponses"]
        if answered != name:
            raise AssertionError(f"{name}: {result}")
        return result

    def blob(self, blob_id):
        url = self.download
        for variable, value in {"accountId": self.account, "blobId": blob_id, "name": "mail", "type": "message/rfc822"}.items():
            url = url.replace("{" + variable + "}", value)
        return self.fetch("GET", url)

    def all(self):
        """What a listing shows of each email of the account."""
        emails = []
        while True:
            page = self.call("Email/query", position=len(emails), limit=500, calculateTotal=True)
            emails += self.call("Email/get", ids=page["ids"], properties=LIST)["list"]
            if len(emails) >= page["total"]:
                return emails


class CorpusTest(ServerTest):
    @classmethod
    def setUpClass(cls):
        cls.serve(Server((READER, COLLECTOR)))

    def deliver_all(self, user, mails):
        """Delivers mails over several connections at once."""
        waiting = list(mails)
        lock = threading.Lock()

        def deliver():
            with smtplib.LMTP("127.0.0.1", self.server.lmtp, timeout=PATIENCE_SECONDS) as lmtp:
                while True:
                    with lock:
                        if not waiting:
                            return
                        mail = waiting.pop()
                    self.assertEqual(lmtp.sendmail("bert@example.net", [user], mail, ["BODY=8BITMIME"]), {})

        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            for done in [pool.submit(deliver) for _ in range(CONNECTIONS)]:
                done.result()

    def read_back(self, user, expected):
        """Reads all emails of a user, which must be these, and returns their ids."""
        emails = Reader(self.server, user).all()
        self.assertEqual(len({email["id"] for email in emails}), len(emails))
        connections = threading.local()

        def read(email):
            if not hasattr(connections, "reader"):
                connections.reader = Reader(self.server, user)
            raw = connections.reader.blob(email["blobId"])
            self.assertEqual(len(raw), email["size"])
            trace = TRACE.match(raw)
            self.assertIsNotNone(trace, raw[:300])
            return raw[trace.end():]

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = sorted(pool.map(read, emails))
        for have, want in zip(found, sorted(expected)):
            self.assertEqual(have, want)
        self.assertEqual(len(found), len(expected))
        return [email["id"] for email in emails]

    def test_the_mails_of_spamassassin_are_read_back_as_they_came(self):
        files = sorted(needs("spam-assassin").glob("data/*/*.txt"))
        self.assertEqual(len(files), 6046)
        mails = [on_the_wire(file.read_bytes()) for file in files]
        self.deliver_all(READER, [sent for sent, _ in mails])
        self.read_back(READER, [stored for _, stored in mails])

    def test_awkward_mails_are_accepted_and_readable(self):
        files = [file for file in needs("mail-parser").glob("eml/**/*") if file.suffix not in ("", ".json") and file.is_file()]
        self.assertGreaterEqual(len(files), 100)
        mails = {on_the_wire(file.read_bytes()) for file in files}
        self.deliver_all(COLLECTOR, [sent for sent, _ in mails])
        identifiers = self.read_back(COLLECTOR, [stored for _, stored in mails])
        reader = Reader(self.server, COLLECTOR)
        properties = ["bodyStructure", "bodyValues", "textBody", "htmlBody", "attachments", "headers", "messageId"]
        for identifier in identifiers:
            read = reader.call("Email/get", ids=[identifier], properties=properties, fetchAllBodyValues=True)
            (email,) = read["list"]
            parts = email["textBody"] + email["htmlBody"] + email["attachments"]
            self.assertTrue(parts, email["headers"])
            for part in parts:
                self.assertEqual(len(reader.blob(part["blobId"])), part["size"], part)
            self.assertEqual(reader.call("Email/parse", blobIds=[f"b{identifier}"])["notParsable"], None)


if __name__ == "__main__":
    unittest.main(verbosity=2)
