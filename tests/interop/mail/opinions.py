"""Messages whose senders are to be judged, the names that speak about them, and what dkimpy and pyspf say."""

import base64
import random
import re
import socket
import struct
import threading
from subprocess import run

import dkim
import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import spf
from nacl.signing import SigningKey

SEED = 7
AUTHORITY = b"mx.relay.example"


class Zone:
    """All names that there are."""

    def __init__(self):
        self.records = {}

    def add(self, name, kind, *values):
        self.records.setdefault((name.lower().rstrip("."), kind), []).extend(values)

    def find(self, name, kind):
        return self.records.get((name.lower().rstrip("."), kind), [])

    def exists(self, name):
        name = name.lower().rstrip(".")
        return any(other == name or other.endswith("." + name) for other, _ in self.records)

    def for_dkimpy(self, name, timeout=5):
        found = self.find(name.decode() if isinstance(name, bytes) else name, "TXT")
        return found[0].encode() if found else None

    def for_pyspf(self, name, kind, *_):
        def data(value):
            if kind == "TXT":
                return (value.encode(),)
            if kind == "MX":
                preference, host = value.split()
                return int(preference), host
            return value

        return [((name, kind), data(value)) for value in self.find(name, kind)]


class NameServer:
    """A name server for a zone, over UDP and TCP on one port of loopback."""

    def __init__(self, zone, port):
        self.zone = zone
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", port))
        self.tcp = socket.create_server(("127.0.0.1", port))
        for serve in (self.serve_udp, self.serve_tcp):
            threading.Thread(target=serve, daemon=True).start()

    def close(self):
        self.udp.close()
        self.tcp.close()

    def serve_udp(self):
        while True:
            try:
                question, peer = self.udp.recvfrom(4096)
                self.udp.sendto(self.answer(question).to_wire(max_size=1232), peer)
            except OSError:
                return
            except dns.exception.TooBig:
                answer = dns.message.make_response(dns.message.from_wire(question))
                answer.flags |= dns.flags.TC
                self.udp.sendto(answer.to_wire(), peer)

    def serve_tcp(self):
        while True:
            try:
                connection, _ = self.tcp.accept()
            except OSError:
                return
            threading.Thread(target=self.serve_connection, args=(connection,), daemon=True).start()

    def serve_connection(self, connection):
        with connection, connection.makefile("rwb") as stream:
            while len(length := stream.read(2)) == 2:
                answer = self.answer(stream.read(struct.unpack("!H", length)[0])).to_wire()
                stream.write(struct.pack("!H", len(answer)) + answer)
                stream.flush()

    def answer(self, wire):
        asked = dns.message.from_wire(wire)
        answer = dns.message.make_response(asked, recursion_available=True)
        (question,) = asked.question
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        for value in self.zone.find(name, kind):
            if kind == "TXT":
                value = " ".join(f'"{quoted(value[at:at + 200])}"' for at in range(0, len(value), 200))
            elif kind in ("MX", "PTR"):
                value += "."
            answer.answer += [dns.rrset.from_text(name, 60, "IN", kind, value)]
        if not answer.answer:
            if not self.zone.exists(name):
                answer.set_rcode(dns.rcode.NXDOMAIN)
            answer.authority = [dns.rrset.from_text(".", 60, "IN", "SOA", "ns.example. admin.example. 1 60 60 60 60")]
        return answer


def quoted(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')


class Key:
    """A key of a domain."""

    def __init__(self, zone, domain, selector, algorithm, private, record):
        self.domain, self.selector = domain.encode(), selector.encode()
        self.algorithm, self.private = algorithm, private
        zone.add(f"{selector}._domainkey.{domain}", "TXT", record)

    def sign(self, mail, **options):
        options.setdefault("canonicalize", (b"relaxed", b"relaxed"))
        return dkim.sign(
            mail, self.selector, self.domain, self.private, signature_algorithm=self.algorithm,
            linesep=b"\r\n", **options
        ) + mail

    def seal(self, mail):
        """The mail with another set of ARC, by what dkimpy finds of those that it has."""
        verdict = "pass" if b"ARC-Seal:" in mail else "none"
        results = b"Authentication-Results: %s; arc=%s; spf=pass smtp.mailfrom=x@example.com\r\n" % (AUTHORITY, verdict.encode())
        lines = dkim.arc_sign(
            results + mail, self.selector, self.domain, self.private, AUTHORITY, signature_algorithm=self.algorithm, linesep=b"\r\n"
        )
        return b"".join(lines) + mail


def new_rsa_key(zone, domain, selector, bits):
    private = run(["openssl", "genrsa", "-traditional", str(bits)], capture_output=True, check=True).stdout
    public = run(["openssl", "rsa", "-pubout", "-outform", "DER"], input=private, capture_output=True, check=True).stdout
    record = f"v=DKIM1; k=rsa; p={base64.b64encode(public).decode()}"
    return Key(zone, domain, selector, b"rsa-sha256", private, record)


def new_ed25519_key(zone, domain, selector):
    key = SigningKey(random.Random(domain).randbytes(32))
    public = base64.b64encode(bytes(key.verify_key)).decode()
    return Key(zone, domain, selector, b"ed25519-sha256", base64.b64encode(bytes(key)), f"v=DKIM1; k=ed25519; p={public}")


def generated_mail(number, chance):
    """A mail with the forms that canonicalization is about: folds, white space at ends, empty lines, long lines, UTF-8."""
    space = lambda: chance.choice(["", " ", "  ", "\t", " \t "])
    fields = [
        f"From:{space()}Anna {number} <anna@{chance.choice(['example.com', 'mail.example.com', 'EXAMPLE.com'])}>{space()}",
        f"To: bert@example.org,{chance.choice(['', chr(13) + chr(10) + ' '])} carl@example.org",
        f"Subject: {chance.choice(['Hello', 'A  long' + chr(13) + chr(10) + chr(9) + 'subject', 'Grüße', ''])} {number}",
        f"Message-ID: <{number}@example.com>",
        "Date: Mon, 23 Nov 2026 22:00:00 +0000",
        f"X-Empty:{space()}",
        "Received: from a.example by b.example; Mon, 23 Nov 2026 21:59:59 +0000",
        "Received: from b.example by c.example; Mon, 23 Nov 2026 21:59:58 +0000",
    ]
    chance.shuffle(fields)
    lines = []
    for _ in range(chance.randrange(12)):
        words = chance.choices(["Hello", "there", "Grüße", ".dot", "x" * 200, "  ", "\t", ""], k=chance.randrange(9))
        lines.append(" ".join(words) + space())
    lines += chance.choices(["", " ", "\t "], k=chance.randrange(4))
    return ("\r\n".join(fields) + "\r\n\r\n" + "".join(line + "\r\n" for line in lines)).encode()


MUTATIONS = {
    "subject": lambda mail: re.sub(rb"(?im)^Subject:", b"Subject: X", mail, count=1),
    "word in the body": lambda mail: mail + b"More\r\n",
    "white space in a field": lambda mail: re.sub(rb"(?im)^To: ", b"To:   ", mail, count=1),
    "fold of a field": lambda mail: re.sub(rb"(?im)^To: ", b"To:\r\n ", mail, count=1),
    "white space at the end": lambda mail: mail.rstrip() + b"  \r\n\r\n \r\n",
    "case of a field's name": lambda mail: re.sub(rb"(?im)^To: ", b"TO: ", mail, count=1),
    "second From": lambda mail: mail.replace(b"\r\n\r\n", b"\r\nFrom: evil@other.example\r\n\r\n", 1),
    "second Subject on top": lambda mail: b"Subject: First\r\n" + mail,
    "no To": lambda mail: re.sub(rb"(?im)^To: (.*\r\n)([ \t].*\r\n)*", b"", mail, count=1),
    "tag of the signature": lambda mail: re.sub(rb"(?m)^(DKIM-Signature:(?s:.)*?)c=", rb"\1y=1; c=", mail, count=1),
    "bit of the signature": lambda mail: re.sub(rb"(\bb=)(.)", lambda found: found[1] + (b"A" if found[2] != b"A" else b"B"), mail, count=1),
    "body hash": lambda mail: re.sub(rb"(\bbh=)(.)", lambda found: found[1] + (b"A" if found[2] != b"A" else b"B"), mail, count=1),
    "other domain": lambda mail: re.sub(rb"\bd=example\.com", b"d=other.example", mail, count=1),
    "other selector": lambda mail: re.sub(rb"\bs=[a-z0-9]+", b"s=missing", mail, count=1),
    "algorithm": lambda mail: mail.replace(b"a=rsa-sha256", b"a=ed25519-sha256", 1),
    "version": lambda mail: mail.replace(b"v=1;", b"v=2;", 1),
    "tag twice": lambda mail: mail.replace(b"DKIM-Signature: v=1;", b"DKIM-Signature: v=1; s=x;", 1),
    "seal order": lambda mail: mail.replace(b"ARC-Seal: i=1", b"ARC-Seal: i=2", 1),
    "seal claims": lambda mail: mail.replace(b"cv=none", b"cv=pass", 1),
    "seal bit": lambda mail: re.sub(rb"(?s)(ARC-Seal:.*?\bb=)(.)", lambda found: found[1] + (b"A" if found[2] != b"A" else b"B"), mail, count=1),
    "results of the chain": lambda mail: mail.replace(b"spf=pass", b"spf=fail", 1),
    "set without seal": lambda mail: mail.replace(b"ARC-Seal:", b"X-Seal:", 1),
}


def signed_mails(zone, count, more=()):
    """Names and mails: each signed in one of several ways, and mutated in one of several."""
    chance = random.Random(SEED)
    rsa = new_rsa_key(zone, "example.com", "rsa", 2048)
    small = new_rsa_key(zone, "example.com", "small", 1024)
    weak = new_rsa_key(zone, "example.com", "weak", 768)
    ed = new_ed25519_key(zone, "example.com", "ed")
    old = new_rsa_key(zone, "example.com", "old", 2048)
    old.algorithm = b"rsa-sha1"
    lists, forward = new_rsa_key(zone, "lists.example", "l1", 2048), new_rsa_key(zone, "forward.example", "f1", 1024)
    names = [b"from", b"to", b"subject", b"date", b"message-id", b"x-empty"]
    ways = {
        "relaxed": lambda mail: rsa.sign(mail),
        "simple": lambda mail: rsa.sign(mail, canonicalize=(b"simple", b"simple")),
        "mixed": lambda mail: small.sign(mail, canonicalize=(b"simple", b"relaxed")),
        "mixed the other way": lambda mail: ed.sign(mail, canonicalize=(b"relaxed", b"simple")),
        "oversigned": lambda mail: rsa.sign(mail, include_headers=names + [b"from", b"subject", b"to"]),
        "twice": lambda mail: ed.sign(rsa.sign(mail, include_headers=names), include_headers=names),
        "length": lambda mail: rsa.sign(mail, length=True),
        "identity": lambda mail: ed.sign(mail, identity=b"anna@mail.example.com"),
        "weak": lambda mail: weak.sign(mail),
        "sha1": lambda mail: old.sign(mail),
        "sealed": lambda mail: lists.seal(mail),
        "sealed twice": lambda mail: forward.seal(lists.seal(mail)),
        "signed and sealed thrice": lambda mail: lists.seal(forward.seal(lists.seal(rsa.sign(mail)))),
        "not at all": lambda mail: mail,
    }
    mails = [generated_mail(number, chance) for number in range(count)] + list(more)
    made = []
    for number, mail in enumerate(mails):
        way = list(ways)[number % len(ways)]
        signed = ways[way](mail)
        made.append((f"{number}: {way}", signed))
        # Each way is combined with each mutation that changes it.
        for step in range(len(MUTATIONS)):
            mutation = list(MUTATIONS)[(number // len(ways) + step) % len(MUTATIONS)]
            mutated = MUTATIONS[mutation](signed)
            if mutated != signed:
                made.append((f"{number}: {way}, {mutation}", mutated))
                break
    return made


def dkimpy_on_signatures(zone, mail):
    """For each signature whether it holds."""
    verifier = dkim.DKIM(mail, minkey=1024)
    count = sum(name.lower() == b"dkim-signature" for name, _ in verifier.headers)
    outcomes = []
    for index in range(count):
        try:
            outcomes.append(bool(dkim.DKIM(mail, minkey=1024).verify(index, dnsfunc=zone.for_dkimpy)))
        except (dkim.DKIMException, dkim.UnparsableKeyError, ValueError, KeyError, TypeError, AttributeError):
            outcomes.append(False)
    return outcomes


def dkimpy_on_chain(zone, mail):
    """`none`, `pass` or `fail`."""
    try:
        verdict, _, _ = dkim.ARC(mail, minkey=1024).verify(dnsfunc=zone.for_dkimpy)
    except (dkim.DKIMException, ValueError, KeyError, TypeError, AttributeError):
        return "fail"
    return {dkim.CV_None: "none", dkim.CV_Pass: "pass"}.get(verdict, "fail")


# What a domain publishes, and addresses to evaluate; the domain is example.com below its number.
SPF_RECORDS = [
    "v=spf1 -all", "v=spf1 +all", "v=spf1", "v=spf1 ?all", "v=spf1 ~all", "other", "v=spf10 -all", "V=SPF1 -ALL", "v=spf1 ip4:127.0.0.5 -all",
    "v=spf1 ip4:127.0.0.4/30 -all", "v=spf1 ip4:127.0.0.0/33 -all", "v=spf1 ip4:127.0.0 -all", "v=spf1 ip4:127.0.0.5/ -all",
    "v=spf1 ip4:127.0.0.5/032 -all", "v=spf1 ip4:300.0.0.1 -all", "v=spf1 ip6:::1 -all", "v=spf1 ip6:2001:db8::/32 ip4:127.0.0.6 -all",
    "v=spf1 ip6:zz -all", "v=spf1 a -all", "v=spf1 a/30 -all", "v=spf1 a:hosts.example.net -all", "v=spf1 a:hosts.example.net/30//64 -all",
    "v=spf1 a: -all", "v=spf1 a:toplevel -all", "v=spf1 a:host.123 -all", "v=spf1 a=hosts.example.net -all", "v=spf1 mx -all",
    "v=spf1 mx:many.example.net -all", "v=spf1 mx:hosts.example.net -all", "v=spf1 mx/24 -all", "v=spf1 ptr -all", "v=spf1 ptr:example.net -all",
    "v=spf1 include:pass.example.net -all", "v=spf1 include:fail.example.net ~all", "v=spf1 -include:pass.example.net +all",
    "v=spf1 ?include:pass.example.net -all", "v=spf1 include:missing.example.net -all", "v=spf1 include:broken.example.net -all",
    "v=spf1 include:nested.example.net ?all", "v=spf1 include -all", "v=spf1 include: -all", "v=spf1 exists:%{i}.e.example.net -all",
    "v=spf1 exists:%{ir}.%{v}.e.example.net -all", "v=spf1 exists:%{l}.%{d2}.e.example.net -all", "v=spf1 exists:%{h}.e.example.net -all",
    "v=spf1 exists:%{S}.e.example.net -all", "v=spf1 exists:%{d1r}.e.example.net -all", "v=spf1 exists:%{d0}.e.example.net -all",
    "v=spf1 exists:%{x}.e.example.net -all", "v=spf1 exists:%{c}.e.example.net -all", "v=spf1 exists:%%.e.example.net -all",
    "v=spf1 exists:%a.e.example.net -all", "v=spf1 exists:%{p}.e.example.net -all", "v=spf1 exists:%{lr-}.e.example.net -all",
    "v=spf1 redirect=pass.example.net", "v=spf1 redirect=fail.example.net", "v=spf1 redirect=missing.example.net", "v=spf1 redirect=pass.example.net -all",
    "v=spf1 redirect= -all", "v=spf1 redirect=a.example redirect=b.example", "v=spf1 exp=a.example exp=b.example", "v=spf1 exp=explain.example.net -all",
    "v=spf1 unknown=value -all", "v=spf1 unknown=%{d} ip4:127.0.0.5 -all", "v=spf1 foo -all", "v=spf1 foo:bar -all", "v=spf1 ip4:127.0.0.5 foo",
    "v=spf1 all:x", "v=spf1  ip4:127.0.0.5   -all ", "v=spf1 -all ip4:127.0.0.5", "v=spf1 include:loop.example.net -all", "v=spf1 include:ten.example.net -all",
    "v=spf1 include:eleven.example.net -all", "v=spf1 a:v1.example.net a:v2.example.net ip4:127.0.0.5 -all",
    "v=spf1 a:v1.example.net a:v2.example.net a:v3.example.net ip4:127.0.0.5 -all", "v=spf1 mx:v1.example.net exists:v2.example.net -all",
    "v=spf1 ip4:127.0.0.5/0 -all", "v=spf1 a:%{d} -all", "v=spf1 a:%{o}/31 -all", "v=spf1 mx:%{d2} -all", "v=spf1 +ip4:127.0.0.5 -ip4:127.0.0.6 ?all",
    "v=spf1 ip4:127.0.0.5,127.0.0.6 -all", "v=spf1 ipv4:127.0.0.5 -all", "v=spf1 - all", "v=spf1 a/0 -all", "v=spf1 a//0 -all", "v=spf1 a/33 -all",
]
SPF_ADDRESSES = ["127.0.0.5", "127.0.0.6", "127.0.0.9"]


def spf_names(zone):
    for number, record in enumerate(SPF_RECORDS):
        domain = f"d{number}.example.com"
        zone.add(domain, "TXT", record)
        zone.add(domain, "A", "127.0.0.5", "192.0.2.1")
        zone.add(domain, "MX", f"10 mx.{domain}")
        zone.add(f"mx.{domain}", "A", "127.0.0.6")
    zone.add("example.com", "MX", "10 hosts.example.net")
    zone.add("hosts.example.net", "A", "127.0.0.9", "127.0.0.5")
    zone.add("many.example.net", "MX", *(f"{number} m{number}.example.net" for number in range(11)))
    for number in range(11):
        zone.add(f"m{number}.example.net", "A", "192.0.2.9")
    zone.add("5.0.0.127.in-addr.arpa", "PTR", "hosts.example.net")
    zone.add("6.0.0.127.in-addr.arpa", "PTR", "other.example.org")
    zone.add("pass.example.net", "TXT", "v=spf1 ip4:127.0.0.4/30 -all")
    zone.add("fail.example.net", "TXT", "v=spf1 -ip4:127.0.0.5 +all")
    zone.add("broken.example.net", "TXT", "v=spf1 foo")
    zone.add("nested.example.net", "TXT", "v=spf1 ~include:pass.example.net +all")
    zone.add("loop.example.net", "TXT", "v=spf1 include:loop.example.net")
    zone.add("explain.example.net", "TXT", "You are not %{d}")
    for name, count in (("ten", 9), ("eleven", 10)):
        zone.add(f"{name}.example.net", "TXT", f"v=spf1 include:{name}1.example.net -all")
        for number in range(1, count):
            zone.add(f"{name}{number}.example.net", "TXT", f"v=spf1 include:{name}{number + 1}.example.net -all")
        zone.add(f"{name}{count}.example.net", "TXT", "v=spf1 ip4:127.0.0.5 -all")
    for name in ("127.0.0.5", "5.0.0.127.in-addr", "anna.example.com", "client.example.net", "example", "hosts.example.net", "anna"):
        zone.add(f"{name}.e.example.net", "A", "127.0.0.2")


def pyspf_on(zone, address, sender, hello):
    """The outcome in one word."""
    before, spf.DNSLookup = spf.DNSLookup, zone.for_pyspf
    try:
        outcome, _ = spf.check2(i=address, s=sender, h=hello)
        return outcome
    finally:
        spf.DNSLookup = before
