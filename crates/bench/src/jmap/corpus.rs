//! Emails like those of public collections of mail: threads, multiparts, attachments, words by Zipf's law.
//!
//! Every email is generated from its number alone.

use std::fmt::Write;

use crate::random::Random;

/// The words of all texts.
const VOCABULARY: f64 = 50_000.0;
/// The share of emails, in percent, that reply to another one, at most this far back.
const REPLIES: u64 = 30;
const RECENT: u64 = 500;
/// References of an email at most.
const REFERENCES_MAX: usize = 4;
/// The shares, in percent, of emails with HTML beside their text, and with an attachment.
const WITH_HTML: u64 = 25;
const WITH_ATTACHMENT: u64 = 10;
/// Bytes of a text: half of them are at most this long, by a logarithmic normal distribution of this deviation.
const TEXT_BYTES_MEDIAN: f64 = 1_500.0;
const TEXT_DEVIATION: f64 = 0.9;
const TEXT_BYTES_MAX: f64 = 40_000.0;
/// Bytes of an attachment, before it is encoded.
const ATTACHMENT_BYTES_MIN: u64 = 500;
const ATTACHMENT_BYTES_MAX: u64 = 20_000;
const PEOPLE: u64 = 20_000;
/// Seconds since 1970 when the first email was received, and between two emails.
const FIRST: i64 = 1_600_000_000;
const INTERVAL: i64 = 60;
const LINE_BYTES: usize = 72;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const CONSONANTS: &[u8; 20] = b"bcdfghjklmnpqrstvwxz";
const VOWELS: &[u8; 5] = b"aeiou";
const SYLLABLES: u64 = 100;

/// The emails of a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corpus {
    pub(crate) seed: u64,
}

/// The purpose of a random number, so that one can be drawn without the others.
#[derive(Clone, Copy)]
enum Purpose {
    Reply,
    Header,
    Subject,
    Body,
    Term,
    Keywords,
}

impl Corpus {
    /// The n-th email, counted from 0.
    pub(super) fn email(&self, n: u64) -> Vec<u8> {
        let mut mail = self.header(n);
        let mut random = self.random(n, Purpose::Body);
        let bytes = TEXT_BYTES_MEDIAN * (TEXT_DEVIATION * random.normal()).exp();
        let text = text(bytes.min(TEXT_BYTES_MAX) as usize, &mut random);
        let has_html = random.below(100) < WITH_HTML;
        let has_attachment = random.below(100) < WITH_ATTACHMENT;
        mail.push_str("MIME-Version: 1.0\r\n");
        if has_attachment {
            let _ =
                write!(mail, "Content-Type: multipart/mixed; boundary=\"mixed-{n}\"\r\n\r\n--mixed-{n}\r\n");
        }
        put_text(&mut mail, n, &text, has_html);
        if has_attachment {
            put_attachment(&mut mail, n, &mut random);
        }
        mail.into_bytes()
    }

    /// A plain email of `bytes` bytes with one of these texts, so that a load client generates no text.
    pub(crate) fn plain(&self, n: u64, texts: &[String], bytes: usize) -> String {
        let mut mail = self.header(n);
        mail.push_str("Content-Type: text/plain; charset=utf-8\r\n\r\n");
        let text = texts.get(n as usize % texts.len().max(1)).map_or("", String::as_str);
        let space = bytes.saturating_sub(mail.len());
        mail.push_str(text.get(..space).unwrap_or(text).trim_end_matches(['\r', '\n']));
        mail
    }

    /// Texts for [`Corpus::plain`].
    pub(crate) fn texts(&self, count: u64, bytes: usize) -> Vec<String> {
        (0..count).map(|n| text(bytes, &mut self.random(n, Purpose::Body))).collect()
    }

    /// When the n-th email was received, in seconds since 1970.
    pub(super) fn received(n: u64) -> i64 {
        FIRST + n as i64 * INTERVAL
    }

    /// Its keywords: most emails are read.
    pub(super) fn keywords(&self, n: u64) -> Vec<String> {
        let mut random = self.random(n, Purpose::Keywords);
        let shares = [("$seen", 80), ("$flagged", 5), ("$answered", 10)];
        let chosen = shares.into_iter().filter(|(_, share)| random.below(100) < *share);
        chosen.map(|(keyword, _)| keyword.to_owned()).collect()
    }

    /// Random numbers for the choice of search terms.
    pub(super) fn terms(&self, client: u64) -> Random {
        self.random(client, Purpose::Term)
    }

    fn random(&self, n: u64, purpose: Purpose) -> Random {
        Random::new(self.seed, (n << 3) ^ purpose as u64)
    }

    /// Trace fields, addresses, subject, date and references.
    fn header(&self, n: u64) -> String {
        let mut random = self.random(n, Purpose::Header);
        let (from, to) = (person(&mut random), person(&mut random));
        let date = date(n);
        let mut header = String::with_capacity(4_096);
        let _ = write!(
            header,
            "Return-Path: <{}>\r\nReceived: from mx.example.net (mx.example.net [192.0.2.{}])\r\n\tby mail.example.org with ESMTPS \
             id {n:08x}\r\n\tfor <user@example.org>; {date}\r\nReceived: from localhost (localhost [127.0.0.1])\r\n\tby mx.example.net \
             with ESMTP id {:08x}; {date}\r\nFrom: {} <{}>\r\nTo: {} <{}>\r\n",
            from.1,
            n % 250 + 1,
            random.bits() as u32,
            from.0,
            from.1,
            to.0,
            to.1,
        );
        if random.below(3) == 0 {
            let (name, address) = person(&mut random);
            let _ = write!(header, "Cc: {name} <{address}>\r\n");
        }
        let root = self.root(n);
        let prefix = if root == n { "" } else { "Re: " };
        let mut subject = self.random(root, Purpose::Subject);
        let words: Vec<String> = (0..4 + subject.below(6)).map(|_| term(&mut subject)).collect();
        let _ = write!(
            header,
            "Subject: {prefix}{}\r\nDate: {date}\r\nMessage-ID: <{}>\r\n",
            words.join(" "),
            self.message_id(n)
        );
        self.put_references(&mut header, n);
        header
    }

    fn put_references(&self, header: &mut String, n: u64) {
        let mut references = Vec::new();
        let mut last = n;
        while let Some(parent) = self.parent(last).filter(|_| references.len() < REFERENCES_MAX) {
            references.push(format!("<{}>", self.message_id(parent)));
            last = parent;
        }
        if let Some(parent) = references.first() {
            let _ = write!(header, "In-Reply-To: {parent}\r\n");
            references.reverse();
            let _ = write!(header, "References: {}\r\n", references.join("\r\n "));
        }
    }

    fn message_id(&self, n: u64) -> String {
        format!("{n:x}.{:016x}@example.net", Random::new(self.seed, n).bits())
    }

    /// The email that this one replies to.
    fn parent(&self, n: u64) -> Option<u64> {
        let mut random = self.random(n, Purpose::Reply);
        let is_reply = n > 0 && random.below(100) < REPLIES;
        is_reply.then(|| n - 1 - random.below(n.min(RECENT)))
    }

    /// The first email of the thread.
    fn root(&self, n: u64) -> u64 {
        let mut root = n;
        while let Some(parent) = self.parent(root) {
            root = parent;
        }
        root
    }
}

/// A word by Zipf's law: the commonest is in nearly every text.
pub(super) fn term(random: &mut Random) -> String {
    // The inverse of the distribution function of 1/x.
    let rank = (random.unit() * (VOCABULARY + 1.0).ln()).exp() - 1.0;
    word(rank as u64)
}

/// The word of a rank: two syllables at least.
fn word(rank: u64) -> String {
    let mut rest = rank + SYLLABLES;
    let mut word = String::new();
    while rest > 0 {
        let syllable = (rest % SYLLABLES) as usize;
        for (letters, place) in
            [(CONSONANTS.as_slice(), syllable / VOWELS.len()), (VOWELS, syllable % VOWELS.len())]
        {
            word.push(letters.get(place).copied().map_or(' ', char::from));
        }
        rest /= SYLLABLES;
    }
    word
}

/// Lines of about `bytes` bytes.
fn text(bytes: usize, random: &mut Random) -> String {
    let mut text = String::with_capacity(bytes + LINE_BYTES);
    let mut line = 0;
    while text.len() < bytes {
        let word = term(random);
        text.push_str(&word);
        line += word.len() + 1;
        let is_end = line > LINE_BYTES;
        text.push_str(if is_end { "\r\n" } else { " " });
        line = if is_end { 0 } else { line };
    }
    text
}

/// Name and address.
fn person(random: &mut Random) -> (String, String) {
    let number = random.below(PEOPLE);
    let (first, last) = (word(number % 300), word(1_000 + number));
    let domain = word(5_000 + number % 700);
    (format!("{first} {last}"), format!("{first}.{last}@{domain}.example"))
}

/// A date as in header fields.
fn date(n: u64) -> String {
    let days = n / 1_440;
    let month = MONTHS.get((days / 28 % 12) as usize).copied().unwrap_or_default();
    let (day, year) = (days % 28 + 1, 2_020 + days / 336);
    format!("{day} {month} {year} {:02}:{:02}:00 +0000", n / 60 % 24, n % 60)
}

/// A text, with or without the same text in HTML.
fn put_text(mail: &mut String, n: u64, text: &str, has_html: bool) {
    const PLAIN: &str = "Content-Type: text/plain; charset=utf-8\r\n\r\n";
    if !has_html {
        let _ = write!(mail, "{PLAIN}{text}\r\n");
        return;
    }
    let _ = write!(
        mail,
        "Content-Type: multipart/alternative; boundary=\"alternative-{n}\"\r\n\r\n--alternative-{n}\r\n{PLAIN}{text}\r\n\
         --alternative-{n}\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<html><body><p>{text}</p></body></html>\r\n\
         --alternative-{n}--\r\n"
    );
}

fn put_attachment(mail: &mut String, n: u64, random: &mut Random) {
    let bytes = ATTACHMENT_BYTES_MIN + random.below(ATTACHMENT_BYTES_MAX - ATTACHMENT_BYTES_MIN);
    let mut attachment = vec![0; bytes as usize];
    random.fill(&mut attachment);
    let encoded = base64_simd::STANDARD.encode_to_string(attachment);
    let _ = write!(
        mail,
        "\r\n--mixed-{n}\r\nContent-Type: application/pdf; name=\"{n}.pdf\"\r\nContent-Disposition: attachment; filename=\"{n}.pdf\"\r\n\
         Content-Transfer-Encoding: base64\r\n\r\n"
    );
    for line in encoded.as_bytes().chunks(76) {
        mail.push_str(&String::from_utf8_lossy(line));
        mail.push_str("\r\n");
    }
    let _ = write!(mail, "--mixed-{n}--\r\n");
}

#[cfg(test)]
mod tests {
    use restante_mail::message;

    use super::*;

    #[test]
    fn emails_repeat_and_have_the_shape_of_mail() {
        let corpus = Corpus { seed: 7 };
        let mut with_attachment = 0;
        let mut bytes = 0;
        for n in 0..200 {
            let raw = corpus.email(n);
            assert_eq!(raw, Corpus { seed: 7 }.email(n));
            let read = message::read(&raw);
            with_attachment += u64::from(read.has_attachment);
            bytes += raw.len();
            assert!(!read.preview.is_empty() && read.sent_at.is_some(), "{n}");
            let is_reply = corpus.parent(n).is_some();
            assert_eq!(read.thread_keys.len() > 1, is_reply, "{n}: a reply has the keys of its references");
        }
        assert!((5..60).contains(&with_attachment), "{with_attachment}");
        assert!((2_000..10_000).contains(&(bytes / 200)), "{}", bytes / 200);
        assert_ne!(corpus.email(0), Corpus { seed: 8 }.email(0));
    }

    #[test]
    fn a_plain_email_has_the_size_that_was_asked_for() {
        let corpus = Corpus { seed: 0 };
        let texts = corpus.texts(3, 4_096);
        let mail = corpus.plain(5, &texts, 4_096);
        assert!((4_090..=4_096).contains(&mail.len()), "{}", mail.len());
        assert!(!mail.contains("\r\n.") && corpus.plain(8, &texts, 4_096) != mail);
    }

    #[test]
    fn words_differ_and_the_commonest_is_drawn_most() {
        let words: std::collections::HashSet<String> = (0..50_000).map(word).collect();
        assert_eq!(words.len(), 50_000);
        let mut random = Random::new(0, 0);
        let commonest = (0..10_000).filter(|_| term(&mut random) == word(0)).count();
        assert!((400..900).contains(&commonest), "{commonest}");
    }
}
