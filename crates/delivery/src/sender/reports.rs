//! Reports about recipients (RFC 3464): who gets them, and in which commit.

use bytes::Bytes;
use restante_core::Error;
use restante_mail::queue::{
    Ending, NewMessage, NewRecipient, Notify, Outcome, QueuedMessage, Source, SourceKind,
};
use ring::digest::{Context, SHA256};
use tracing::warn;

use super::{
    Shared,
    attempt::{Decision, End},
};
use crate::{NoticeAbout, NoticeKind, NoticeRecipient, Outgoing, metrics::NOTICE_KINDS, schedule};

/// The kind of report for an ending.
pub(super) fn kind_of(decision: &Decision<'_>, is_local: bool) -> NoticeKind {
    match decision.end {
        End::Delivered if decision.is_forwarded => NoticeKind::Expanded,
        End::Delivered => NoticeKind::Delivered { is_local },
        End::Failed | End::Expired => NoticeKind::Failed,
        End::Postponed { .. } => NoticeKind::Delayed,
    }
}

/// The report about those recipients of a message that are to be reported, stored and ready to be queued; `None` if there is
/// nothing to report.
///
/// # Errors
/// Those of storing it.
pub(super) async fn notice(
    shared: &Shared,
    kind: NoticeKind,
    decisions: &[&Decision<'_>],
    original: Option<&Outgoing>,
    now: u64,
) -> Result<Option<NewMessage>, Error> {
    let reported: Vec<&Decision<'_>> =
        decisions.iter().filter(|decision| decision.is_reported).copied().collect();
    let Some(first) = reported.first() else { return Ok(None) };
    let message = &first.claim.recipient.message;
    // RFC 5321 §6.1: no report about a message without a sender, which may be a report itself.
    if message.sender.is_empty() {
        return Ok(None);
    }
    let recipients = reported.iter().map(|decision| about(shared, kind, decision, now)).collect();
    let label = match kind {
        NoticeKind::Failed => NOTICE_KINDS[0],
        NoticeKind::Delayed => NOTICE_KINDS[1],
        NoticeKind::Delivered { .. } | NoticeKind::Expanded => NOTICE_KINDS[2],
    };
    let key = key(label, message, &reported);
    let about = NoticeAbout {
        key,
        kind,
        sender: message.sender.clone(),
        envelope_id: message.envelope_id.clone(),
        returned: message.returned,
        arrived: message.queued,
        now,
        original: original.map_or_else(Bytes::new, |original| original.bytes.clone()),
        transmission: original.map_or(message.transmission, |original| original.transmission),
        recipients,
    };
    let (bytes, transmission) = shared.parts.notices.compose(&about);
    let size = bytes.len() as u64;
    let put = shared.parts.blobs.put(&mut Bytes::from(bytes)).await?;
    shared.parts.metrics.count_notice(label);
    let notify = Notify { on_success: false, on_failure: false, on_delay: false };
    Ok(Some(NewMessage {
        source: Source {
            kind: SourceKind::Report,
            account: message.source.account,
            record: message.source.record,
            key,
        },
        blob: put.id,
        size,
        sender: String::new(),
        envelope_id: None,
        returned: None,
        transmission,
        due: now,
        recipients: vec![NewRecipient { address: message.sender.clone(), notify, original: None }],
    }))
}

fn about(shared: &Shared, kind: NoticeKind, decision: &Decision<'_>, now: u64) -> NoticeRecipient {
    let recipient = &decision.claim.recipient;
    let until = schedule::expires(&shared.config, recipient);
    NoticeRecipient {
        address: recipient.recipient.address.clone(),
        original: recipient.recipient.original.clone(),
        reply: decision.reply.clone(),
        expired: decision.expired.clone(),
        attempts: recipient.attempts,
        last_attempt: now,
        will_retry_until: (kind == NoticeKind::Delayed).then_some(until),
    }
}

/// The key of a report: derived from the message, the kind, and the recipients.
fn key(label: &str, message: &QueuedMessage, decisions: &[&Decision<'_>]) -> [u8; 32] {
    let mut hash = Context::new(&SHA256);
    hash.update(b"report\0");
    hash.update(label.as_bytes());
    hash.update(&message.source.key);
    for decision in decisions {
        let id = decision.claim.recipient.id;
        hash.update(&id.account.0.to_be_bytes());
        hash.update(&id.record.0.to_be_bytes());
    }
    let digest = hash.finish();
    let mut key = [0; 32];
    for (to, from) in key.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    key
}

/// The outcome to record for recipients with the same kind of report. If their report could not be stored, a failed recipient is
/// tried again later, so that its sender gets a report; a delivery is recorded without its report, so that the mail is not sent
/// twice.
pub(super) fn outcome(
    shared: &Shared,
    decisions: &[&Decision<'_>],
    notice: Result<Option<NewMessage>, Error>,
    now: u64,
) -> Outcome {
    let (notice, is_stored) = match notice {
        Ok(notice) => (notice, true),
        Err(error) => {
            warn!(%error, "a report about outgoing mail can't be stored");
            (None, false)
        }
    };
    let endings = decisions.iter().map(|decision| {
        let ending = match decision.end {
            End::Delivered => Ending::Delivered,
            End::Failed | End::Expired if decision.is_reported && !is_stored => {
                let wait = schedule::return_wait(&shared.config, &decision.claim.recipient);
                Ending::Returned { due: now.saturating_add(wait) }
            }
            End::Failed | End::Expired => Ending::Dropped,
            End::Postponed { due } => Ending::Postponed {
                due,
                reply: decision.reply.clone(),
                is_delay_reported: decision.claim.recipient.is_delay_reported
                    || (decision.is_reported && is_stored),
            },
        };
        (decision.claim.lease, ending)
    });
    Outcome { endings: endings.collect(), notice }
}
