//! Ways to hide a second message in a first one (CVE-2023-51764 and its relatives): each as one row.

use restante_core::nonzero;

use crate::support::Server;

const EVIL: &str =
    "MAIL FROM:<evil@example.net>\r\nRCPT TO:<bob@example.org>\r\nDATA\r\na: 1\r\n\r\nevil\r\n.\r\n";
const ENVELOPE: &str = "MAIL FROM:<sender@example.net>\r\nRCPT TO:<anna@example.org>\r\n";

/// What a client sends after its EHLO, and which replies it may get. The codes of all replies must begin with one of them.
struct Row {
    name: String,
    said: Vec<u8>,
    expected: Vec<&'static str>,
}

/// Line breaks, and what programs treated as such.
const BREAKS: [&str; 10] =
    ["\r\n", "\n", "\r", "\r\r\n", "\n\r", "\n\n", "\r\r", "\n\r\n", "\r\n\r", "\u{85}"];
/// What programs treated as the dot.
const DOTS: [&str; 4] = [".", "..", ". ", ".\0"];

/// Every false end of `DATA`: a break, a dot and a break that are not CRLF, dot, CRLF.
fn false_ends() -> Vec<Row> {
    let mut rows = Vec::new();
    for before in BREAKS {
        for dot in DOTS {
            for after in BREAKS {
                let end = format!("{before}{dot}{after}");
                let content = format!("a: 1\r\n\r\ntext{end}{EVIL}");
                if format!("text{end}").contains("\r\n.\r\n") {
                    continue; // the true end
                }
                // The true end arrives with the hidden message's own one: what follows is a command.
                let said = format!("{ENVELOPE}DATA\r\n{content}QUIT\r\n").into_bytes();
                let (name, expected) = (format!("{end:?}"), vec!["250", "250", "354", "250|550", "221"]);
                rows.push(Row { name, said, expected });
            }
        }
    }
    rows
}

fn row(name: &str, said: impl AsRef<[u8]>, expected: &[&'static str]) -> Row {
    Row { name: name.to_owned(), said: said.as_ref().to_vec(), expected: expected.to_vec() }
}

fn bdat(content: &str, last: &str) -> String {
    format!("BDAT {}{last}\r\n{content}", content.len())
}

/// Mixtures of chunks, lines and dots.
fn chunks() -> Vec<Row> {
    let hidden = format!("a: 1\r\n\r\ntext\r\n.\r\n{EVIL}");
    let one_by_one: String = hidden.chars().map(|c| bdat(&c.to_string(), "")).collect();
    let mut chunked = vec!["250"; 2 + hidden.len()];
    chunked.extend(["250", "221"]);
    let split = hidden.find(".\r\n").unwrap() + 1;
    let (start, end) = hidden.split_at(split);
    vec![
        row(
            "a dot in the last chunk",
            format!("{ENVELOPE}{}QUIT\r\n", bdat(&hidden, " LAST")),
            &["250", "250", "250", "221"],
        ),
        row("an end over chunks", format!("{ENVELOPE}{one_by_one}BDAT 0 LAST\r\nQUIT\r\n"), &chunked),
        row(
            "a dot between chunks",
            format!("{ENVELOPE}{}{}QUIT\r\n", bdat(start, ""), bdat(end, " LAST")),
            &["250", "250", "250", "250", "221"],
        ),
        row(
            "bare line feeds in a chunk",
            format!("{ENVELOPE}{}QUIT\r\n", bdat(&hidden.replace("\r\n", "\n"), " LAST")),
            &["250", "250", "250", "221"],
        ),
        row(
            "DATA after a chunk",
            format!("{ENVELOPE}{}DATA\r\n{EVIL}", bdat("a: 1\r\n", "")),
            &["250", "250", "250", "554"],
        ),
        row(
            "a chunk without recipients",
            format!("MAIL FROM:<sender@example.net>\r\n{}QUIT\r\n", bdat(EVIL, " LAST")),
            &["250", "503", "221"],
        ),
        row("a chunk without a message", format!("{}QUIT\r\n", bdat(EVIL, "")), &["503", "221"]),
        row(
            "a chunk that is too big",
            format!("{ENVELOPE}{}QUIT\r\n", bdat(&EVIL.repeat(40), " LAST")),
            &["250", "250", "552", "221"],
        ),
        row(
            "a chunk with a bare line feed",
            format!("{ENVELOPE}BDAT 5 LAST\n{EVIL}"),
            &["250", "250", "500"],
        ),
    ]
    .into_iter()
    .chain(["-5", "+5", "0x5", "5.", "5 LAST MORE", "18446744073709551621", "", "5 FIRST"].map(|wrong| {
        let name = format!("BDAT {wrong}");
        row(&name, format!("{ENVELOPE}BDAT {wrong}\r\n{EVIL}"), &["250", "250", "501|421"])
    }))
    .collect()
}

/// Commands where they don't belong.
fn commands() -> Vec<Row> {
    let content = format!("a: 1\r\n\r\n{EVIL}");
    vec![
        row(
            "a message behind a DATA that is refused for its recipients",
            format!("MAIL FROM:<sender@example.net>\r\nRCPT TO:<no@example.org>\r\nDATA\r\n{content}"),
            &["250", "550", "554"],
        ),
        row("a message behind a DATA without MAIL", format!("DATA\r\n{content}"), &["554"]),
        row(
            "a message behind a DATA that binary mail can't have",
            format!(
                "MAIL FROM:<sender@example.net> BODY=BINARYMIME\r\nRCPT TO:<anna@example.org>\r\nDATA\r\n{content}"
            ),
            &["250", "250", "554"],
        ),
        row(
            "commands behind DATA are content",
            format!("{ENVELOPE}DATA\r\nRSET\r\n{EVIL}QUIT\r\n"),
            &["250", "250", "354", "250", "221"],
        ),
        row("a line feed ends no command", format!("{ENVELOPE}NOOP\n{EVIL}"), &["250", "250", "500"]),
        row(
            "a carriage return ends no command",
            format!("{ENVELOPE}NOOP\rMAIL FROM:<evil@example.net>\r\nQUIT\r\n"),
            &["250", "250", "250|500|501", "221"],
        ),
        row(
            "a line break in an address",
            format!("MAIL FROM:<sender@example.net>\r\nRCPT TO:<anna\n@example.org>\r\n{EVIL}"),
            &["250", "500"],
        ),
        row(
            "a NUL in a command",
            format!("{ENVELOPE}NOOP\0\r\nRSET\r\nQUIT\r\n"),
            &["250", "250", "250|500|501", "250", "221"],
        ),
        row(
            "an end at once, and then a line feed",
            format!("{ENVELOPE}DATA\r\n.\n{EVIL}QUIT\r\n"),
            &["250", "250", "354", "550", "221"],
        ),
        row(
            "a dot that is doubled before a true end",
            format!("{ENVELOPE}DATA\r\na: 1\r\n\r\n..\r\n{EVIL}QUIT\r\n"),
            &["250", "250", "354", "250", "221"],
        ),
    ]
}

#[tokio::test]
async fn sm5_sm7_no_variant_smuggles_a_second_message() {
    let server = Server::with(|smtp, _| smtp.message_bytes_max = nonzero!(2_000)).await;
    let rows: Vec<Row> = false_ends().into_iter().chain(chunks()).chain(commands()).collect();
    assert!(rows.len() > 350, "{}", rows.len());
    for Row { name, said, expected } in rows {
        let before = server.stored.mails.lock().len();
        let mut client = server.smtp().await;
        client.send(&said).await;
        let mut replies = Vec::new();
        loop {
            match client.reply().await {
                reply if reply.is_empty() => break,
                reply => replies.push(reply),
            }
        }
        let fits =
            |(reply, expected): (&String, &&str)| expected.split('|').any(|code| reply.starts_with(code));
        let is_expected = replies.len() == expected.len() && replies.iter().zip(&expected).all(fits);
        assert!(is_expected, "{name}: {replies:?} and not {expected:?}");
        let mails = server.stored.mails.lock();
        assert!(mails.len() <= before + 1, "{name}");
        for (mail, targets) in &mails[before..] {
            assert!(mail.raw.starts_with(b"Return-Path: <sender@example.net>\r\n"), "{name}");
            assert!(targets.iter().all(|target| target.address.local() == "anna"), "{name}");
        }
    }
}
