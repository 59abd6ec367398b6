//! Notes about attempts for operators.

use restante_mail::queue::{Claimed, NewMessage, Reply};

use super::{
    Shared,
    attempt::{Decision, End},
};
use crate::{NotedOutcome, NoticeKind, Outgoing, RecipientOutcome};

/// Notes about one attempt.
pub(super) struct Notes<'a> {
    shared: &'a Shared,
    recipients: &'a [Claimed],
    message_id: Option<String>,
    is_local: bool,
}

impl<'a> Notes<'a> {
    /// Notes about these recipients of one message. Its Message-ID is read from its blob when it was not prepared.
    pub(super) async fn begin(
        shared: &'a Shared,
        recipients: &'a [Claimed],
        outgoing: Option<&Outgoing>,
        is_local: bool,
    ) -> Self {
        let message_id = match (outgoing, recipients.first()) {
            _ if shared.parts.outcomes.is_none() => None,
            (Some(outgoing), _) => outgoing.message_id(),
            (None, Some(claim)) => shared.parts.preparing.message_id(&claim.recipient.message).await,
            (None, None) => None,
        };
        Self { shared, recipients, message_id, is_local }
    }

    /// Notes the outcomes of the attempt.
    pub(super) fn decided(&self, decisions: &[Decision<'_>]) {
        for decision in decisions {
            let reply = decision.shown();
            let outcome = match decision.end {
                End::Delivered => RecipientOutcome::Delivered(&reply),
                End::Postponed { .. } => RecipientOutcome::Postponed(&reply),
                End::Failed | End::Expired => RecipientOutcome::Failed(&reply),
            };
            self.note(decision.claim, outcome);
        }
    }

    /// Notes that the senders of recipients that are to be reported get a report.
    pub(super) fn reported(&self, decisions: &[&Decision<'_>], kind: NoticeKind, report: &NewMessage) {
        let outcome = RecipientOutcome::Reported { kind, report: &report.source.key };
        for decision in decisions.iter().filter(|decision| decision.is_reported) {
            self.note(decision.claim, outcome);
        }
    }

    /// Notes that the message could not be sent for a reason of this server.
    pub(super) fn faulted(&self, why: &str) {
        let reply = Reply::own(451, "4.3.0", why);
        for claim in self.recipients {
            self.note(claim, RecipientOutcome::Postponed(&reply));
        }
    }

    fn note(&self, claim: &Claimed, outcome: RecipientOutcome<'_>) {
        let Some(log) = &self.shared.parts.outcomes else { return };
        let recipient = &claim.recipient;
        log.note(NotedOutcome {
            message: &recipient.message,
            message_id: self.message_id.as_deref(),
            recipient: &recipient.recipient.address,
            is_local: self.is_local,
            outcome,
        });
    }
}
