use super::path::{self, ForwardPath, Mailbox};

/// A command line of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'l> {
    /// `HELO name`.
    Helo(&'l str),
    /// `EHLO name`.
    Ehlo(&'l str),
    /// `LHLO name`, LMTP's `EHLO`.
    Lhlo(&'l str),
    /// `MAIL FROM:<sender> parameters`; the sender of a notice is `None`.
    Mail(Option<Mailbox<'l>>, MailParameters),
    /// `RCPT TO:<recipient>`.
    Rcpt(ForwardPath<'l>),
    /// `DATA`.
    Data,
    /// `BDAT bytes [LAST]`. So many bytes of the message follow.
    Bdat {
        /// How many.
        bytes: u64,
        /// Whether the message ends with them.
        is_last: bool,
    },
    /// `RSET`.
    Rset,
    /// `NOOP`, with any text behind it.
    Noop,
    /// `VRFY name`.
    Vrfy,
    /// `EXPN name`.
    Expn,
    /// `HELP`, with any text behind it.
    Help,
    /// `QUIT`.
    Quit,
    /// `STARTTLS` (RFC 3207).
    StartTls,
}

/// What a `MAIL` command says of the message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailParameters {
    /// `SIZE=` (RFC 1870). A number beyond 64 bits is the largest.
    pub size: Option<u64>,
    /// `BODY=` (RFC 6152, RFC 3030).
    pub body: Body,
    /// `SMTPUTF8` (RFC 6531).
    pub is_utf8: bool,
}

/// What the bytes of a message may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// `7BIT`, or nothing was said.
    #[default]
    SevenBit,
    /// `8BITMIME`: lines of any bytes.
    EightBit,
    /// `BINARYMIME`: any bytes, without lines; by `BDAT` only.
    Binary,
}

/// Why a line is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It begins with no known word.
    #[error("the command is not known")]
    Unknown,
    /// It has a control character, or is not UTF-8.
    #[error("the command has a character that it can't have")]
    Character,
    /// What follows the word can't be parsed. The text is the form that it must have.
    #[error("use {0}")]
    Syntax(&'static str),
    /// The length of a `BDAT` command can't be parsed, so that the end of what follows it isn't known.
    #[error("the length of the chunk can't be parsed")]
    ChunkLength,
    /// A parameter is not known, or not offered.
    #[error("a parameter is not known")]
    Parameter,
}

const HELLO: &str = "a host name or an address in brackets behind the command";
const MAIL: &str = "MAIL FROM:<address>";
const RCPT: &str = "RCPT TO:<address>";
const NOTHING_MORE: &str = "the command alone";
const TEXT: &str = "the command with a name";
/// RFC 5321 §4.5.3.1.2.
const HELLO_BYTES_MAX: usize = 255;

impl<'l> Command<'l> {
    /// Parses a line without its line break.
    ///
    /// # Errors
    /// The line is no command, in one of the ways of [`CommandError`].
    pub fn parse(line: &'l [u8]) -> Result<Self, CommandError> {
        let text = std::str::from_utf8(line).map_err(|_| CommandError::Character)?;
        if text.chars().any(char::is_control) {
            return Err(CommandError::Character);
        }
        let text = text.trim_end_matches(' ');
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let is = |name: &str| word.eq_ignore_ascii_case(name);
        let alone =
            |command| if rest.is_empty() { Ok(command) } else { Err(CommandError::Syntax(NOTHING_MORE)) };
        let named = |command| if rest.is_empty() { Err(CommandError::Syntax(TEXT)) } else { Ok(command) };
        // In the order of their frequency.
        if is("RCPT") {
            rcpt(rest)
        } else if is("MAIL") {
            mail(rest)
        } else if is("DATA") {
            alone(Self::Data)
        } else if is("BDAT") {
            bdat(rest)
        } else if is("RSET") {
            alone(Self::Rset)
        } else if is("LHLO") {
            Ok(Self::Lhlo(host(rest)?))
        } else if is("EHLO") {
            Ok(Self::Ehlo(host(rest)?))
        } else if is("HELO") {
            Ok(Self::Helo(host(rest)?))
        } else if is("QUIT") {
            alone(Self::Quit)
        } else if is("NOOP") {
            Ok(Self::Noop)
        } else if is("STARTTLS") {
            alone(Self::StartTls)
        } else if is("VRFY") {
            named(Self::Vrfy)
        } else if is("EXPN") {
            named(Self::Expn)
        } else if is("HELP") {
            Ok(Self::Help)
        } else {
            Err(CommandError::Unknown)
        }
    }
}

/// The name of a client: a domain, or an address literal with an IPv4 address or one tagged `IPv6:`.
fn host(text: &str) -> Result<&str, CommandError> {
    let is_tagged =
        |literal: &str| !literal.contains(':') || literal.to_ascii_lowercase().starts_with("[ipv6:");
    let is_host =
        text.len() <= HELLO_BYTES_MAX && path::is_domain(text) && (!text.starts_with('[') || is_tagged(text));
    if is_host { Ok(text) } else { Err(CommandError::Syntax(HELLO)) }
}

/// What follows `FROM:` or `TO:`.
fn after_keyword<'l>(text: &'l str, keyword: &str) -> Option<&'l str> {
    let (start, rest) = text.split_at_checked(keyword.len())?;
    start.eq_ignore_ascii_case(keyword).then_some(rest)
}

fn mail(text: &str) -> Result<Command<'_>, CommandError> {
    let wrong = CommandError::Syntax(MAIL);
    let path = after_keyword(text, "FROM:").ok_or(wrong)?;
    let (sender, rest) = path::reverse_path(path).ok_or(wrong)?;
    Ok(Command::Mail(sender, mail_parameters(parameters(rest).ok_or(wrong)?)?))
}

fn rcpt(text: &str) -> Result<Command<'_>, CommandError> {
    let wrong = CommandError::Syntax(RCPT);
    let path = after_keyword(text, "TO:").ok_or(wrong)?;
    let (recipient, rest) = path::forward_path(path).ok_or(wrong)?;
    match parameters(rest).ok_or(wrong)?.next() {
        Some(_) => Err(CommandError::Parameter),
        None => Ok(Command::Rcpt(recipient)),
    }
}

/// The parameters behind a path: names, each perhaps with a value. `None` when no space is before them.
fn parameters(rest: &str) -> Option<impl Iterator<Item = (&str, Option<&str>)>> {
    let is_separated = rest.is_empty() || rest.starts_with(' ');
    let words = rest.split(' ').filter(|word| !word.is_empty());
    is_separated.then(|| {
        words.map(|word| match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        })
    })
}

fn mail_parameters<'l>(
    words: impl Iterator<Item = (&'l str, Option<&'l str>)>,
) -> Result<MailParameters, CommandError> {
    let (mut size, mut body, mut is_utf8) = (None, None, false);
    for (name, value) in words {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let is_repeated = if is("SIZE") {
            let number = value.and_then(number).ok_or(CommandError::Syntax("SIZE=<number>"))?;
            size.replace(number).is_some()
        } else if is("BODY") {
            let known = value.and_then(body_of).ok_or(CommandError::Syntax("BODY=7BIT or BODY=8BITMIME"))?;
            body.replace(known).is_some()
        } else if is("SMTPUTF8") && value.is_none() {
            std::mem::replace(&mut is_utf8, true)
        } else {
            return Err(CommandError::Parameter);
        };
        if is_repeated {
            return Err(CommandError::Syntax("each parameter once"));
        }
    }
    Ok(MailParameters { size, body: body.unwrap_or_default(), is_utf8 })
}

fn body_of(value: &str) -> Option<Body> {
    let known = [("7BIT", Body::SevenBit), ("8BITMIME", Body::EightBit), ("BINARYMIME", Body::Binary)];
    known.into_iter().find(|(name, _)| value.eq_ignore_ascii_case(name)).map(|(_, body)| body)
}

/// A number of 1 to 20 digits (RFC 1870 §3).
fn number(text: &str) -> Option<u64> {
    let is_number = (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn bdat(text: &str) -> Result<Command<'_>, CommandError> {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let bytes = words.next().and_then(number).ok_or(CommandError::ChunkLength)?;
    let is_last = match words.next() {
        None => false,
        Some(word) if word.eq_ignore_ascii_case("LAST") => true,
        Some(_) => return Err(CommandError::ChunkLength),
    };
    match words.next() {
        None => Ok(Command::Bdat { bytes, is_last }),
        Some(_) => Err(CommandError::ChunkLength),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> Result<Command<'_>, CommandError> {
        Command::parse(line.as_bytes())
    }

    fn sender(line: &str) -> Option<String> {
        match parse(line) {
            Ok(Command::Mail(sender, _)) => Some(sender.map(|sender| sender.to_string()).unwrap_or_default()),
            _ => None,
        }
    }

    fn recipient(line: &str) -> Option<String> {
        match parse(line) {
            Ok(Command::Rcpt(ForwardPath::Mailbox(mailbox))) => Some(mailbox.to_string()),
            Ok(Command::Rcpt(ForwardPath::Postmaster)) => Some("postmaster".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn sm2_commands_are_known_in_any_case() {
        for (line, expected) in [
            ("DATA", Ok(Command::Data)),
            ("data ", Ok(Command::Data)),
            ("DATA now", Err(CommandError::Syntax(NOTHING_MORE))),
            ("rSeT", Ok(Command::Rset)),
            ("NOOP whatever <it is>", Ok(Command::Noop)),
            ("HELP MAIL", Ok(Command::Help)),
            ("VRFY anna", Ok(Command::Vrfy)),
            ("VRFY", Err(CommandError::Syntax(TEXT))),
            ("EXPN list", Ok(Command::Expn)),
            ("quit", Ok(Command::Quit)),
            ("STARTTLS", Ok(Command::StartTls)),
            ("EHLO mail.example.org", Ok(Command::Ehlo("mail.example.org"))),
            ("HELO my_pc", Ok(Command::Helo("my_pc"))),
            ("LHLO [192.0.2.1]", Ok(Command::Lhlo("[192.0.2.1]"))),
            ("EHLO [IPv6:2001:db8::1]", Ok(Command::Ehlo("[IPv6:2001:db8::1]"))),
            ("EHLO", Err(CommandError::Syntax(HELLO))),
            ("EHLO a b", Err(CommandError::Syntax(HELLO))),
            ("EHLO (comment)", Err(CommandError::Syntax(HELLO))),
            ("", Err(CommandError::Unknown)),
            ("TURN", Err(CommandError::Unknown)),
            ("DATAX", Err(CommandError::Unknown)),
            ("NO\rOP", Err(CommandError::Character)),
            ("NOOP\0", Err(CommandError::Character)),
            ("NOOP\u{85}", Err(CommandError::Character)),
        ] {
            assert_eq!(parse(line), expected, "{line:?}");
        }
        assert_eq!(Command::parse(b"NOOP \xff"), Err(CommandError::Character));
    }

    #[test]
    fn sm2_parameters_of_mail_are_parsed() {
        let parameters = |line: &str| match parse(line) {
            Ok(Command::Mail(_, parameters)) => Ok(parameters),
            Ok(_) => unreachable!(),
            Err(error) => Err(error),
        };
        let all = MailParameters { size: Some(1_000), body: Body::EightBit, is_utf8: true };
        assert_eq!(parameters("MAIL FROM:<a@b.example> SIZE=1000 BODY=8BITMIME SMTPUTF8"), Ok(all));
        assert_eq!(parameters("mail from:<>  smtputf8  body=8bitmime size=1000 "), Ok(all));
        assert_eq!(parameters("MAIL FROM:<>"), Ok(MailParameters::default()));
        assert_eq!(parameters("MAIL FROM:<> BODY=BINARYMIME").unwrap().body, Body::Binary);
        let largest = "MAIL FROM:<> SIZE=99999999999999999999";
        assert_eq!(parameters(largest).unwrap().size, Some(u64::MAX));
        for (line, expected) in [
            ("MAIL FROM:<> SIZE", CommandError::Syntax("SIZE=<number>")),
            ("MAIL FROM:<> SIZE=", CommandError::Syntax("SIZE=<number>")),
            ("MAIL FROM:<> SIZE=-1", CommandError::Syntax("SIZE=<number>")),
            ("MAIL FROM:<> SIZE=1 SIZE=1", CommandError::Syntax("each parameter once")),
            ("MAIL FROM:<> BODY=9BIT", CommandError::Syntax("BODY=7BIT or BODY=8BITMIME")),
            ("MAIL FROM:<> SMTPUTF8=1", CommandError::Parameter),
            ("MAIL FROM:<> RET=HDRS", CommandError::Parameter),
            ("MAIL FROM:<> AUTH=<>", CommandError::Parameter),
            ("MAIL FROM:<>SIZE=1", CommandError::Syntax(MAIL)),
        ] {
            assert_eq!(parameters(line), Err(expected), "{line}");
        }
        assert_eq!(parse("RCPT TO:<a@b.example> NOTIFY=NEVER"), Err(CommandError::Parameter));
    }

    #[test]
    fn sm3_local_parts_domains_and_paths_have_limits() {
        let domain = |bytes: usize| format!("{}.example", "d".repeat(bytes - ".example".len()));
        let line = |local: usize, bytes: usize| format!("RCPT TO:<{}@{}>", "l".repeat(local), domain(bytes));
        assert!(recipient(&line(64, 189)).is_some());
        assert!(recipient(&line(64, 190)).is_none(), "the path has more than 256 bytes");
        assert!(recipient(&line(65, 20)).is_none());
        assert!(recipient(&line(1, 252)).is_some());
        assert!(recipient(&line(1, 256)).is_none());
        assert!(parse(&format!("EHLO {}", domain(255))).is_ok());
        assert!(parse(&format!("EHLO {}", domain(256))).is_err());
    }

    #[test]
    fn sm4_postmaster_needs_no_domain() {
        for line in ["RCPT TO:<postmaster>", "rcpt to:<PostMaster>"] {
            assert_eq!(parse(line), Ok(Command::Rcpt(ForwardPath::Postmaster)));
        }
        assert_eq!(recipient("RCPT TO:<postmaster@example.org>").as_deref(), Some("postmaster@example.org"));
        assert!(sender("MAIL FROM:<postmaster>").is_none());
        assert!(recipient("RCPT TO:<anna>").is_none());
    }

    #[test]
    fn sm4_the_empty_sender_is_one_and_the_empty_recipient_is_none() {
        assert_eq!(parse("MAIL FROM:<>"), Ok(Command::Mail(None, MailParameters::default())));
        assert!(recipient("RCPT TO:<>").is_none());
    }

    #[test]
    fn sm4_source_routes_are_skipped() {
        for route in ["@relay.example:", "@a.example,@b.example:", "@a.example, @[192.0.2.1]:"] {
            let line = format!("RCPT TO:<{route}anna@example.org>");
            assert_eq!(recipient(&line).as_deref(), Some("anna@example.org"), "{line}");
        }
        for route in ["@:", "@a.example", "@a.example,:", "a.example:", "@a b:"] {
            assert!(recipient(&format!("RCPT TO:<{route}anna@example.org>")).is_none(), "{route}");
        }
    }

    #[test]
    fn sm4_quoted_local_parts_keep_their_quotes() {
        for local in [r#""anna b""#, r#""a@b""#, r#""a\"b""#, r#""a\\""#, r#""<>""#, r#""""#] {
            let line = format!("MAIL FROM:<{local}@example.org>");
            assert_eq!(sender(&line), Some(format!("{local}@example.org")), "{line}");
        }
        for local in [r#""a"#, r#""a\""#, r#""a"b"#, r#"a"b""#] {
            assert!(sender(&format!("MAIL FROM:<{local}@example.org>")).is_none(), "{local}");
        }
    }

    #[test]
    fn sm4_a_space_before_the_path_and_untagged_ipv6_literals_are_refused() {
        assert!(sender("MAIL FROM: <a@b.example>").is_none());
        assert!(recipient("RCPT TO: <a@b.example>").is_none());
        assert_eq!(parse("EHLO [::1]"), Err(CommandError::Syntax(HELLO)));
    }

    #[test]
    fn paths_that_are_none_are_refused() {
        for path in [
            "a@b.example",
            "<a@b.example",
            "<a b@c.example>",
            "<@b.example>",
            "<a@>",
            "<a@b..example>",
            "<a@b example>",
            "<a@[]>",
            "<a@[192.0.2.1>",
            "<a@b@c>",
            "<a>",
            "<<a@b.example>>",
            "<a@b.example>>",
        ] {
            assert!(sender(&format!("MAIL FROM:{path}")).is_none(), "{path}");
        }
        assert_eq!(sender("MAIL FROM:<a..b@example.org>").as_deref(), Some("a..b@example.org"));
        assert_eq!(sender("MAIL FROM:<jürgen@bücher.example>").as_deref(), Some("jürgen@bücher.example"));
    }

    #[test]
    fn sm6_a_chunk_has_a_length() {
        assert_eq!(parse("BDAT 0 LAST"), Ok(Command::Bdat { bytes: 0, is_last: true }));
        assert_eq!(parse("bdat 86 last"), Ok(Command::Bdat { bytes: 86, is_last: true }));
        assert_eq!(parse("BDAT 1000"), Ok(Command::Bdat { bytes: 1_000, is_last: false }));
        for line in ["BDAT", "BDAT LAST", "BDAT -1", "BDAT 1 FIRST", "BDAT 1 LAST 2", "BDAT 0x10", "BDAT 1,0"]
        {
            assert_eq!(parse(line), Err(CommandError::ChunkLength), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_written_envelope_reads_back(
            local in "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}|\"[ -!#-\\[\\]-~]{0,60}\"",
            domain in "[a-zA-Z0-9-]{1,20}(\\.[a-zA-Z0-9-]{1,20}){0,3}|\\[[0-9.]{7,15}\\]",
            size in proptest::option::of(any::<u64>()),
            is_utf8 in any::<bool>(),
        ) {
            let mailbox = Mailbox { local: &local, domain: &domain };
            let size_text = size.map(|size| format!(" SIZE={size}")).unwrap_or_default();
            let utf8 = if is_utf8 { " SMTPUTF8" } else { "" };
            let line = format!("MAIL FROM:<{mailbox}>{size_text} BODY=8BITMIME{utf8}");
            let parameters = MailParameters { size, body: Body::EightBit, is_utf8 };
            prop_assert_eq!(parse(&line), Ok(Command::Mail(Some(mailbox), parameters)));
            let line = format!("RCPT TO:<@route.example:{mailbox}>");
            prop_assert_eq!(parse(&line), Ok(Command::Rcpt(ForwardPath::Mailbox(mailbox))));
        }

        #[test]
        fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            super::super::properties::command(&line);
        }

        #[test]
        fn no_text_behind_a_command_panics(
            word in "(MAIL FROM:|RCPT TO:|EHLO |BDAT )<?", rest in "\\PC{0,60}"
        ) {
            super::super::properties::command(format!("{word}{rest}").as_bytes());
        }
    }
}
