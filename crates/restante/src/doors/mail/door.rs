//! How a server keeps mail: it opens records, blobs and the directory, and looks after them. No protocol of mail is served yet.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use async_trait::async_trait;
use prometheus_client::registry::Registry;
use restante_backup::{Layout, Store};
use restante_directory::{Directory, DirectoryMetrics, Follower};
use restante_http::Guard;
use restante_net::{NetMetrics, tls::Certificates};
use restante_operate::Listener;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::{
    MailSpec, blobs, commands,
    logins::LoginGuard,
    records,
    stores::{self, Stores, StoresMetrics},
    tidying::{self, TidyMetrics, Tidying},
};
use crate::{
    backups,
    config::{Config, Effective},
    doors::{DoorSpec, HeldStore, OpenDoor, Report, Shared, Started},
    signals::Stop,
};

#[async_trait]
impl DoorSpec for MailSpec {
    fn lines(&self, text: &str) -> &'static str {
        match text {
            "help" => "  restante setup example.org\n",
            "restante.toml" => "\n[mail]\nenabled = true\n",
            _ => "",
        }
    }

    fn advise(&self, error: clap::Error) -> clap::Error {
        error
    }

    fn prepare(
        &self,
        _effective: &Effective,
        _metrics: &NetMetrics,
    ) -> anyhow::Result<Option<Arc<Certificates>>> {
        Ok(None)
    }

    async fn open(
        &self,
        shared: &Shared,
        _certificates: Option<Arc<Certificates>>,
    ) -> anyhow::Result<Box<dyn OpenDoor>> {
        let config = &shared.effective.config;
        let metrics = RoleMetrics::default();
        let stores = open_stores(shared, &metrics).await?;
        let (settings, clock) = (config.directory.clone(), shared.clock.clone());
        let opened = Directory::open(&stores.records, settings, clock, metrics.directory.clone()).await;
        let (directory, follower) = opened.context("can't open the directory")?;
        Ok(Box::new(OpenMail {
            shared: shared.clone(),
            stores,
            directory,
            follower: Some(follower),
            metrics,
            stores_metrics: StoresMetrics::default(),
            tidy_metrics: TidyMetrics::default(),
        }))
    }

    fn lay_out(&self, config: &Config, layout: Layout) -> Layout {
        layout
            .with_store(Store::records(&config.records_url(), None))
            .with_store(Store::blobs(&config.blobs_url(), None))
    }

    async fn hold(&self, config: &Config, held: &mut Vec<Box<dyn HeldStore>>) -> anyhow::Result<()> {
        if records::are_there(config)? {
            held.push(Box::new(records::open(config, Default::default()).await?));
        }
        if blobs::are_there(config)? {
            held.push(Box::new(blobs::open(config, Default::default()).await?));
        }
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

/// What the roles count.
#[derive(Default)]
struct RoleMetrics {
    records: restante_records::Metrics,
    blobs: restante_blobs::Metrics,
    directory: DirectoryMetrics,
}

/// Opens the records and the blobs.
async fn open_stores(shared: &Shared, metrics: &RoleMetrics) -> anyhow::Result<Stores> {
    let config = &shared.effective.config;
    let records = records::open(config, metrics.records.clone()).await?;
    let blobs = blobs::open(config, metrics.blobs.clone()).await?;
    info!(records = %config.records_url(), blobs = %config.blobs_url(), "records and blobs");
    let settled = match tidying::check_records_last(config) {
        Ok(()) => tidying::settle_owner(&*records.upkeep, &blobs).await,
        Err(error) => Err(error),
    };
    if let Err(error) = settled {
        warn!(%error, "blobs are not swept");
    }
    Ok(Stores { records, blobs, removing: shared.removing.clone() })
}

/// Mail with its records, its blobs and its directory.
struct OpenMail {
    shared: Shared,
    stores: Stores,
    directory: Directory,
    /// Until it runs.
    follower: Option<Follower>,
    metrics: RoleMetrics,
    stores_metrics: StoresMetrics,
    tidy_metrics: TidyMetrics,
}

#[async_trait]
impl OpenDoor for OpenMail {
    fn register(&self, registry: &mut Registry) {
        let config = self.config();
        self.metrics.records.register(registry);
        self.metrics.blobs.register(registry);
        self.metrics.directory.register(registry);
        let engines = (config.records_url().engine(), config.blobs_url().engine());
        self.stores_metrics.register(registry, engines);
        self.tidy_metrics.register(registry);
    }

    fn report(&self) -> Report {
        let config = self.config();
        let records = self.stores.records.upkeep.clone();
        let mut routes = vec![commands::records::route(config.records_url().to_string(), records)];
        routes.extend(commands::directory::routes(&self.directory, backups::data_folder(config)));
        let guard = |guard: fn(_, _) -> LoginGuard| -> Option<Arc<dyn Guard>> {
            Some(Arc::new(guard(self.directory.clone(), self.shared.clock.clone())))
        };
        Report {
            roles: self.stores.health(config),
            archive: None,
            routes,
            operators: guard(LoginGuard::of_operators),
            accounts: guard(LoginGuard::of_accounts),
        }
    }

    fn stores(&self) -> Vec<Store> {
        let config = self.config();
        vec![self.stores.records.store(config), self.stores.blobs.store(config)]
    }

    fn spawn_upkeep(&mut self, stop: &Stop) -> Vec<JoinHandle<()>> {
        let (stores, checks) = (self.stores.clone(), self.stores.health(self.config()));
        let tidying = Tidying::new(self.config(), &self.stores, self.tidy_metrics.clone());
        let following = self.follower.take().map(|follower| tokio::spawn(follower.run()));
        let tasks = [
            tokio::spawn(stores::run(stores, checks, self.stores_metrics.clone(), stop.clone())),
            tokio::spawn(tidying.run(stop.clone())),
        ];
        tasks.into_iter().chain(following).collect()
    }

    async fn start(&self, _addresses: &[(Listener, SocketAddr)]) -> anyhow::Result<Option<Started>> {
        Ok(None)
    }

    fn announce(
        &self,
        _addresses: &[(Listener, SocketAddr)],
        _is_one: bool,
        _out: &mut dyn Write,
    ) -> io::Result<()> {
        Ok(())
    }

    async fn close(&self, limit: Duration) -> anyhow::Result<()> {
        self.stores.close(limit).await
    }
}

impl OpenMail {
    fn config(&self) -> &Config {
        &self.shared.effective.config
    }
}
