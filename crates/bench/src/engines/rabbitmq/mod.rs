//! RabbitMQ: the load of seed 004 (as fast as possible, without confirms), and what a queue of mail needs: persistent messages
//! with confirms, on a classic and on a quorum queue.

mod management;
mod workload;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, ensure};
use async_trait::async_trait;
use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{BasicQosOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
    uri::{AMQPScheme, AMQPUri},
};
use parking_lot::Mutex;
use restante_net::tls::{ClientTls, Roots};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{
    Engine, EnginesArgs, floors,
    load::round_trip_ms,
    results::{References, Results},
    setting::EngineSetting,
    target,
};
use management::Management;
use workload::{Load, Outcome};

const NAME: &str = "rabbitmq";
/// The variables that dev/services sets.
const VARIABLE: &str = "RESTANTE_RABBITMQ_URL";
const MANAGEMENT_VARIABLE: &str = "RESTANTE_RABBITMQ_MANAGEMENT_URL";
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A queue that no client uses is removed after this time: that of a run that was killed.
const EXPIRY_MS: i32 = 3_600_000;
/// The queues of a run, each after the run's name.
const QUEUES: [&str; 4] = ["probe", "seed", "classic", "quorum"];
/// The published figures: messages a second.
const SEED_SENT: f64 = 3_111.0;
const SEED_RECEIVED: f64 = 4_404.0;

/// Flags for RabbitMQ.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct RabbitmqArgs {
    /// Measure this RabbitMQ; without it that of RESTANTE_RABBITMQ_URL
    #[arg(long, value_name = "URL")]
    pub rabbitmq: Option<String>,
    /// A file with user and password for the RabbitMQ and its management, when the URLs have none: user:password
    #[arg(long, value_name = "FILE")]
    pub rabbitmq_credentials: Option<PathBuf>,
    /// The management plugin of the RabbitMQ, which tells its alarms and settings; without it that of
    /// RESTANTE_RABBITMQ_MANAGEMENT_URL
    #[arg(long, value_name = "URL")]
    pub rabbitmq_management: Option<String>,
}

/// Connects to the RabbitMQ that is named.
pub(super) async fn connect(args: &EnginesArgs) -> anyhow::Result<Option<Box<dyn Engine>>> {
    let own = &args.rabbitmq;
    let Some(url) = target::named(own.rabbitmq.as_ref(), VARIABLE) else { return Ok(None) };
    let access = Access::new(&url, args)?;
    access.open().await?;
    let management = match target::named(own.rabbitmq_management.as_ref(), MANAGEMENT_VARIABLE) {
        Some(url) => Some(Management::new(&url, &access.uri.authority.userinfo, args)?),
        None => None,
    };
    Ok(Some(Box::new(Rabbitmq { access: Arc::new(access), management, prefix: target::fresh_name() })))
}

/// How the broker is reached.
pub(crate) struct Access {
    uri: AMQPUri,
    /// For a connection over TLS.
    tls: Option<TlsConnector>,
}

impl Access {
    pub(crate) fn new(url: &str, args: &EnginesArgs) -> anyhow::Result<Self> {
        // The error of the client library might contain the password.
        let form = "--rabbitmq takes amqp://<user>@<host>/<virtual host> or amqps://..., with / of the virtual host as %2f";
        let mut uri: AMQPUri = url.parse().map_err(|_| anyhow!(form))?;
        // The library treats each of them as localhost.
        ensure!(!url.contains('['), "--rabbitmq takes the name of a host, no IPv6 address");
        if let Some(file) = &args.rabbitmq.rabbitmq_credentials {
            let (user, password) = target::credentials(file)?;
            uri.authority.userinfo.username = user;
            uri.authority.userinfo.password = password;
        }
        let tls = match uri.scheme {
            AMQPScheme::AMQP => None,
            AMQPScheme::AMQPS => {
                let roots = args.ca_file.clone().map_or(Roots::System, Roots::File);
                Some(Arc::new(ClientTls { roots, ..ClientTls::default() }.config()?).into())
            }
        };
        Ok(Self { uri, tls })
    }

    /// Opens a connection. It does not reconnect: a broker that dies is an error.
    pub(crate) async fn open(&self) -> anyhow::Result<Connection> {
        let opening = async {
            let mut uri = self.uri.clone();
            if let Some(tls) = &self.tls {
                uri.scheme = AMQPScheme::AMQP;
                (uri.authority.host, uri.authority.port) = self.forward(tls).await?;
            }
            let properties = ConnectionProperties::default().with_connection_name("restante bench".into());
            Ok(Connection::connect_uri(uri, properties).await?)
        };
        timeout(CONNECT_MAX, opening)
            .await
            .map_err(|_| anyhow!("no answer within {} s", CONNECT_MAX.as_secs()))
            .and_then(|opened: anyhow::Result<Connection>| opened)
            .context("can't connect: look at --rabbitmq, --rabbitmq-credentials and --ca-file")
    }

    /// Opens a connection over TLS, and forwards one connection within this machine to it. The client library's own TLS would
    /// add ciphers that nobody needs; without it, the library would send passwords in the clear.
    async fn forward(&self, tls: &TlsConnector) -> anyhow::Result<(String, u16)> {
        let (host, port) = (&*self.uri.authority.host, self.uri.authority.port);
        let broker = TcpStream::connect((host, port)).await?;
        broker.set_nodelay(true)?;
        let mut broker = tls.connect(ServerName::try_from(host.to_owned())?, broker).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            let (mut client, _) = timeout(CONNECT_MAX, listener.accept()).await??;
            client.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut broker).await?; // an error reaches the client as a closed connection
            anyhow::Ok(())
        });
        Ok((address.ip().to_string(), address.port()))
    }
}

struct Rabbitmq {
    access: Arc<Access>,
    management: Option<Management>,
    /// Of all queues of this run.
    prefix: String,
}

#[async_trait]
impl Engine for Rabbitmq {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        let host = &self.access.uri.vhost;
        let delete = |queue| format!("rabbitmqctl delete_queue -p '{host}' {}", self.queue(queue));
        let commands: Vec<_> = QUEUES.into_iter().map(delete).collect();
        format!("its queues expire within an hour, or {}", commands.join("; "))
    }

    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        let mut settings = vec![self.judge_quorum_queues().await?];
        settings.extend(match &self.management {
            Some(management) => management.settings().await?,
            None => vec![management::unknown()],
        });
        Ok(settings)
    }

    async fn measure(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        let one_ms = self.floors(args, results).await?;
        let seconds = |full: f64, small: f64| match (args.output.quick, args.small) {
            (true, _) => Duration::from_secs_f64(small / 10.0),
            (_, true) => Duration::from_secs_f64(small),
            _ => Duration::from_secs_f64(full),
        };
        let outcome = self.run(Load::of_seed(self.queue("seed"), seconds(30.0, 10.0))).await?;
        show_seed(&outcome, results);
        for kind in ["classic", "quorum"] {
            let outcome = self.run(Load::bounded(kind, self.queue(kind), seconds(20.0, 8.0))).await?;
            show_bounded(kind, &outcome, one_ms, results);
        }
        Ok(())
    }

    /// The connection is a new one: a broker that is short of memory reads nothing from those that sent messages.
    async fn clean_up(&self) -> anyhow::Result<()> {
        let connection = self.access.open().await?;
        for queue in QUEUES {
            let channel = connection.create_channel().await?;
            channel.queue_delete(self.queue(queue).into(), QueueDeleteOptions::default()).await?;
        }
        Ok(())
    }
}

impl Rabbitmq {
    fn queue(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    /// Whether the broker supports queues that are replicated to several nodes.
    async fn judge_quorum_queues(&self) -> anyhow::Result<EngineSetting> {
        let channel = self.access.open().await?.create_channel().await?;
        let queue = self.queue("probe");
        let made = match make_queue(&channel, "quorum", &queue).await {
            Ok(()) => channel
                .queue_delete(queue.into(), QueueDeleteOptions::default())
                .await
                .map(drop)
                .map_err(Into::into),
            Err(error) => Err(error),
        };
        let setting = EngineSetting::safe(NAME, "quorum queues", if made.is_ok() { "yes" } else { "no" });
        Ok(match made {
            Ok(()) => setting,
            Err(error) => setting.into_unsafe(
                &format!("mail that waits in a classic queue is on one node only, and lost with its disk ({error:#})"),
                "run RabbitMQ 3.8 or newer, and let the user declare queues",
            ),
        })
    }

    /// Measures and shows what network and disk allow. Returns the milliseconds of a message on an otherwise idle broker: it
    /// is sent and confirmed, delivered and acknowledged, and has a share of a sync.
    async fn floors(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<f64> {
        let channel = self.access.open().await?.create_channel().await?;
        let ping = async || channel.basic_qos(0, BasicQosOptions::default()).await.map_err(Into::into);
        let round_trip_ms = round_trip_ms(args.pick(1_000, 200), ping).await?;
        let folder = match &self.management {
            Some(management) if floors::is_local(&self.access.uri.authority.host) => {
                management.folder().await?
            }
            _ => None,
        };
        let disk = match folder {
            Some(folder) => floors::disk_below(&folder, args).await?,
            None => None,
        };
        let mut results = results.lock();
        let mut table = results.table(NAME, "floors");
        table.shown("round trip p50", "ms", round_trip_ms);
        let Some(disk) = disk else { return Ok(2.0 * round_trip_ms) };
        table.shown("synced appends of the disk", "1/s", disk.syncs_per_s);
        Ok(2.0 * round_trip_ms + 1e3 / disk.syncs_per_s / workload::WINDOW as f64)
    }

    async fn run(&self, load: Load) -> anyhow::Result<Outcome> {
        let channel = self.access.open().await?.create_channel().await?;
        make_queue(&channel, load.kind, &load.queue).await.context("can't declare a queue")?;
        workload::run(&self.access, load).await
    }
}

/// Declares a durable queue of a kind. A queue that is there already stays as it is.
pub(crate) async fn make_queue(channel: &Channel, kind: &str, name: &str) -> anyhow::Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    arguments.insert("x-expires".into(), AMQPValue::LongInt(EXPIRY_MS));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declared = timeout(CONNECT_MAX, channel.queue_declare(name.into(), options, arguments)).await;
    declared.map_err(|_| anyhow!("no answer within {} s", CONNECT_MAX.as_secs()))??;
    Ok(())
}

fn show_seed(outcome: &Outcome, results: &Mutex<Results>) {
    let mut results = results.lock();
    // Nothing slows the producers down, so messages pile up: that is the load, no fault of the broker.
    let title = "empty messages without confirms, as fast as they go: the queue fills faster than it drains";
    let mut table = results.table(NAME, title);
    let run = outcome.measured.circumstances("all");
    table.rate("sent", "1/s", outcome.sent_per_second(), References::seed(SEED_SENT), &run);
    table.rate("received", "1/s", outcome.received_per_second(), References::seed(SEED_RECEIVED), &run);
    if outcome.backlog > 0 {
        table.shown("left in the queue", "messages", outcome.backlog as f64);
    }
}

fn show_bounded(kind: &str, outcome: &Outcome, one_ms: f64, results: &Mutex<Results>) {
    let mut results = results.lock();
    let title = format!("persistent messages of 1 kB with confirms, window 100, prefetch 100, {kind} queue");
    let mut table = results.table(NAME, title);
    let circumstances = |name: &str| {
        let has_growing_backlog = outcome.has_growing_backlog();
        super::verdict::Circumstances { has_growing_backlog, ..outcome.measured.circumstances(name) }
    };
    // With many messages in flight, the broker must confirm at least as fast as one after the other.
    let rate = References::floor(1e3 / one_ms);
    let sent = circumstances(workload::CONFIRM);
    table.rate("confirmed", "1/s", outcome.sent_per_second(), rate, &sent);
    let received = circumstances(workload::DELIVERY);
    table.rate("received", "1/s", outcome.received_per_second(), rate, &received);
    for (name, run) in [(workload::CONFIRM, &sent), (workload::DELIVERY, &received)] {
        let times = outcome.measured.times(name).service;
        if times.len() == 0 {
            continue;
        }
        let under_way = (workload::PRODUCERS * workload::WINDOW) as f64;
        table.time(format!("{name} p50"), times.median_ms(), References::floor(one_ms * under_way), run);
        for percentile in [95.0, 99.0, 99.9] {
            let value = times.percentile_ms(percentile);
            table.time(format!("{name} p{percentile}"), value, References::NONE, run);
        }
        table.time(format!("{name} max"), times.max_ms(), References::NONE, run);
        table.curve(format!("rabbitmq: {kind} queue"), name, &times);
    }
}

#[cfg(test)]
mod tests;
