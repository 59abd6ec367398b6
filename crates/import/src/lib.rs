//! Reads the archives of other servers: nwaku's and go-waku's (SQLite and PostgreSQL), and those of the Status mailserver
//! (LevelDB and PostgreSQL). Returns messages for an archive of ours and never writes to the source.
//!
//! ```no_run
//! # async fn example() -> Result<(), restante_import::Error> {
//! use restante_import::{Options, Location, open};
//!
//! let location = Location::of("store.sqlite3".as_ref())?.expect("it is a database");
//! let mut source = open(location, None, Options::default()).await?;
//! while let Some(batch) = source.next().await? {
//!     println!("{} messages, {} refused", batch.messages.len(), batch.refused.count);
//! }
//! # Ok(())
//! # }
//! ```

mod convert;
mod findings;
mod leveldb;
mod location;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod nwaku;
#[cfg(feature = "postgres")]
mod postgres;
mod source;
mod status;

pub use convert::Refusal;
pub use findings::Findings;
pub use location::{Location, Owner};
pub use restante_core::Error;
pub use source::{Batch, Extent, Source};

use futures_util::future::BoxFuture;

/// The pubsub topic of messages from before there were pubsub topics: the default one of `23/WAKU2-TOPICS`.
pub const DEFAULT_PUBSUB_TOPIC: &str = "/waku/2/default-waku/proto";

/// Options of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The pubsub topic of messages without one: those of a Status mailserver.
    pub pubsub_topic: String,
    /// Import a message whose stored hash is not that of its content under the hash of its content. By default it is refused.
    pub rehash: bool,
    /// Continue after this position: a [`Batch::after`].
    pub after: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { pubsub_topic: DEFAULT_PUBSUB_TOPIC.to_owned(), rehash: false, after: None }
    }
}

/// Opens an archive for reading. Without `owner` its format is detected.
///
/// # Errors
/// `Invalid` when there is no such archive, `Unavailable` when it can't be read, `Corrupt` when it is damaged
/// as a whole. [`Batch::refused`] reports damage to single messages.
pub fn open(
    location: Location,
    owner: Option<Owner>,
    options: Options,
) -> BoxFuture<'static, Result<Source, Error>> {
    // Boxed here, so that this crate compiles what the sources need, and not each crate that opens one.
    Box::pin(open_source(location, owner, options))
}

async fn open_source(location: Location, owner: Option<Owner>, options: Options) -> Result<Source, Error> {
    match location {
        Location::Sqlite(file) => {
            only(Owner::Nwaku, owner, "an SQLite file")?;
            #[cfg(feature = "sqlite")]
            return nwaku::sqlite::open(file, options).await;
            #[cfg(not(feature = "sqlite"))]
            Err(without("sqlite", file.display()))
        }
        Location::LevelDb(folder) => {
            only(Owner::Status, owner, "a LevelDB folder")?;
            status::leveldb::open(folder, options).await
        }
        #[cfg(feature = "postgres")]
        Location::Postgres(url) => postgres::open(&url, owner, options).await,
        #[cfg(not(feature = "postgres"))]
        Location::Postgres(url) => Err(without("postgres", url)),
    }
}

#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
fn without(engine: &str, name: impl std::fmt::Display) -> Error {
    Error::invalid(format!(
        "can't read {name}: this build is without {engine}, build it with --features {engine}"
    ))
}

fn only(owner: Owner, stated: Option<Owner>, what: &str) -> Result<(), Error> {
    match stated {
        Some(stated) if stated != owner => {
            Err(Error::invalid(format!("{what} is an archive of {owner}, not of {stated}")))
        }
        _ => Ok(()),
    }
}
