//! The submissions of JMAP, for the sender of the queue.

use async_trait::async_trait;
use restante_core::Error;
use restante_mail::{Mail, RecipientState, queue::Reply};
use restante_records::{AccountId, RecordId};

use crate::Submissions;

/// The submissions in the records of mail. Cloning shares them.
#[derive(Clone)]
pub struct MailSubmissions {
    mail: Mail,
}

impl MailSubmissions {
    /// The submissions of this mail.
    pub fn new(mail: Mail) -> Self {
        Self { mail }
    }
}

#[async_trait]
impl Submissions for MailSubmissions {
    async fn release(&self, account: AccountId, submission: RecordId) -> Result<bool, Error> {
        self.mail.release_submission(account, submission).await
    }

    async fn report(
        &self,
        account: AccountId,
        submission: RecordId,
        recipient: &str,
        reply: &Reply,
        is_local: bool,
    ) -> Result<(), Error> {
        let state = match () {
            () if reply.is_success() && is_local => RecipientState::Yes,
            // RFC 8621 §7: the other server does not report whether the message has reached a mailbox.
            () if reply.is_success() => RecipientState::Unknown,
            () if reply.is_permanent() => RecipientState::No,
            () => RecipientState::Queued,
        };
        self.mail.report_submission(account, submission, recipient, &smtp_reply(reply), state).await
    }
}

/// A reply in the form of `smtpReply`: code, enhanced code and text, without line breaks.
pub(crate) fn smtp_reply(reply: &Reply) -> String {
    let mut line = reply.code.to_string();
    for part in [reply.enhanced.as_str(), reply.text.as_str()] {
        for word in part.split_whitespace() {
            line.push(' ');
            line.push_str(word);
        }
    }
    line
}
