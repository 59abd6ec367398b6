//! Sends vacation replies (RFC 3834, RFC 8621 §8).

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::{BlobId, Error, ErrorKind};
use restante_directory::{Directory, Domain, EmailAddress};
use restante_follow::{Handler, HandlerError};
use restante_mail::{
    EmailState, Mail, MailError, Role, VacationResponse, email, keyword,
    queue::{NewMessage, NewRecipient, Notify, Queue, Source, SourceKind, Transmission},
    row::Row,
};
use restante_mail_wire::header::Header;
use restante_records::{AccountId, Changes, Get, Record, RecordId};
use sha2::{Digest, Sha256};

use crate::{
    auto_reply::{self, Received},
    follower_metrics::{FollowerMetrics, VacationResult},
    vacation_reply::{Answered, Reply},
};

/// A sender gets at most one reply in so many seconds (RFC 3834 §2).
const AGAIN_SECONDS: i64 = 7 * 86_400;
/// An email that was received longer ago is not answered: it is read again when the follower is rebuilt, or was lagging for so long.
const AGE_SECONDS_MAX: i64 = 86_400;
/// Records that are read at once.
const PAGE: usize = 64;

/// Follows new emails, and queues a reply to those that get one: at most one for each sender in 7 days, which records keep track of.
pub struct VacationFollower {
    mail: Mail,
    queue: Queue,
    directory: Directory,
    metrics: FollowerMetrics,
}

/// An account whose response is in force.
struct Answering {
    account: AccountId,
    response: VacationResponse,
    address: EmailAddress,
    /// All addresses of the account.
    addresses: Vec<String>,
    separator: Option<char>,
    junk: Option<RecordId>,
}

/// A message that may get a reply.
struct Candidate {
    id: RecordId,
    /// In seconds since 1970.
    received: i64,
    header: Vec<u8>,
    is_junk: bool,
}

impl VacationFollower {
    /// The name of its checkpoint.
    pub const NAME: &'static str = "vacation";

    /// A handler that answers emails of this mail through this queue.
    pub fn new(mail: Mail, queue: Queue, directory: Directory, metrics: FollowerMetrics) -> Self {
        Self { mail, queue, directory, metrics }
    }

    async fn answer_all(&self, account: AccountId, ids: Vec<RecordId>) -> Result<(), Error> {
        let (response, _) = self.mail.vacation(account).await?;
        if !response.is_enabled {
            return Ok(());
        }
        let Some(answering) = self.answering(account, response).await? else { return Ok(()) };
        for ids in ids.chunks(PAGE) {
            let get = Get::whole(email::KIND, ids.to_vec());
            for record in self.mail.records().get(account, &get).await?.into_iter().flatten() {
                if let Some(candidate) = self.candidate(&answering, record).await? {
                    let result = self.answer(&answering, &candidate).await?;
                    self.metrics.count_vacation(result);
                }
            }
        }
        Ok(())
    }

    /// The account; `None` when it is gone.
    async fn answering(
        &self,
        account: AccountId,
        response: VacationResponse,
    ) -> Result<Option<Answering>, Error> {
        let addresses = self.directory.addresses_of(account).await?;
        let Some(address) = addresses.first().cloned() else { return Ok(None) };
        let domain = self.directory.domain(address.domain()).await?;
        let mailboxes = self.mail.mailboxes(account).await.map_err(MailError::into_store)?.0;
        let junk = mailboxes.iter().find(|mailbox| mailbox.role == Some(Role::Junk));
        Ok(Some(Answering {
            account,
            response,
            address,
            addresses: addresses.iter().map(ToString::to_string).collect(),
            separator: domain.and_then(|domain| domain.separator),
            junk: junk.map(|mailbox| mailbox.id),
        }))
    }

    /// The email, if it may get a reply: SMTP or LMTP has delivered it recently, while the response was in force.
    async fn candidate(&self, answering: &Answering, record: Record) -> Result<Option<Candidate>, Error> {
        let has = |property| record.properties.values(property).next().is_some();
        let state = EmailState::of(&record)?;
        let received = i64::try_from(state.received).unwrap_or(i64::MAX);
        let is_new = received > self.mail.clock().now().seconds().saturating_sub(AGE_SECONDS_MAX);
        let is_delivery = has(email::DELIVERY) && !has(email::ORIGIN);
        if !is_delivery || !is_new || !answering.response.is_in_force(received) {
            return Ok(None);
        }
        let is_junk_keyword = |number: &u64| keyword::KNOWN.contains(&(*number, "$junk"));
        let is_in_junk = answering.junk.is_some_and(|junk| state.mailboxes.contains(&junk));
        let is_junk = is_in_junk || state.keywords.iter().any(is_junk_keyword);
        let Some(blob) = record.body.blobs.first().copied() else { return Ok(None) };
        let id = record.id;
        let header_bytes = Row::read(record.body.bytes)?.header_bytes();
        let header = match self.header(blob, header_bytes.into()).await {
            Ok(header) => header,
            // The email was destroyed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Candidate { id, received, header, is_junk }))
    }

    async fn header(&self, blob: BlobId, bytes: u64) -> Result<Vec<u8>, Error> {
        let mut source = self.mail.blobs().read(blob, 0..bytes).await?;
        let mut header = Vec::new();
        while let Some(chunk) = source.next().await? {
            header.extend_from_slice(&chunk);
        }
        Ok(header)
    }

    async fn answer(&self, answering: &Answering, candidate: &Candidate) -> Result<VacationResult, Error> {
        let account = answering.account;
        let received = Received {
            header: &candidate.header,
            addresses: &answering.addresses,
            separator: answering.separator,
            is_junk: candidate.is_junk,
        };
        let Some(sender) = auto_reply::decide(&received).ok().and_then(|sender| smtp_address(&sender)) else {
            return Ok(VacationResult::NotAnswered);
        };
        // By the time of the email, so that the same emails get the same replies when they are read again.
        let since = candidate.received.saturating_sub(AGAIN_SECONDS - 1);
        if self.mail.was_answered(account, &sender, since).await? {
            return Ok(VacationResult::Repeated);
        }
        let message = self.message(answering, candidate, &sender).await?;
        let Some(message) = message else { return Ok(VacationResult::NotAnswered) };
        // The queue recognizes the reply by its key: if the process ends before the sender is recorded, the reply is not sent again.
        self.queue.add(message).await?;
        self.mail.note_answered(account, &sender, candidate.received, since).await?;
        Ok(VacationResult::Replied)
    }

    /// The reply, whose bytes are stored; `None` when it can't be written.
    async fn message(
        &self,
        answering: &Answering,
        candidate: &Candidate,
        sender: &str,
    ) -> Result<Option<NewMessage>, Error> {
        let now = self.mail.clock().now().seconds();
        let account = answering.account;
        let key = key(account, candidate.id);
        let (identities, _) = self.mail.identities(account, &answering.addresses).await?;
        let from = answering.address.to_string();
        let identity = identities.into_iter().find(|it| it.email == from && !it.may_delete);
        let reply = Reply {
            response: &answering.response,
            from: &from,
            name: identity.map(|identity| identity.name).filter(|name| !name.is_empty()),
            host: answering.address.domain().as_str(),
            to: sender,
            now,
            key,
        };
        let bytes = match reply.write(&Answered::of(&Header::parse(&candidate.header))) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => {
                tracing::warn!(account = account.0, %error, "a vacation reply can't be written");
                return Ok(None);
            }
        };
        let size = bytes.len() as u64;
        let is_ascii = bytes.is_ascii();
        let put = self.mail.blobs().put(&mut bytes.clone()).await?;
        let source = Source { kind: SourceKind::Vacation, account: Some(account), record: candidate.id, key };
        let recipient =
            NewRecipient { address: sender.to_owned(), notify: Notify::default(), original: None };
        Ok(Some(NewMessage {
            source,
            blob: put.id,
            size,
            sender: String::new(), // RFC 3834 §3.3: no reply to the reply
            envelope_id: None,
            returned: None,
            transmission: Transmission { is_8bit: !is_ascii, is_utf8: !is_ascii || !sender.is_ascii() },
            due: u64::try_from(now).unwrap_or_default(),
            recipients: vec![recipient],
        }))
    }
}

#[async_trait]
impl Handler for VacationFollower {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        let emails = changes.created.iter().filter(|created| created.kind == email::KIND);
        let emails: Vec<RecordId> = emails.map(|created| created.id).collect();
        if emails.is_empty() {
            return Ok(());
        }
        self.answer_all(account, emails).await.map_err(HandlerError::new)
    }

    async fn reset(&mut self, _account: AccountId) -> Result<(), HandlerError> {
        Ok(()) // answered emails stay answered
    }
}

/// The key of the reply to an email in the queue.
fn key(account: AccountId, email: RecordId) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"vacation");
    hash.update(account.0.to_be_bytes());
    hash.update(email.0.to_be_bytes());
    hash.finalize().into()
}

/// An address as the queue has it, with the domain in ASCII and lowercase; `None` when the domain is invalid.
fn smtp_address(text: &str) -> Option<String> {
    let (local, domain) = text.rsplit_once('@')?;
    let domain: Domain = domain.parse().ok()?;
    Some(format!("{local}@{domain}"))
}
