//! Commands other than those of the envelope and of the message.

use std::io;

use restante_mail_wire::{
    header::Date,
    smtp::{Command, CommandError, Reply},
};

use super::{Client, Hello, Next, auth::MECHANISMS, wire::Wire};
use crate::Protocol;

const OK: Reply<'_> = Reply::new(250, "2.0.0", "ok");
const BYE: Reply<'_> = Reply::new(221, "2.0.0", "bye");
const HELP: Reply<'_> = Reply::new(214, "2.0.0", "see RFC 5321");
const VRFY: Reply<'_> = Reply::new(252, "2.5.1", "send mail to the address, and it is tried");
const EXPN: Reply<'_> = Reply::new(502, "5.5.1", "lists are not shown");
const UNKNOWN: Reply<'_> = Reply::new(500, "5.5.1", "the command is not known");
const CHARACTER: Reply<'_> = Reply::new(500, "5.5.2", "the line has a character that no command has");
const CHUNK_LENGTH: Reply<'_> = Reply::new(501, "5.5.4", "closed: use BDAT <bytes> or BDAT <bytes> LAST");
pub(super) const PARAMETER: Reply<'_> = Reply::new(555, "5.5.4", "a parameter is not known");
const GO_AHEAD: Reply<'_> = Reply::new(220, "2.0.0", "begin the handshake");
const NO_TLS: Reply<'_> = Reply::new(502, "5.5.1", "TLS is not offered");
const TLS_ALREADY: Reply<'_> = Reply::new(503, "5.5.1", "TLS is in use");

impl Client {
    /// Answers a command line.
    pub(super) async fn command(&mut self, wire: &mut Wire, line: &[u8]) -> io::Result<Next> {
        // Mail clients make some mistakes that servers do not make.
        let parsed = match self.protocol.is_submission() {
            true => Command::parse_lenient(line),
            false => Command::parse(line),
        };
        let command = match parsed {
            Ok(command) => command,
            Err(error) => return Ok(self.refuse_line(wire, error)),
        };
        match (command, self.protocol) {
            (Command::Rcpt(path, parameters), _) => self.rcpt(wire, path, parameters).await,
            (Command::Mail(sender, parameters), _) => self.mail(wire, sender, parameters).await,
            (Command::Data, _) => self.data(wire).await,
            (Command::Bdat { bytes, is_last }, _) => self.chunk(wire, bytes, is_last).await,
            (Command::Lhlo(name), Protocol::Lmtp)
            | (Command::Ehlo(name), Protocol::Smtp | Protocol::Submission | Protocol::Submissions) => {
                self.greeted(name, true);
                wire.reply(Reply::new(250, "", &self.extensions()));
                Ok(Next::Command)
            }
            (Command::Helo(name), Protocol::Smtp | Protocol::Submission | Protocol::Submissions) => {
                self.greeted(name, false);
                wire.reply(Reply::new(250, "", &self.server.config.hostname));
                Ok(Next::Command)
            }
            // RFC 2033 §4.1: LMTP has LHLO instead of them, so that the two protocols can't be confused.
            (Command::Ehlo(_) | Command::Helo(_) | Command::Lhlo(_), _) => Ok(self.refuse(wire, UNKNOWN)),
            (Command::Rset, _) => {
                self.transaction = None;
                Ok(replied(wire, OK))
            }
            (Command::Noop, _) => Ok(replied(wire, OK)),
            (Command::Help, _) => Ok(replied(wire, HELP)),
            (Command::Vrfy, _) => Ok(replied(wire, VRFY)),
            (Command::Expn, _) => Ok(self.refuse(wire, EXPN)),
            (Command::StartTls, _) => Ok(self.start_tls(wire)),
            (Command::Auth { mechanism, response }, _) => self.auth(wire, mechanism, response).await,
            (Command::Quit, _) => {
                wire.reply(BYE);
                Ok(Next::Close)
            }
        }
    }

    fn refuse_line(&mut self, wire: &mut Wire, error: CommandError) -> Next {
        let text;
        let reply = match error {
            CommandError::Unknown => UNKNOWN,
            CommandError::Character => CHARACTER,
            CommandError::Parameter => PARAMETER,
            CommandError::Syntax(form) => {
                text = format!("use {form}");
                Reply::new(501, "5.5.4", &text)
            }
            // What follows would be parsed as commands.
            CommandError::ChunkLength => {
                wire.reply(CHUNK_LENGTH);
                return Next::Close;
            }
        };
        self.refuse(wire, reply)
    }

    /// RFC 5321 §4.1.4: a greeting ends a transaction.
    fn greeted(&mut self, name: &str, is_extended: bool) {
        self.transaction = None;
        self.hello = Some(Hello { name: name.to_owned(), is_extended });
    }

    /// The reply to EHLO and LHLO: our name and our extensions.
    fn extensions(&self) -> String {
        let config = &self.server.config;
        let start_tls = if self.offers_tls { "\nSTARTTLS" } else { "" };
        let submission = self.submission_extensions();
        format!(
            "{}\nPIPELINING\nSIZE {}\n8BITMIME\nSMTPUTF8\nENHANCEDSTATUSCODES\nCHUNKING{start_tls}{submission}",
            config.hostname, config.message_bytes_max
        )
    }

    /// The extensions that users are offered in addition. AUTH only where nobody on the network can read a password.
    fn submission_extensions(&self) -> String {
        let Some(submission) = self.server.submission.as_ref().filter(|_| self.protocol.is_submission())
        else {
            return String::new();
        };
        let auth = if self.may_log_in() { format!("\nAUTH {MECHANISMS}") } else { String::new() };
        let hold = match submission.config.hold_seconds_max {
            0 => String::new(),
            seconds => {
                let end = self
                    .server
                    .clock
                    .now()
                    .seconds()
                    .saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX));
                format!("\nFUTURERELEASE {seconds} {}", Date { seconds: end, offset_minutes: 0 })
            }
        };
        format!("{auth}\nDSN{hold}")
    }

    fn start_tls(&mut self, wire: &mut Wire) -> Next {
        if self.is_tls {
            return self.refuse(wire, TLS_ALREADY);
        }
        if !self.offers_tls {
            return self.refuse(wire, NO_TLS);
        }
        wire.reply(GO_AHEAD);
        Next::StartTls
    }
}

fn replied(wire: &mut Wire, reply: Reply<'_>) -> Next {
    wire.reply(reply);
    Next::Command
}
