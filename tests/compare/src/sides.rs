//! The stores on each database, and how they are filled.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc};

use restante_archive::EngineUrl;
use restante_bench::dataset::Dataset;

use crate::{
    args::{CompareArgs, Database},
    contender::{Contender, Load, Part},
    mailserver::{self, Mailserver, Method},
    measure::{Figure, measure},
    nwaku::{self, Nwaku},
    ours::Ours,
    question::{Access, Question},
    server::{OURS, Server},
};

const DURABLE: &str = "durable appends, indexes live";
const BULK: &str = "bulk, indexes afterwards";

/// The `log` engine and its load: one for all databases.
pub(crate) type Log = Option<(Arc<Ours>, Load)>;

/// All stores that are compared on one database.
pub(crate) struct Side {
    database: Database,
    contenders: Vec<Contender>,
    /// The engine that is closed at the end.
    engine: Option<Arc<Ours>>,
}

/// A side with its figures.
pub(crate) struct Measured {
    pub(crate) database: Database,
    pub(crate) loads: Vec<(&'static str, Part, Load)>,
    pub(crate) figures: Vec<Figure>,
}

/// Fills the `log` engine, which is compared on each database.
pub(crate) async fn log(args: &CompareArgs, folder: &Path, dataset: &Arc<Dataset>) -> anyhow::Result<Log> {
    if args.rivals_only {
        return Ok(None);
    }
    let folder = folder.join("log");
    let (log, mut load) = filled(EngineUrl::Log(folder.clone()), dataset).await?;
    load.disk_bytes = folder_bytes(&folder)?;
    Ok(Some((log, load)))
}

/// An engine of ours with the data set. The caller sets its size on disk.
async fn filled(url: EngineUrl, dataset: &Arc<Dataset>) -> anyhow::Result<(Arc<Ours>, Load)> {
    eprintln!("filling restante's {} engine", url.engine());
    let engine = Arc::new(Ours::open(url).await?);
    let filled = engine.fill(dataset).await?;
    let (messages, payload_bytes) = (dataset.len(), filled.payload_bytes);
    let load = Load { time: filled.time, messages, payload_bytes, disk_bytes: 0, how: DURABLE };
    Ok((engine, load))
}

/// One of our engines as a contender.
fn ours(name: &'static str, part: Part, engine: &Arc<Ours>, load: Load) -> Contender {
    Contender { name, part, is_by_filter: false, has_bodies: true, store: engine.clone(), load }
}

impl Side {
    /// restante's `postgres` engine against the mailserver's table by both methods.
    pub(crate) async fn postgres(
        server: &Server,
        args: &CompareArgs,
        dataset: &Arc<Dataset>,
        log: Log,
    ) -> anyhow::Result<Self> {
        let mut contenders = Vec::new();
        let mut engine = None;
        if !args.rivals_only {
            let (postgres, mut load) = filled(server.engine_url()?, dataset).await?;
            server.tidy(OURS).await?;
            load.disk_bytes = server.disk_bytes(OURS).await?;
            contenders.push(ours("restante postgres", Part::Ours, &postgres, load));
            engine = Some(postgres);
        }
        eprintln!("filling the mailserver's table");
        let loaded = mailserver::load(server, dataset).await?;
        let lanes = args.concurrency as usize;
        let (messages, payload_bytes) = (dataset.len(), loaded.payload_bytes);
        let methods = [
            ("bit string", Method::BitString, loaded.time, loaded.disk_bytes),
            ("topic index", Method::Topic, loaded.time_with_added, loaded.disk_bytes_with_added),
        ];
        for (name, method, time, disk_bytes) in methods {
            contenders.push(Contender {
                name,
                part: Part::Rival,
                is_by_filter: method == Method::BitString,
                has_bodies: true,
                store: Arc::new(Mailserver::open(server, method, lanes).await?),
                load: Load { time, messages, payload_bytes, disk_bytes, how: BULK },
            });
        }
        contenders.extend(log.map(|(log, load)| ours("restante log", Part::Reference, &log, load)));
        Ok(Self { database: Database::Postgres, contenders, engine })
    }

    /// restante's `sqlite` engine against nwaku's table.
    pub(crate) async fn sqlite(
        folder: &Path,
        args: &CompareArgs,
        dataset: &Arc<Dataset>,
        log: Log,
    ) -> anyhow::Result<Self> {
        let mut contenders = Vec::new();
        let mut engine = None;
        if !args.rivals_only {
            let own = folder.join("sqlite");
            fs::create_dir(&own)?;
            let (sqlite, mut load) = filled(EngineUrl::Sqlite(own.join("archive.db")), dataset).await?;
            load.disk_bytes = folder_bytes(&own)?;
            contenders.push(ours("restante sqlite", Part::Ours, &sqlite, load));
            engine = Some(sqlite);
        }
        eprintln!("filling nwaku's table");
        let own = folder.join("nwaku");
        fs::create_dir(&own)?;
        let file = own.join("store.sqlite3");
        let loaded = nwaku::load(&file, dataset).await?;
        let (messages, payload_bytes) = (dataset.len(), loaded.payload_bytes);
        let disk_bytes = folder_bytes(&own)?;
        contenders.push(Contender {
            name: "nwaku schema",
            part: Part::Rival,
            is_by_filter: false,
            has_bodies: false, // payloads, extracted from the bodies as nwaku does
            store: Arc::new(Nwaku::open(&file, args.concurrency as usize)?),
            load: Load { time: loaded.time, messages, payload_bytes, disk_bytes, how: BULK },
        });
        contenders.extend(log.map(|(log, load)| ours("restante log", Part::Reference, &log, load)));
        Ok(Self { database: Database::Sqlite, contenders, engine })
    }

    /// Asks all stores all questions.
    pub(crate) async fn measure(
        &self,
        questions: &[Arc<Question>],
        args: &CompareArgs,
    ) -> anyhow::Result<Measured> {
        let mut figures = Vec::new();
        for question in questions {
            if question.access == Access::Full {
                let (cell, kind) = (question.cell.name, question.kind.name());
                eprintln!("asking on {}: {cell} by {kind}", self.database.name());
            }
            for concurrency in args.levels() {
                figures.extend(measure(self.database, &self.contenders, question, concurrency, args).await?);
            }
        }
        let loads = self.contenders.iter().map(|one| (one.name, one.part, one.load)).collect();
        Ok(Measured { database: self.database, loads, figures })
    }

    pub(crate) async fn close(&self) -> anyhow::Result<()> {
        match &self.engine {
            Some(engine) => engine.close().await,
            None => Ok(()),
        }
    }
}

/// Bytes that the files of a folder occupy on disk.
fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    const BLOCK_BYTES: u64 = 512; // the unit of st_blocks on every disk
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let entry_bytes = if entry.file_type()?.is_dir() {
            folder_bytes(&entry.path())?
        } else {
            entry.metadata()?.blocks() * BLOCK_BYTES
        };
        bytes += entry_bytes;
    }
    Ok(bytes)
}
