//! Mail in the server: opens records, blobs, the directory, the search index and the handle of mail, maintains them, and starts the
//! doors JMAP, SMTP and LMTP.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context;
use async_trait::async_trait;
use prometheus_client::registry::Registry;
use restante_backup::{Layout, Store};
use restante_checks::{ChecksMetrics, Filter, SenderChecks};
use restante_delivery::aggregate::AggregateMetrics;
use restante_directory::{Actor, Directory, DirectoryMetrics, Follower};
use restante_http::Guard;
use restante_jmap::{JmapDoor, JmapMetrics, JmapParts, OpenConnections};
use restante_mail::{
    Mail, MailMetrics,
    quarantine::{Quarantine, QuarantineMetrics},
};
use restante_net::{NetMetrics, tls::Certificates};
use restante_operate::{Door, Listener, Offer, RoleCheck, ShowFacts};
use restante_queue::Work;
use restante_smtp::{
    DeliveryJournal, Journal, JournalMetrics, MailDelivery, MailQuarantine, Recipients, SmtpConfig, SmtpDoor,
    SmtpMetrics, WithPostmasters,
};
use tokio::{sync::Notify, task::JoinHandle};
use tracing::{error, info};

use super::{
    MailSpec, blobs,
    checking::{self, Checking},
    commands,
    console::{self, Outgoing, Pages},
    erasing::Eraser,
    journal,
    key_file::KeyFileCheck,
    logins::LoginGuard,
    mismatch::{self, Deferring, Mismatch, MissingBlobs},
    queue::ServerQueue,
    records,
    reporting::{self, ReportingParts},
    search::{self, Indexer},
    sending::{Sending, SendingMetricsOfAll, SendingParts},
    stores::{self, Asked, Stores, StoresMetrics},
    tidying::{TidyMetrics, Tidying},
    usage::{self, UsageMetrics},
};
use crate::{
    backups, certificates,
    config::{Config, Effective},
    doors::{DoorSpec, HeldStore, OpenDoor, Report, Shared, Started},
    signals::Stop,
};

/// The mail settings of a new server.
const SETTINGS: &str = "
[mail]
enabled = true

# Mail programs on this machine read by JMAP. For others set public.tls, or use a proxy with TLS.
[public]
listen = [\"127.0.0.1:8647\"]

# A mail server on this machine delivers by LMTP. To receive mail of other servers set smtp.listen.
[lmtp]
listen = [\"127.0.0.1:2424\"]
";

#[async_trait]
impl DoorSpec for MailSpec {
    fn lines(&self, text: &str) -> &'static str {
        match text {
            "help" => "  restante setup example.org\n",
            "restante.toml" => SETTINGS,
            _ => "",
        }
    }

    fn advise(&self, error: clap::Error) -> clap::Error {
        error
    }

    fn prepare(
        &self,
        effective: &Effective,
        metrics: &NetMetrics,
    ) -> anyhow::Result<Option<Arc<Certificates>>> {
        let config = &effective.config;
        let files = config.tls.files();
        let offers_tls = has_smtp(config) && !files.is_empty();
        let load = || certificates::load(effective, "tls.certificate_files", &files, metrics);
        Ok(offers_tls.then(load).transpose()?)
    }

    async fn open(
        &self,
        shared: &Shared,
        certificates: Option<Arc<Certificates>>,
    ) -> anyhow::Result<Box<dyn OpenDoor>> {
        let config = &shared.effective.config;
        let metrics = RoleMetrics::default();
        let stores = open_stores(shared, &metrics).await?;
        let (settings, clock) = (config.directory.clone(), shared.clock.clone());
        let opened = Directory::open(&stores.records, settings, clock, metrics.directory.clone()).await;
        let (directory, follower) = opened.context("can't open the directory")?;
        let mail = Mail::new(
            stores.records.records.clone(),
            stores.blobs.blobs.clone(),
            shared.clock.clone(),
            config.mail.limits.clone(),
            metrics.mail.clone(),
        );
        let (search, indexer) = match has_jmap(config) {
            true => {
                let search = search::open(config, metrics.search.clone()).await?;
                let (follow, own) = (metrics.follow.clone(), metrics.indexer.clone());
                let indexer = search::indexer(&stores, &search, shared.clock.clone(), follow, own);
                (Some(search), Some(indexer))
            }
            false => (None, None),
        };
        let journal = journal::open(config, shared.clock.clone(), metrics.journal.clone()).await?;
        let filter = checking::open_filter(config)?;
        let learning = checking::learning(filter.as_ref());
        let queue = ServerQueue::open(config, &stores.records, &metrics.queue).await?;
        let outside = Outside { work: queue.work(), learning };
        let sending = open_sending(shared, &stores, &directory, &mail, &journal, outside, &metrics).await?;
        let quarantine = open_quarantine(shared, &stores, &sending, &metrics);
        let reporting = ReportingParts {
            config,
            rows: reporting::rows(&stores.records, config),
            queue: sending.queue.clone(),
            mail: &mail,
            directory: &directory,
            clock: shared.clock.clone(),
            metrics: metrics.reports.clone(),
        };
        let (clock, counted) = (shared.clock.clone(), metrics.checks.clone());
        let checking = Checking::open(config, filter, clock, counted, reporting).await?;
        Ok(Box::new(OpenMail {
            shared: shared.clone(),
            stores,
            directory,
            follower: Some(follower),
            mail,
            journal,
            search,
            indexer,
            indexing: None,
            queue,
            sending,
            checking,
            quarantine,
            certificates,
            smtp: OnceLock::new(),
            metrics,
            stores_metrics: StoresMetrics::default(),
            tidy_metrics: TidyMetrics::default(),
            usage_metrics: UsageMetrics::default(),
            account_removed: Arc::default(),
        }))
    }

    fn lay_out(&self, config: &Config, layout: Layout) -> Layout {
        layout
            .with_store(Store::records(&config.records_url(), None))
            .with_store(Store::blobs(&config.blobs_url(), None))
            .with_secrets(&config.server.data_dir.join(commands::directory::dkim::KEY_FILE))
    }

    async fn hold(&self, config: &Config, held: &mut Vec<Box<dyn HeldStore>>) -> anyhow::Result<()> {
        let records = match records::are_there(config)? {
            true => Some(records::open(config, Default::default()).await?),
            false => None,
        };
        let blobs = match blobs::are_there(config)? {
            true => Some(blobs::open(config, Default::default()).await?),
            false => None,
        };
        if let (Some(records), Some(blobs)) = (&records, &blobs) {
            let mismatch = mismatch::find(config, records, blobs).await?;
            if let Some(mismatch) = mismatch.filter(|mismatch| mismatch.blobs_are_missing) {
                return Err(mismatch.as_error().into());
            }
        }
        held.extend(records.map(|records| Box::new(records) as Box<dyn HeldStore>));
        held.extend(blobs.map(|blobs| Box::new(blobs) as Box<dyn HeldStore>));
        Ok(())
    }
}

#[async_trait]
impl HeldStore for restante_records::Opened {
    fn store(&self, config: &Config) -> Store {
        Store::records(&config.records_url(), Some(self.upkeep.clone()))
    }

    async fn close(&self) -> anyhow::Result<()> {
        self.upkeep.close().await.context("can't close the records")
    }
}

#[async_trait]
impl HeldStore for restante_blobs::Opened {
    fn store(&self, config: &Config) -> Store {
        Store::blobs(&config.blobs_url(), Some(self.upkeep.clone()))
    }

    async fn close(&self) -> anyhow::Result<()> {
        self.upkeep.close().await.context("can't close the blobs")
    }
}

/// The metrics of the stores.
#[derive(Default)]
struct RoleMetrics {
    records: restante_records::Metrics,
    blobs: restante_blobs::Metrics,
    directory: DirectoryMetrics,
    mail: MailMetrics,
    search: restante_search::Metrics,
    follow: restante_follow::Metrics,
    indexer: restante_indexer::Metrics,
    jmap: JmapMetrics,
    connections: OpenConnections,
    smtp: SmtpMetrics,
    journal: JournalMetrics,
    sending: SendingMetricsOfAll,
    queue: restante_queue::Metrics,
    checks: ChecksMetrics,
    quarantine: QuarantineMetrics,
    reports: AggregateMetrics,
}

/// Opens the records and the blobs.
async fn open_stores(shared: &Shared, metrics: &RoleMetrics) -> anyhow::Result<Stores> {
    let config = &shared.effective.config;
    let mut blobs = blobs::open(config, metrics.blobs.clone()).await?;
    let records = records::open_with_blobs(config, metrics.records.clone(), &blobs).await?;
    info!(records = %config.records_url(), blobs = %config.blobs_url(), "records and blobs");
    let mismatch = mismatch::find(config, &records, &blobs).await?;
    if let Some(mismatch) = &mismatch {
        error!(error = %mismatch.error, "records and blobs don't belong together");
    }
    if let Some(mismatch) = mismatch.clone().filter(|mismatch| mismatch.blobs_are_missing) {
        blobs.blobs = Arc::new(MissingBlobs(mismatch));
    }
    let (removing, key_file) = (shared.removing.clone(), KeyFileCheck::new(config));
    Ok(Stores { records, blobs, removing, mismatch, key_file })
}

/// External services that sending uses, if there are any.
struct Outside {
    work: Option<Arc<dyn Work>>,
    learning: Option<Arc<dyn Filter>>,
}

/// Opens everything needed for sending mail.
async fn open_sending(
    shared: &Shared,
    stores: &Stores,
    directory: &Directory,
    mail: &Mail,
    journal: &Option<DeliveryJournal>,
    Outside { work, learning }: Outside,
    metrics: &RoleMetrics,
) -> anyhow::Result<Sending> {
    let (config, clock) = (&shared.effective.config, shared.clock.clone());
    let (follow, metrics) = (&metrics.follow, &metrics.sending);
    let journal = journal.clone().map(|journal| Arc::new(journal) as Arc<dyn Journal>);
    let parts =
        SendingParts { config, stores, directory, mail, journal, clock, follow, metrics, work, learning };
    Sending::open(parts).await
}

/// The quarantine, which delivers released mail like the queue.
fn open_quarantine(
    shared: &Shared,
    stores: &Stores,
    sending: &Sending,
    metrics: &RoleMetrics,
) -> MailQuarantine {
    let (records, blobs) = (stores.records.records.clone(), stores.blobs.blobs.clone());
    let (settings, clock) = (shared.effective.config.quarantine.clone(), shared.clock.clone());
    let kept = Quarantine::new(records, blobs, clock, settings, metrics.quarantine.clone());
    MailQuarantine { kept, local: sending.local() }
}

/// Whether clients can read mail.
pub(super) fn has_jmap(config: &Config) -> bool {
    !config.public.listen.is_empty()
}

/// Whether mail is received by SMTP or LMTP, from other servers or from users.
pub(super) fn has_smtp(config: &Config) -> bool {
    let submission = &config.submission;
    let listeners = [&config.smtp.listen, &submission.listen, &submission.listen_tls];
    !config.lmtp.listen.is_empty() || listeners.iter().any(|listen| !listen.is_empty())
}

/// Mail with its records, its blobs, its directory and its search index.
struct OpenMail {
    shared: Shared,
    stores: Stores,
    directory: Directory,
    /// Until it is started.
    follower: Option<Follower>,
    mail: Mail,
    /// The journal of deliveries, unless the settings disable it.
    journal: Option<DeliveryJournal>,
    /// Used by JMAP only.
    search: Option<restante_search::Opened>,
    /// Until it is started.
    indexer: Option<Indexer>,
    /// Once it was started.
    indexing: Option<search::Indexing>,
    queue: ServerQueue,
    /// Only a server with mail sends any; every server shows its queue.
    sending: Sending,
    /// Only mail from other servers is checked.
    checking: Option<Checking>,
    quarantine: MailQuarantine,
    /// The certificates for STARTTLS.
    certificates: Option<Arc<Certificates>>,
    /// Once it was started.
    smtp: OnceLock<Arc<SmtpDoor>>,
    metrics: RoleMetrics,
    stores_metrics: StoresMetrics,
    tidy_metrics: TidyMetrics,
    usage_metrics: UsageMetrics,
    /// Notified when an account was removed, so that its mail is erased.
    account_removed: Arc<Notify>,
}

#[async_trait]
impl OpenDoor for OpenMail {
    fn register(&self, registry: &mut Registry) {
        let config = self.config();
        self.metrics.records.register(registry);
        self.metrics.blobs.register(registry);
        self.metrics.directory.register(registry);
        self.metrics.mail.register(registry);
        self.metrics.search.register(registry);
        self.metrics.follow.register(registry);
        self.metrics.indexer.register(registry);
        self.metrics.journal.register(registry);
        self.metrics.sending.register(registry);
        self.metrics.queue.register(registry);
        self.metrics.checks.register(registry);
        self.metrics.quarantine.register(registry);
        self.metrics.reports.register(registry);
        self.metrics.connections.register(registry);
        self.stores_metrics.register(registry, config);
        self.usage_metrics.register(registry);
        self.tidy_metrics.register(registry);
    }

    fn report(&self) -> Report {
        let config = self.config();
        let records = self.stores.records.upkeep.clone();
        let mut routes = vec![commands::records::route(config.records_url().to_string(), records)];
        if let Some(search) = &self.search {
            routes.extend(commands::search::routes(config.search_url().to_string(), search.upkeep.clone()));
        }
        let removed = self.account_removed.clone();
        routes.extend(commands::directory::routes(&self.directory, backups::data_folder(config), removed));
        let keys = commands::directory::dkim::keys_of(&self.stores.records, config, self.directory.clone());
        routes.push(commands::directory::dkim_route(keys, backups::data_folder(config)));
        let operator = commands::mail::Operator {
            mail: self.mail.clone(),
            directory: self.directory.clone(),
            journal: self.journal.clone(),
        };
        routes.extend(commands::mail::routes(operator, backups::data_folder(config)));
        let connections = self.metrics.connections.clone();
        routes.extend(console::routes(&Pages::new(self.mail.clone(), self.directory.clone(), connections)));
        let (queue, limits) = (self.sending.queue.clone(), self.sending.limits.clone());
        routes.push(Outgoing::new(queue.clone(), limits, self.directory.clone()).route());
        let blobs = self.mail.blobs();
        let noting = |outcomes| commands::queue::Noting { outcomes, blobs: blobs.clone() };
        let operator = commands::queue::Operator {
            queue,
            directory: self.directory.clone(),
            mail: self.mail.clone(),
            noting: self.sending.outcomes.clone().map(noting),
        };
        routes.push(commands::queue::route(operator, backups::data_folder(config)));
        let operator = commands::quarantine::Operator(self.quarantine.clone());
        routes.push(commands::quarantine::route(operator, backups::data_folder(config)));
        let rows = reporting::rows(&self.stores.records, config);
        let operator = commands::dmarc::Operator::new(rows, self.directory.clone(), config.clone());
        routes.push(commands::dmarc::route(operator, backups::data_folder(config)));
        let mover = commands::mail::Mover {
            mail: self.mail.clone(),
            directory: self.directory.clone(),
            message_bytes_max: commands::mail::message_bytes_max(config),
        };
        routes.push(commands::mail::moving_route(mover, backups::data_folder(config)));
        let guard = |guard: fn(_, _) -> LoginGuard| -> Option<Arc<dyn Guard>> {
            Some(Arc::new(guard(self.directory.clone(), self.shared.clock.clone())))
        };
        // A server with only a directory for its operators has no mail to show.
        let facts: Vec<ShowFacts> = match has_jmap(config) || has_smtp(config) {
            true => vec![Arc::new(console::show)],
            false => Vec::new(),
        };
        Report {
            roles: self.roles(),
            archive: None,
            routes,
            facts,
            operators: guard(LoginGuard::of_operators),
            accounts: guard(LoginGuard::of_accounts),
        }
    }

    fn stores(&self) -> Vec<Store> {
        let config = self.config();
        // A copy of records without their blobs would look like a complete backup.
        let missing = self.stores.mismatch.as_ref().filter(|mismatch| mismatch.blobs_are_missing);
        let blobs = self.stores.blobs.store(config).failing(missing.map(Mismatch::as_error));
        vec![self.stores.records.store(config), blobs]
    }

    fn spawn_upkeep(&mut self, stop: &Stop) -> Vec<JoinHandle<()>> {
        let (stores, search) = (self.stores.clone(), self.search.clone());
        let asked = Asked { stores, search, checks: self.roles(), config: self.config().clone() };
        let (mail, directory, usage) =
            (self.mail.clone(), self.directory.clone(), self.usage_metrics.clone());
        let (removed, metrics) = (self.account_removed.clone(), self.tidy_metrics.clone());
        let tidying = Tidying::new(self.config(), &self.stores, self.eraser(), removed, metrics);
        let following = self.follower.take().map(|follower| tokio::spawn(follower.run()));
        let tasks = [
            tokio::spawn(stores::run(asked, self.stores_metrics.clone(), stop.clone())),
            tokio::spawn(usage::run(mail, directory, usage, stop.clone())),
            tokio::spawn(tidying.run(stop.clone())),
        ];
        let sending = match has_jmap(self.config()) || has_smtp(self.config()) {
            true => self.sending.spawn(stop),
            false => Vec::new(),
        };
        self.indexing = self.indexer.take().map(|indexer| search::spawn(indexer, stop));
        let passing = self.queue.spawn(stop);
        let noting = self.journal.clone().map(|journal| tokio::spawn(journal.run()));
        let checking = self.checking.as_ref().map(|checking| checking.spawn(stop)).unwrap_or_default();
        let expiring = tokio::spawn(checking::expire(self.quarantine.kept.clone(), stop.clone()));
        let of_mail = [expiring].into_iter().chain(following).chain(noting).chain(checking).chain(passing);
        tasks.into_iter().chain(of_mail).chain(sending).collect()
    }

    async fn start(&self, _addresses: &[(Listener, SocketAddr)]) -> anyhow::Result<Vec<Started>> {
        let config = self.config();
        let mut doors: Vec<Arc<dyn Door>> = Vec::new();
        if has_jmap(config) {
            doors.push(Arc::new(JmapDoor::new(self.jmap_parts(), config.jmap.clone())));
        }
        if has_smtp(config) {
            // Starts at the same time and lasts as long as for requests: hanging connections are cut before the doors are closed.
            let stop_timeout = self.shared.bounds.limits.stop_timeout;
            let stop_timeout_ms = u64::try_from(stop_timeout.as_millis()).unwrap_or(u64::MAX);
            let smtp = SmtpConfig { stop_timeout_ms, ..config.smtp.clone() };
            let lmtp = config.lmtp.clone();
            let door = Arc::new(SmtpDoor::start(self.smtp_parts(), smtp, lmtp).await?);
            doors.push(self.smtp.get_or_init(|| door).clone());
        }
        Ok(doors.into_iter().map(|door| Started { door, offer: Offer::default() }).collect())
    }

    fn announce(
        &self,
        _addresses: &[(Listener, SocketAddr)],
        is_one: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let Some(door) = self.smtp.get() else { return Ok(()) };
        let smtp = door.smtp_addresses().iter().map(|address| ("SMTP", address.to_string()));
        let lmtp = door.lmtp_addresses().iter().map(|address| ("LMTP", address.to_string()));
        let submission =
            door.submission_addresses().iter().map(|address| ("submission", address.to_string()));
        let submissions =
            door.submissions_addresses().iter().map(|address| ("submissions", address.to_string()));
        for (protocol, address) in smtp.chain(lmtp).chain(submission).chain(submissions) {
            if !is_one {
                info!(protocol, address, "mail is received");
            }
            writeln!(out, "listening for mail by {protocol} on {address}")?;
        }
        Ok(())
    }

    async fn close(&self, limit: Duration) -> anyhow::Result<()> {
        if let Some(indexing) = &self.indexing {
            indexing.ended(limit / 2).await; // it uses all stores
        }
        let search = async {
            if let Some(search) = &self.search {
                search::close(search, limit).await;
            }
        };
        let journal = async {
            match &self.journal {
                Some(journal) => journal::close(journal, limit).await,
                None => Ok(()),
            }
        };
        let checking = async {
            match &self.checking {
                Some(checking) => checking.close(limit).await,
                None => Ok(()),
            }
        };
        let ((), journal, checking, stores) =
            tokio::join!(search, journal, checking, self.stores.close(limit));
        self.queue.close(limit).await;
        journal.and(checking).and(stores)
    }
}

impl OpenMail {
    fn roles(&self) -> Vec<RoleCheck> {
        let mut roles = self.stores.health(self.config());
        roles.extend(self.search.as_ref().map(search::health));
        if has_jmap(self.config()) || has_smtp(self.config()) {
            roles.push(self.sending.health());
            roles.extend(self.queue.health());
        }
        roles
    }

    fn eraser(&self) -> Eraser {
        Eraser {
            mail: self.mail.clone(),
            directory: self.directory.clone(),
            records: self.stores.records.upkeep.clone(),
            clock: self.shared.clock.clone(),
            actor: Actor("the server".to_owned()),
            journal: self.journal.clone(),
            journal_erased: Arc::default(),
        }
    }

    fn jmap_parts(&self) -> JmapParts {
        let public = &self.config().public;
        let url = String::from(public.url.clone());
        JmapParts {
            mail: self.mail.clone(),
            search: self.search.as_ref().map(|opened| opened.search.clone()),
            directory: self.directory.clone(),
            stores: self.stores.health(self.config()),
            memory: self.shared.memory.clone(),
            metrics: self.metrics.jmap.clone(),
            connections: self.metrics.connections.clone(),
            public_url: Some(url).filter(|url| !url.is_empty()),
            is_tls: public.tls,
            sending: Some(self.sending.limits.clone()),
            mta_sts_policy: public.mta_sts.policy(&self.config().smtp.hostname),
        }
    }

    fn recipients(&self) -> Arc<dyn Recipients> {
        let (directory, mismatch) = (self.directory.clone(), self.stores.mismatch.clone());
        Arc::new(WithPostmasters::new(Arc::new(Deferring { directory, mismatch }), &self.config().smtp))
    }

    fn smtp_parts(&self) -> restante_smtp::Parts {
        restante_smtp::Parts {
            recipients: self.recipients(),
            delivery: Arc::new(MailDelivery::new(self.mail.clone(), &self.config().smtp)),
            journal: self.journal.clone().map(|journal| Arc::new(journal) as Arc<dyn Journal>),
            certificates: self.certificates.clone(),
            clock: self.shared.clock.clone(),
            metrics: self.metrics.smtp.clone(),
            net: self.shared.net.clone(),
            submission: Some(self.sending.submission(self.config(), &self.directory)),
            forwards: Some(self.sending.forwards()),
            checks: self
                .checking
                .as_ref()
                .map(|checking| Arc::new(checking.checks()) as Arc<dyn SenderChecks>),
            quarantine: Some(Arc::new(self.quarantine.clone())),
        }
    }

    fn config(&self) -> &Config {
        &self.shared.effective.config
    }
}
