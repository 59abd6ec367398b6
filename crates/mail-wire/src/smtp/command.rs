use super::{
    auth,
    parameters::{self, MailParameters, RcptParameters, number},
    path::{self, ForwardPath, Mailbox},
};

/// A command line of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'l> {
    /// `HELO name`.
    Helo(&'l str),
    /// `EHLO name`.
    Ehlo(&'l str),
    /// `LHLO name`, LMTP's `EHLO`.
    Lhlo(&'l str),
    /// `MAIL FROM:<sender> parameters`; the sender of a notification is `None`.
    Mail(Option<Mailbox<'l>>, MailParameters<'l>),
    /// `RCPT TO:<recipient> parameters`.
    Rcpt(ForwardPath<'l>, RcptParameters<'l>),
    /// `DATA`.
    Data,
    /// `BDAT bytes [LAST]`. This many bytes of the message follow.
    Bdat {
        /// The number of bytes.
        bytes: u64,
        /// Whether the message ends with them.
        is_last: bool,
    },
    /// `RSET`.
    Rset,
    /// `NOOP`, with any text after it.
    Noop,
    /// `VRFY name`.
    Vrfy,
    /// `EXPN name`.
    Expn,
    /// `HELP`, with any text after it.
    Help,
    /// `QUIT`.
    Quit,
    /// `STARTTLS` (RFC 3207).
    StartTls,
    /// `AUTH mechanism [response]` (RFC 4954).
    Auth {
        /// The name of the mechanism, in any case.
        mechanism: &'l str,
        /// The response in the command itself, see [`super::AuthResponse::parse_initial`].
        response: Option<&'l str>,
    },
}

/// How strictly commands are parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As defined by RFC 5321, and as other servers write them.
    Strict,
    /// With common mistakes of mail clients: a space before a path, and untagged IPv6 literals in `EHLO`.
    Lenient,
}

/// Why a line is not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It does not begin with a known verb.
    #[error("the command is not known")]
    Unknown,
    /// It has a control character, or is not UTF-8.
    #[error("the command has a character that it can't have")]
    Character,
    /// What follows the verb can't be parsed. The text is the required syntax.
    #[error("use {0}")]
    Syntax(&'static str),
    /// The length of a `BDAT` command can't be parsed, so that the end of what follows it isn't known.
    #[error("the length of the chunk can't be parsed")]
    ChunkLength,
    /// A parameter is unknown, or not offered.
    #[error("a parameter is not known")]
    Parameter,
}

const HELLO: &str = "a host name or an address in brackets after the command";
const MAIL: &str = "MAIL FROM:<address>";
const RCPT: &str = "RCPT TO:<address>";
const AUTH: &str = "AUTH <mechanism> or AUTH <mechanism> <response>";
const NOTHING_MORE: &str = "the command alone";
const TEXT: &str = "the command with a name";
/// RFC 5321 §4.5.3.1.2.
const HELLO_BYTES_MAX: usize = 255;

impl<'l> Command<'l> {
    /// Parses a line without its line break.
    ///
    /// # Errors
    /// The line is not a command, for one of the reasons of [`CommandError`].
    pub fn parse(line: &'l [u8]) -> Result<Self, CommandError> {
        Self::parse_as(line, Form::Strict)
    }

    /// Parses a line of a mail client. Some of them write a space before a path, or `EHLO [::1]` for `EHLO [IPv6:::1]`.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_lenient(line: &'l [u8]) -> Result<Self, CommandError> {
        Self::parse_as(line, Form::Lenient)
    }

    fn parse_as(line: &'l [u8], form: Form) -> Result<Self, CommandError> {
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
            rcpt(rest, form)
        } else if is("MAIL") {
            mail(rest, form)
        } else if is("DATA") {
            alone(Self::Data)
        } else if is("BDAT") {
            bdat(rest)
        } else if is("RSET") {
            alone(Self::Rset)
        } else if is("LHLO") {
            Ok(Self::Lhlo(host(rest, form)?))
        } else if is("EHLO") {
            Ok(Self::Ehlo(host(rest, form)?))
        } else if is("HELO") {
            Ok(Self::Helo(host(rest, form)?))
        } else if is("QUIT") {
            alone(Self::Quit)
        } else if is("NOOP") {
            Ok(Self::Noop)
        } else if is("STARTTLS") {
            alone(Self::StartTls)
        } else if is("AUTH") {
            let (mechanism, response) =
                auth::mechanism_and_response(rest).ok_or(CommandError::Syntax(AUTH))?;
            Ok(Self::Auth { mechanism, response })
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
fn host(text: &str, form: Form) -> Result<&str, CommandError> {
    let is_tagged = |literal: &str| {
        form == Form::Lenient || !literal.contains(':') || literal.to_ascii_lowercase().starts_with("[ipv6:")
    };
    let is_host =
        text.len() <= HELLO_BYTES_MAX && path::is_domain(text) && (!text.starts_with('[') || is_tagged(text));
    if is_host { Ok(text) } else { Err(CommandError::Syntax(HELLO)) }
}

/// The text after `FROM:` or `TO:`.
fn after_keyword<'l>(text: &'l str, keyword: &str, form: Form) -> Option<&'l str> {
    let (start, rest) = text.split_at_checked(keyword.len())?;
    let rest = if form == Form::Lenient { rest.trim_start_matches(' ') } else { rest };
    start.eq_ignore_ascii_case(keyword).then_some(rest)
}

fn mail(text: &str, form: Form) -> Result<Command<'_>, CommandError> {
    let wrong = CommandError::Syntax(MAIL);
    let path = after_keyword(text, "FROM:", form).ok_or(wrong)?;
    let (sender, rest) = path::reverse_path(path).ok_or(wrong)?;
    Ok(Command::Mail(sender, parameters::of_mail(parameters::words(rest).ok_or(wrong)?)?))
}

fn rcpt(text: &str, form: Form) -> Result<Command<'_>, CommandError> {
    let wrong = CommandError::Syntax(RCPT);
    let path = after_keyword(text, "TO:", form).ok_or(wrong)?;
    let (recipient, rest) = path::forward_path(path).ok_or(wrong)?;
    Ok(Command::Rcpt(recipient, parameters::of_rcpt(parameters::words(rest).ok_or(wrong)?)?))
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
    use crate::smtp::Body;

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
            Ok(Command::Rcpt(ForwardPath::Mailbox(mailbox), _)) => Some(mailbox.to_string()),
            Ok(Command::Rcpt(ForwardPath::Postmaster, _)) => Some("postmaster".to_owned()),
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
        fn parameters(line: &str) -> Result<MailParameters<'_>, CommandError> {
            match parse(line) {
                Ok(Command::Mail(_, parameters)) => Ok(parameters),
                Ok(_) => unreachable!(),
                Err(error) => Err(error),
            }
        }
        let all = MailParameters {
            size: Some(1_000),
            body: Body::EightBit,
            is_utf8: true,
            ..MailParameters::default()
        };
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
            ("MAIL FROM:<> MT-PRIORITY=3", CommandError::Parameter),
            ("MAIL FROM:<>SIZE=1", CommandError::Syntax(MAIL)),
        ] {
            assert_eq!(parameters(line), Err(expected), "{line}");
        }
        assert_eq!(parse("RCPT TO:<a@b.example> SIZE=1"), Err(CommandError::Parameter));
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
            assert_eq!(parse(line), Ok(Command::Rcpt(ForwardPath::Postmaster, RcptParameters::default())));
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
    fn sm4_mail_clients_may_write_a_space_before_the_path_and_untagged_ipv6_literals() {
        let lenient = |line: &'static str| Command::parse_lenient(line.as_bytes());
        assert_eq!(lenient("MAIL FROM: <a@b.example> SIZE=1"), parse("MAIL FROM:<a@b.example> SIZE=1"));
        assert_eq!(lenient("RCPT TO:  <a@b.example>"), parse("RCPT TO:<a@b.example>"));
        assert_eq!(lenient("EHLO [::1]"), Ok(Command::Ehlo("[::1]")));
        assert!(lenient("MAIL FROM: a@b.example").is_err());
    }

    #[test]
    fn sub1_auth_names_a_mechanism_and_perhaps_a_response() {
        let auth = |mechanism, response| Ok(Command::Auth { mechanism, response });
        assert_eq!(parse("AUTH LOGIN"), auth("LOGIN", None));
        assert_eq!(parse("auth scram-sha-256 biwsbj0="), auth("scram-sha-256", Some("biwsbj0=")));
        assert_eq!(parse("AUTH PLAIN ="), auth("PLAIN", Some("=")));
        for line in ["AUTH", "AUTH ", "AUTH PLAIN a b", "AUTH PLA+IN", "AUTH AAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(parse(line), Err(CommandError::Syntax(AUTH)), "{line}");
        }
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
            let parameters = MailParameters { size, body: Body::EightBit, is_utf8, ..MailParameters::default() };
            prop_assert_eq!(parse(&line), Ok(Command::Mail(Some(mailbox), parameters)));
            let line = format!("RCPT TO:<@route.example:{mailbox}>");
            prop_assert_eq!(parse(&line), Ok(Command::Rcpt(ForwardPath::Mailbox(mailbox), RcptParameters::default())));
        }

        #[test]
        fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            super::super::properties::command(&line);
        }

        #[test]
        fn no_text_behind_a_command_panics(
            word in "(MAIL FROM:|RCPT TO:|EHLO |BDAT |AUTH )<?", rest in "\\PC{0,60}"
        ) {
            super::super::properties::command(format!("{word}{rest}").as_bytes());
        }
    }
}
