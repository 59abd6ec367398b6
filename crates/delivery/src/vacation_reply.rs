//! Writes a vacation reply (RFC 3834 §3).

use restante_mail::VacationResponse;
use restante_mail_wire::{
    compose::{ComposeError, Content, FieldValue, Message, Origin, Part},
    header::{Address, Date, Header, as_message_ids, as_text},
};

/// The subject when the message has none.
const SUBJECT: &str = "Automatic reply";
/// The text when the response has none (RFC 8621 §8).
const TEXT: &str = "I can't read my mail at the moment, and will answer when I am back.";
/// The most characters of the subject that are quoted.
const SUBJECT_CHARS_MAX: usize = 200;
/// The message ids of References that are kept: the first, and the last ones.
const REFERENCES_MAX: usize = 20;

/// What a reply takes from the message that it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    subject: Option<String>,
    message_id: Option<String>,
    references: Vec<String>,
}

impl Answered {
    pub(crate) fn of(header: &Header<'_>) -> Self {
        let ids = |name: &str| {
            let field = header.last(name);
            field.and_then(|field| as_message_ids(field.value)).unwrap_or_default()
        };
        let message_id = ids("Message-ID").into_iter().next();
        let mut references = ids("References");
        if references.is_empty() {
            references = ids("In-Reply-To"); // RFC 5322 §3.6.4
            references.truncate(1);
        }
        if references.len() > REFERENCES_MAX {
            references.drain(1..=references.len() - REFERENCES_MAX);
        }
        let subject = header.last("Subject").map(|field| as_text(field.value));
        let subject = subject.map(|subject| subject.trim().chars().take(SUBJECT_CHARS_MAX).collect());
        Self { subject: subject.filter(|subject: &String| !subject.is_empty()), message_id, references }
    }
}

/// A reply to write.
pub(crate) struct Reply<'r> {
    pub(crate) response: &'r VacationResponse,
    /// The address of the account.
    pub(crate) from: &'r str,
    /// Its name.
    pub(crate) name: Option<String>,
    /// The domain of the Message-ID.
    pub(crate) host: &'r str,
    pub(crate) to: &'r str,
    /// In seconds since 1970.
    pub(crate) now: i64,
    /// The key of the reply.
    pub(crate) key: [u8; 32],
}

impl Reply<'_> {
    /// The octets of the reply.
    ///
    /// # Errors
    /// When a value of the response or of the message can't be written.
    pub(crate) fn write(self, answered: &Answered) -> Result<Vec<u8>, ComposeError> {
        let subject = match (&self.response.subject, &answered.subject) {
            (Some(subject), _) => subject.clone(),
            // RFC 3834 §3.1.5.
            (None, Some(subject)) => format!("Auto: {subject}"),
            (None, None) => SUBJECT.to_owned(),
        };
        let address =
            |name, email: &str| FieldValue::Addresses(vec![Address { name, email: email.to_owned() }]);
        let references = answered.references.iter().chain(&answered.message_id).cloned().collect();
        let in_reply_to = answered.message_id.iter().cloned().collect();
        let fields = vec![
            ("From", address(self.name, self.from)),
            ("To", address(None, self.to)),
            ("Subject", FieldValue::Text(subject)),
            ("In-Reply-To", FieldValue::MessageIds(in_reply_to)),
            ("References", FieldValue::MessageIds(references)),
            ("Auto-Submitted", FieldValue::Raw(" auto-replied".to_owned())),
        ];
        let text = |media_type: &str, text: &str| Part::new(media_type, Content::Text(text.into()));
        let html = self.response.html_body.as_ref().map(|html| text("text/html", html));
        let plain = self.response.text_body.as_ref().map(|plain| text("text/plain", plain));
        let plain = match (&html, plain) {
            (None, None) => Some(text("text/plain", TEXT)),
            (_, plain) => plain,
        };
        let message = Message {
            fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            root: Part::assemble(plain, html, Vec::new()),
        };
        let mut seed = [0; 16];
        seed.iter_mut().zip(self.key).for_each(|(byte, of_key)| *byte = of_key);
        let date = Date { seconds: self.now, offset_minutes: 0 };
        message.write(&Origin { seed, date, host: self.host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(response: &VacationResponse, header: &str) -> String {
        let reply = Reply {
            response,
            from: "anna@example.org",
            name: Some("Anna".to_owned()),
            host: "example.org",
            to: "bob@example.net",
            now: 1_800_000_000,
            key: [7; 32],
        };
        let answered = Answered::of(&Header::parse(header.as_bytes()));
        String::from_utf8(reply.write(&answered).unwrap()).unwrap()
    }

    #[test]
    fn vac4_a_reply_names_the_message_that_it_answers() {
        let header = "Subject: Hello\r\nMessage-ID: <b@example.net>\r\nReferences: <a@example.net>\r\n\r\n";
        let text = written(&VacationResponse::default(), header);
        for line in [
            "From: Anna <anna@example.org>\r\n",
            "To: bob@example.net\r\n",
            "Subject: Auto: Hello\r\n",
            "In-Reply-To: <b@example.net>\r\n",
            "References: <a@example.net> <b@example.net>\r\n",
            "Auto-Submitted: auto-replied\r\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(text.contains("I can't read my mail"));
        assert_eq!(text, written(&VacationResponse::default(), header), "the same reply is the same bytes");
    }

    #[test]
    fn vac4_the_subject_and_the_texts_are_those_of_the_response() {
        let response = VacationResponse {
            subject: Some("Fort".to_owned()),
            text_body: Some("bis Montag".to_owned()),
            html_body: Some("<b>bis Montag</b>".to_owned()),
            ..VacationResponse::default()
        };
        let text = written(&response, "Subject: Hello\r\n\r\n");
        assert!(text.contains("Subject: Fort\r\n") && !text.contains("Hello"), "{text}");
        assert!(text.contains("multipart/alternative") && text.contains("text/html"), "{text}");
        assert!(!text.contains("In-Reply-To") && !text.contains("References"), "{text}");
        let none = written(&VacationResponse::default(), "From: b\r\n\r\n");
        assert!(none.contains("Subject: Automatic reply\r\n"), "{none}");
    }

    #[test]
    fn vac4_references_of_a_long_thread_stay_bounded() {
        let ids: Vec<String> = (0..100).map(|n| format!("<{n}@example.net>")).collect();
        let header = format!("Message-ID: <last@example.net>\r\nReferences: {}\r\n\r\n", ids.join("\r\n "));
        let answered = Answered::of(&Header::parse(header.as_bytes()));
        assert_eq!(answered.references.len(), REFERENCES_MAX);
        assert_eq!(
            (answered.references[0].as_str(), answered.references[1].as_str()),
            ("0@example.net", "81@example.net")
        );
    }
}
