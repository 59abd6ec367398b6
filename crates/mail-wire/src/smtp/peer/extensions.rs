use super::PeerReply;

/// The extensions that a server offers in its reply to `EHLO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The first word of the reply: the name of the server.
    pub name: String,
    /// `SIZE` (RFC 1870): the most bytes of a message; `None` if it sets no limit.
    pub size_max: Option<u64>,
    /// `SIZE`: whether `MAIL` accepts the size of the message.
    pub has_size: bool,
    /// `PIPELINING` (RFC 2920).
    pub has_pipelining: bool,
    /// `8BITMIME` (RFC 6152).
    pub has_8bitmime: bool,
    /// `SMTPUTF8` (RFC 6531).
    pub has_smtputf8: bool,
    /// `STARTTLS` (RFC 3207).
    pub has_starttls: bool,
    /// `DSN` (RFC 3461).
    pub has_dsn: bool,
    /// `CHUNKING` (RFC 3030).
    pub has_chunking: bool,
    /// `AUTH PLAIN` (RFC 4616).
    pub has_auth_plain: bool,
    /// `AUTH LOGIN`.
    pub has_auth_login: bool,
}

impl Extensions {
    /// Parses the reply to `EHLO`: unknown words are ignored, and repeated words are allowed.
    pub fn of(reply: &PeerReply) -> Self {
        let mut lines = reply.lines.iter();
        let name = lines.next().and_then(|line| line.split(' ').next()).unwrap_or_default();
        let mut extensions = Self { name: name.to_owned(), ..Self::default() };
        for line in lines {
            let mut words = line.split_ascii_whitespace();
            let Some(keyword) = words.next() else { continue };
            extensions.add(&keyword.to_ascii_uppercase(), words);
        }
        extensions
    }

    fn add<'w>(&mut self, keyword: &str, mut words: impl Iterator<Item = &'w str>) {
        match keyword {
            "SIZE" => {
                self.has_size = true;
                // RFC 1870 §4: 0 means no limit.
                self.size_max = words.next().and_then(|max| max.parse().ok()).filter(|max| *max > 0);
            }
            "PIPELINING" => self.has_pipelining = true,
            "8BITMIME" => self.has_8bitmime = true,
            "SMTPUTF8" => self.has_smtputf8 = true,
            "STARTTLS" => self.has_starttls = true,
            "DSN" => self.has_dsn = true,
            "CHUNKING" => self.has_chunking = true,
            "AUTH" => {
                for mechanism in words {
                    self.has_auth_plain |= mechanism.eq_ignore_ascii_case("PLAIN");
                    self.has_auth_login |= mechanism.eq_ignore_ascii_case("LOGIN");
                }
            }
            // The syntax of old programs from before RFC 4954.
            _ if keyword.starts_with("AUTH=") => {
                self.has_auth_plain |= keyword == "AUTH=PLAIN";
                self.has_auth_login |= keyword == "AUTH=LOGIN";
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Extensions {
        let lines = lines.iter().map(ToString::to_string).collect();
        Extensions::of(&PeerReply { code: 250, enhanced: None, lines })
    }

    #[test]
    fn what_a_server_offers_is_read_in_any_case() {
        let all = of(&[
            "mail.example.org at your service",
            "size 35882577",
            "Pipelining",
            "8BITMIME",
            "SMTPUTF8",
            "STARTTLS",
            "DSN",
            "CHUNKING",
            "AUTH CRAM-MD5 plain Login",
            "X-SOMETHING else",
            "",
        ]);
        assert_eq!(all.name, "mail.example.org");
        assert_eq!((all.has_size, all.size_max), (true, Some(35_882_577)));
        assert!(all.has_pipelining && all.has_8bitmime && all.has_smtputf8 && all.has_starttls);
        assert!(all.has_dsn && all.has_chunking && all.has_auth_plain && all.has_auth_login);
    }

    #[test]
    fn the_first_line_is_a_name_and_no_keyword() {
        assert_eq!(of(&["PIPELINING"]), Extensions { name: "PIPELINING".into(), ..Extensions::default() });
        assert_eq!(of(&[]), Extensions::default());
    }

    #[test]
    fn a_size_that_is_no_number_is_no_limit() {
        for line in ["SIZE", "SIZE 0", "SIZE x", "SIZE 99999999999999999999999"] {
            let extensions = of(&["a", line]);
            assert_eq!((extensions.has_size, extensions.size_max), (true, None), "{line}");
        }
        assert!(of(&["a", "AUTH=LOGIN PLAIN"]).has_auth_login);
    }
}
