//! Outgoing mail in the server: the queue, its sender, and the followers that add to it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use async_trait::async_trait;
use prometheus_client::registry::Registry;
use restante_checks::Filter;
use restante_core::{Clock, Error};
use restante_delivery::{
    Attempted, BlobPreparing, FollowerMetrics, LearningFollower, Local, MailSubmissions, NotedOutcome,
    NoticeKind, OutcomeLog, Outgoing, Recipient, RecipientOutcome, ReportNotices, Sender, SenderHealth,
    SenderMetrics, SenderParts, SubmissionFollower, SubmittedMessage, VacationFollower,
    dkim::DomainSigner,
    route::OwnHost,
    srs::Srs,
    transport::{NoPolicies, RemoteMetrics, RemoteParts, SmtpRemote, StsPolicies, TcpNetwork, TlsPolicies},
};
use restante_directory::{Directory, EmailAddress, random_secret};
use restante_follow::{Follower, Settings};
use restante_mail::{
    Mail,
    queue::{Queue, Reply, SourceKind},
    sending::{SendingLimits, SendingMetrics},
};
use restante_net::dns::{Resolver, SystemResolver};
use restante_operate::RoleCheck;
use restante_queue::Work;
use restante_smtp::{
    DeliveryEntry, ForwardSender, Forwards, Journal, LocalDelivery, MailDelivery, NotedReply, Outcome,
    QueueOutbox, SubmissionParts, WithPostmasters, queued_id,
};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::{
    commands,
    door::{has_jmap, has_smtp},
    key_file::KeyFileCheck,
    stores::Stores,
};
use crate::{config::Config, signals::Stop};

/// The name of the secret for rewriting senders of forwarded mail.
const SRS_SECRET: &str = "srs";
/// How long commits are collected before their submissions are queued, and before their emails get vacation replies. Each read of the
/// feed stores a position, which delays deliveries.
const SUBMISSIONS_GATHERED: Duration = Duration::from_millis(100);
const VACATIONS_GATHERED: Duration = Duration::from_secs(1);
/// How long commits are collected before the filter learns. A message that is moved within this time after its delivery counts as
/// placed by the server.
const LESSONS_GATHERED: Duration = Duration::from_secs(1);
const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// Why a report that was stored is stored again, which does not create a second one.
const NOT_NAMED: &str = "the report can't be named in its submission now";

/// The metrics of outgoing mail.
#[derive(Clone, Default)]
pub(super) struct SendingMetricsOfAll {
    limits: SendingMetrics,
    sender: SenderMetrics,
    remote: RemoteMetrics,
    followers: FollowerMetrics,
}

impl SendingMetricsOfAll {
    pub(super) fn register(&self, registry: &mut Registry) {
        self.limits.register(registry);
        self.sender.register(registry);
        self.remote.register(registry);
        self.followers.register(registry);
    }
}

/// The parts that send mail.
pub(super) struct Sending {
    pub(super) queue: Queue,
    pub(super) limits: SendingLimits,
    forwards: Forwards,
    local: LocalDelivery,
    outbox: Arc<QueueOutbox>,
    /// Where the outcomes of outgoing mail are noted, unless the settings disable it.
    pub(super) outcomes: Option<Arc<dyn OutcomeLog>>,
    health: SenderHealth,
    key_file: KeyFileCheck,
    clock: Arc<dyn Clock>,
    /// Until they are started.
    tasks: Option<Tasks>,
}

/// The tasks that run while the server runs.
struct Tasks {
    sender: Sender,
    submissions: Follower<SubmissionFollower>,
    vacations: Follower<VacationFollower>,
    /// Only if a filter learns.
    learning: Option<Follower<LearningFollower>>,
}

/// The stores for sending mail.
pub(super) struct SendingParts<'p> {
    pub(super) config: &'p Config,
    pub(super) stores: &'p Stores,
    pub(super) directory: &'p Directory,
    pub(super) mail: &'p Mail,
    pub(super) journal: Option<Arc<dyn Journal>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) follow: &'p restante_follow::Metrics,
    pub(super) metrics: &'p SendingMetricsOfAll,
    /// Distributes work between servers, if there is a broker.
    pub(super) work: Option<Arc<dyn Work>>,
    /// The filter that learns from users, if there is one.
    pub(super) learning: Option<Arc<dyn Filter>>,
}

/// The queue in these records. A restored store sends nothing until an operator releases it.
pub(super) fn queue(records: &restante_records::Opened, clock: Arc<dyn Clock>) -> Queue {
    Queue::new(records.records.clone(), clock).restored(records.upkeep.restores())
}

impl Sending {
    /// Opens everything. Nothing is sent until [`Sending::spawn`].
    pub(super) async fn open(parts: SendingParts<'_>) -> anyhow::Result<Self> {
        let SendingParts { config, stores, directory, mail, journal, clock, follow, metrics, work, learning } =
            parts;
        let records = &stores.records;
        let queue = queue(records, clock.clone());
        let (rates, counted) = (config.submission.rates(), metrics.limits.clone());
        let limits = SendingLimits::new(records.records.clone(), clock.clone(), rates, counted);
        let outbox = Arc::new(QueueOutbox::new(mail.blobs().clone(), queue.clone()));
        let mut secret = random_secret().context("can't make a secret")?.as_bytes().to_vec();
        // A server that receives no mail forwards none: its records stay unchanged.
        if has_jmap(config) || has_smtp(config) {
            let kept = directory.server_secret(SRS_SECRET, &secret).await;
            secret = kept.context("can't read the secret of forwards")?.to_vec();
        }
        let srs = Arc::new(ForwardedBySrs(Srs::new(&secret, clock.clone())));
        let forwards = Forwards { outbox: outbox.clone(), sender: srs };
        let local = LocalDelivery {
            recipients: Arc::new(WithPostmasters::new(Arc::new(directory.clone()), &config.smtp)),
            delivery: Arc::new(MailDelivery::new(mail.clone(), &config.smtp)),
            forwards: Some(forwards.clone()),
            clock: clock.clone(),
            quota_is_permanent: config.smtp.quota_is_permanent,
            hostname: config.smtp.hostname.clone(),
            journal: journal.clone(),
        };
        let outcomes = journal.map(|journal| outcomes(journal, clock.clone()));
        let parts = SenderParts {
            queue: queue.clone(),
            blobs: mail.blobs().clone(),
            remote: Arc::new(remote(config, stores, directory, clock.clone(), metrics)?),
            local: Arc::new(ServerLocal { local: local.clone(), mail: mail.clone() }),
            submissions: Arc::new(MailSubmissions::new(mail.clone())),
            preparing: Arc::new(BlobPreparing::new(mail.blobs().clone())),
            notices: Arc::new(ReportNotices::new(&config.smtp.hostname)),
            work,
            outcomes: outcomes.clone(),
            metrics: metrics.sender.clone(),
        };
        let sender = Sender::new(parts, config.delivery.clone());
        let submissions =
            SubmissionFollower::new(mail.clone(), queue.clone(), outcomes.clone(), metrics.followers.clone());
        let named = Settings { gather: SUBMISSIONS_GATHERED, ..Settings::new(SubmissionFollower::NAME) };
        let submissions = Follower::new(named, records, submissions, clock.clone(), follow)?;
        let vacations =
            VacationFollower::new(mail.clone(), queue.clone(), directory.clone(), metrics.followers.clone());
        let named = Settings { gather: VACATIONS_GATHERED, ..Settings::new(VacationFollower::NAME) };
        let vacations = Follower::new(named, records, vacations, clock.clone(), follow)?;
        let health = sender.health();
        let learning = match learning {
            Some(filter) => {
                let (per_hour_max, metrics) =
                    (config.checks.filter.learned_per_hour_max, metrics.followers.clone());
                let learning = LearningFollower::new(mail.clone(), filter, per_hour_max, metrics);
                let named = Settings { gather: LESSONS_GATHERED, ..Settings::new(LearningFollower::NAME) };
                Some(Follower::new(named, records, learning, clock.clone(), follow)?)
            }
            None => None,
        };
        let tasks = Some(Tasks { sender, submissions, vacations, learning });
        let key_file = stores.key_file.clone();
        Ok(Self { queue, limits, forwards, local, outbox, outcomes, health, key_file, clock, tasks })
    }

    /// Sends mail until the server stops.
    pub(super) fn spawn(&mut self, stop: &Stop) -> Vec<JoinHandle<()>> {
        let Some(Tasks { sender, submissions, vacations, learning }) = self.tasks.take() else {
            return Vec::new();
        };
        let mut tasks = vec![
            tokio::spawn(sender.run(stop.clone().requested())),
            tokio::spawn(run(submissions, stop.clone())),
            tokio::spawn(run(vacations, stop.clone())),
        ];
        tasks.extend(learning.map(|learning| tokio::spawn(run(learning, stop.clone()))));
        tasks
    }

    /// Whether mail can be sent.
    pub(super) fn health(&self) -> RoleCheck {
        let (health, key_file, clock) = (self.health.clone(), self.key_file.clone(), self.clock.clone());
        let now = move || u64::try_from(clock.now().0 / NANOS_PER_SECOND).unwrap_or(0);
        let problem = move || key_file.problem().or_else(|| health.problem(now()));
        RoleCheck { name: "delivery", problem: Arc::new(problem) }
    }

    /// Delivers mail on this server, like the queue.
    pub(super) fn local(&self) -> LocalDelivery {
        self.local.clone()
    }

    pub(super) fn forwards(&self) -> Forwards {
        self.forwards.clone()
    }

    /// The dependencies of SMTP submission.
    pub(super) fn submission(&self, config: &Config, directory: &Directory) -> SubmissionParts {
        SubmissionParts {
            config: config.submission.clone(),
            directory: directory.clone(),
            outbox: self.outbox.clone(),
            limits: self.limits.clone(),
        }
    }
}

async fn run<H: restante_follow::Handler>(follower: Follower<H>, stop: Stop) {
    if let Err(error) = follower.run(stop.requested()).await {
        warn!(%error, "a follower of mail could not save its position: it repeats some work at the next start");
    }
}

/// Delivery to other servers, as the settings configure it.
fn remote(
    config: &Config,
    stores: &Stores,
    directory: &Directory,
    clock: Arc<dyn Clock>,
    metrics: &SendingMetricsOfAll,
) -> anyhow::Result<SmtpRemote> {
    let settings = &config.delivery.remote;
    let resolver = SystemResolver::new(&settings.resolver()).context("can't ask the DNS")?;
    let resolver: Arc<dyn Resolver> = Arc::new(resolver);
    let network = Arc::new(TcpNetwork);
    let policies: Arc<dyn TlsPolicies> = match settings.mta_sts {
        true => {
            let policies = StsPolicies::new(settings, resolver.clone(), network.clone(), clock);
            Arc::new(policies.with_folder(&config.server.data_dir))
        }
        false => Arc::new(NoPolicies),
    };
    let keys = commands::directory::dkim_keys(&stores.records, config, directory.clone());
    let parts = RemoteParts {
        resolver,
        network,
        policies,
        signer: Arc::new(DomainSigner::new(keys).sealing(&config.smtp.hostname)),
        own: OwnHost {
            names: vec![config.smtp.hostname.to_lowercase()],
            listeners: config.smtp.listen.clone(),
        },
        seed: u64::from(std::process::id()),
        metrics: metrics.remote.clone(),
    };
    SmtpRemote::new(settings, parts).context("can't send to other servers")
}

/// Rewrites senders of forwarded mail by SRS, in the domain of the alias.
struct ForwardedBySrs(Srs);

impl ForwardSender for ForwardedBySrs {
    fn rewrite(&self, sender: &str, alias: &EmailAddress) -> String {
        self.0.rewrite(sender, alias.domain().as_str())
    }

    fn original(&self, address: &str) -> Option<String> {
        let (local, _) = address.rsplit_once('@')?;
        self.0.restore(local)
    }
}

/// The accounts of this server.
struct ServerLocal {
    local: LocalDelivery,
    mail: Mail,
}

#[async_trait]
impl Local for ServerLocal {
    async fn is_local(&self, domain: &str) -> Result<bool, Error> {
        self.local.is_local(domain).await
    }

    async fn deliver(&self, message: &Outgoing, recipient: &Recipient) -> Attempted {
        let (attempted, placed) = self.local.deliver(message, recipient).await;
        // The submission refers to its report, including one that was stored before a crash.
        if message.source == SourceKind::Report && message.record.0 != 0 {
            for (account, email) in
                placed.into_iter().filter(|(account, _)| Some(*account) == message.account)
            {
                let noted = self.mail.add_submission_report(account, message.record, email).await;
                if let Err(error) = noted {
                    debug!(%error, "a report is not named in its submission yet");
                    return Attempted { reply: Reply::own(451, "4.3.0", NOT_NAMED), ..attempted };
                }
            }
        }
        attempted
    }
}

/// Records the outcomes of outgoing mail in the journal of deliveries.
pub(super) fn outcomes(journal: Arc<dyn Journal>, clock: Arc<dyn Clock>) -> Arc<dyn OutcomeLog> {
    Arc::new(JournalOutcomes { journal, clock })
}

struct JournalOutcomes {
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
}

impl OutcomeLog for JournalOutcomes {
    fn note(&self, noted: NotedOutcome<'_>) {
        let (reply, outcome) = match noted.outcome {
            // The accounts that receive it are recorded where it is stored.
            RecipientOutcome::Delivered(_) if noted.is_local => return,
            RecipientOutcome::Delivered(reply) => (Some(reply), Outcome::Sent(noted_reply(reply))),
            RecipientOutcome::Postponed(reply) => (Some(reply), Outcome::Postponed(noted_reply(reply))),
            RecipientOutcome::Failed(reply) => (Some(reply), Outcome::Failed(noted_reply(reply))),
            RecipientOutcome::Reported { kind, report } => {
                (None, Outcome::Reported(report_reply(kind, report)))
            }
            RecipientOutcome::Dropped { by } => (None, Outcome::Dropped(by.to_owned().into())),
        };
        let message = noted.message;
        // A report belongs to the account that sent the message it is about.
        let address = if message.sender.is_empty() { noted.recipient } else { &message.sender };
        self.journal.note(DeliveryEntry {
            time: self.clock.now(),
            protocol: None,
            is_tls: false,
            peer: None,
            hello: reply.and_then(|reply| reply.from.clone()).unwrap_or_default(),
            sender: message.sender.clone(),
            recipient: noted.recipient.to_owned(),
            account: message.source.account.map(|account| (account, address.to_owned())),
            id: queued_id(&message.source.key),
            message_id: noted.message_id.map(str::to_owned),
            bytes: message.size,
            outcome,
        });
    }

    fn submitted(&self, submitted: SubmittedMessage<'_>) {
        let SubmittedMessage { message, message_id, refused } = submitted;
        let outcome = match refused {
            None => Outcome::Queued,
            Some(reply) => Outcome::Failed(noted_reply(reply)),
        };
        for recipient in &message.recipients {
            self.journal.note(DeliveryEntry {
                time: self.clock.now(),
                protocol: None,
                is_tls: false,
                peer: None,
                hello: String::new(),
                sender: message.sender.clone(),
                recipient: recipient.address.clone(),
                account: message.source.account.map(|account| (account, message.sender.clone())),
                id: queued_id(&message.source.key),
                message_id: message_id.map(str::to_owned),
                bytes: message.size,
                outcome: outcome.clone(),
            });
        }
    }
}

/// What a report states, and its id.
fn report_reply(kind: NoticeKind, report: &[u8; 32]) -> NotedReply {
    let what = match kind {
        NoticeKind::Failed => "failed",
        NoticeKind::Delayed => "delayed",
        NoticeKind::Delivered { .. } => "delivered",
        NoticeKind::Expanded => "expanded",
    };
    let reason = format!("{what}, report {}", queued_id(report));
    NotedReply { code: 0, status: "".into(), reason: reason.into() }
}

fn noted_reply(reply: &Reply) -> NotedReply {
    NotedReply { code: reply.code, status: reply.enhanced.clone().into(), reason: reply.text.clone().into() }
}

#[cfg(test)]
mod tests {
    use restante_core::{ManualClock, Timestamp};

    use super::*;

    #[test]
    fn fwd2_senders_are_rewritten_by_srs_in_the_domain_of_the_alias() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_700_000_000)));
        let srs = ForwardedBySrs(Srs::new(b"secret", clock));
        let rewritten = srs.rewrite("sender@example.com", &"team@example.org".parse().unwrap());
        assert!(rewritten.starts_with("SRS0=") && rewritten.ends_with("@example.org"), "{rewritten}");
        assert_eq!(srs.original(&rewritten).as_deref(), Some("sender@example.com"));
        assert_eq!(srs.original("team@example.org"), None);
        let forged = rewritten.replacen("example.com", "example.net", 1);
        assert_eq!(srs.original(&forged), None);
    }
}
