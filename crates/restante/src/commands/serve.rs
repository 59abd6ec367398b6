//! `restante serve`: opens the archive, starts the doors, and ends in order.

use std::{future::Future, io::Write, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use restante_archive::{Metrics, Opened};
use restante_waku::rest::{self, Rest, RestMetrics};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::{
    archives::{self, Access},
    commands::retention,
    config::{Config, ServeFlags},
    logging,
    signals::Stop,
    telemetry::{self, VERSION},
};

/// The part of the grace time that the doors have to finish their requests; the rest is the archive's.
const DOORS_SHARE: f64 = 0.8;

pub(crate) async fn run(flags: &ServeFlags) -> anyhow::Result<ExitCode> {
    let config = flags.load()?.config;
    logging::start(&config);
    let stop = Stop::on_signals()?;

    let metrics = Metrics::default();
    let opened = archives::open(&config, Access::Serve, metrics.clone()).await?;
    let retention =
        tokio::spawn(retention::run(opened.upkeep.clone(), (&config.archive).into(), stop.clone()));
    let served = serve(&config, &opened, metrics, stop).await;
    retention.abort();
    let closed = close(&opened, grace(&config).mul_f64(1.0 - DOORS_SHARE)).await;
    served.and(closed)?;
    info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Serves the archive until the server is told to stop and the doors have finished.
async fn serve(config: &Config, opened: &Opened, metrics: Metrics, stop: Stop) -> anyhow::Result<()> {
    let listener = listen(SocketAddr::new(config.rest.address, config.rest.port)).await?;
    let address = listener.local_addr()?;
    let rest = Arc::new(open_rest(config, opened, metrics, address));
    announce(config, address);
    let door = rest::serve(listener, rest::router(rest.clone()), &rest.config, stop.clone().told());
    finish_in_time(door, stop, grace(config).mul_f64(DOORS_SHARE)).await.context("the REST door failed")
}

fn grace(config: &Config) -> Duration {
    Duration::from_secs(config.server.grace_seconds.get())
}

/// Lets the archive finish what it has taken.
async fn close(opened: &Opened, limit: Duration) -> anyhow::Result<()> {
    let closed = tokio::time::timeout(limit, opened.upkeep.close()).await;
    let closed =
        closed.with_context(|| format!("the archive was not closed within {} s", limit.as_secs_f64()))?;
    closed.context("can't close the archive")
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("can't listen on {address}: stop the program that holds the port, or choose another with --rest-port")
    })
}

fn open_rest(config: &Config, opened: &Opened, archive_metrics: Metrics, address: SocketAddr) -> Rest {
    let clock = archives::clock();
    let metrics = RestMetrics::default();
    let mut registry = telemetry::registry(clock.now());
    archive_metrics.register(&mut registry, config.archive_url().engine());
    metrics.register(&mut registry);
    Rest {
        archive: opened.archive.clone(),
        upkeep: opened.upkeep.clone(),
        clock,
        config: config.into(),
        metrics,
        metrics_text: telemetry::shown(registry),
        version: VERSION,
        listen_addresses: vec![format!("http://{address}")],
    }
}

/// Tells people (the log) and scripts (a line on stdout) where the server is.
fn announce(config: &Config, address: SocketAddr) {
    info!(version = VERSION, archive = %config.archive_url(), %address, "serving");
    if let Some(spool) = config.spool() {
        info!(folder = %spool.folder.display(), spool.bytes_max, "messages wait in the spool while the archive is away");
    }
    if let Some(folder) = config.spool_left_behind() {
        let advice = "set archive.spool.bytes_max, so that they are stored";
        warn!(folder = %folder.display(), advice, "messages are left in a spool that is switched off");
    }
    if let Some(tandem) = config.tandem() {
        info!(second = %tandem.url, "a second archive follows");
    }
    if !address.ip().is_loopback() {
        warn!(%address, "everybody who reaches this address can publish and query");
    }
    // A server whose stdout is closed has nobody to tell, and serves all the same.
    let _ = writeln!(std::io::stdout(), "listening on http://{address}");
}

/// Lets a door run, and once the server was told to stop, lets it finish for so long.
async fn finish_in_time(
    door: impl Future<Output = std::io::Result<()>>,
    stop: Stop,
    limit: Duration,
) -> anyhow::Result<()> {
    let deadline = async {
        stop.told().await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        ended = door => Ok(ended?),
        () = deadline => bail!("requests were not finished {} s after the signal to stop", limit.as_secs_f64()),
    }
}
