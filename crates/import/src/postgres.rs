//! Reads a table of PostgreSQL: one read-only transaction, which sees the database as of its start, with a
//! cursor, so that neither side buffers more than a few rows.

use std::time::Duration;

use restante_archive::{PostgresOptions, PostgresUrl};
use tokio::sync::mpsc;
use tokio_postgres::{Client, Row};

use crate::{
    Error, Extent, Options, Owner, Source,
    convert::{Converted, Refusal},
    nwaku,
    source::{Gather, Read},
    status,
};

/// How long connecting may take, unless the URL sets another time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows of one fetch. nwaku writes bodies in hex: of its largest, these are 150 MB.
const FETCH_ROWS: usize = 500;

/// A table that is read row by row.
pub(crate) trait Rows: Send + 'static {
    /// The table's name.
    fn table(&self) -> &'static str;
    /// The query for all remaining rows.
    fn select(&self) -> String;
    /// The message of a row.
    fn convert(&mut self, row: &Row) -> Result<Converted, Refusal>;
    /// The name of the last row in messages.
    fn name(&self, row: &Row) -> String;
    /// The position after the last row.
    fn after(&self) -> Option<String>;
}

/// Opens the archive in a database.
pub(crate) async fn open(url: &PostgresUrl, owner: Option<Owner>, options: Options) -> Result<Source, Error> {
    let client = connect(url).await?;
    let failed = |error| failed("read", url, error);
    client.batch_execute(&begin(url)).await.map_err(failed)?;
    let found = find(&client, owner).await.map_err(failed)?;
    match found.as_slice() {
        [(Owner::Nwaku, table)] => {
            let columns = columns(&client, table).await.map_err(failed)?;
            read_in_task(client, url, Owner::Nwaku, nwaku::postgres::Messages::new(table, &columns, options)?)
                .await
        }
        [(Owner::Status, _)] => {
            let rows = status::postgres::Envelopes::new(options)?;
            read_in_task(client, url, Owner::Status, rows).await
        }
        [] => {
            let owners = owner.map_or("nwaku or a Status mailserver".to_owned(), |owner| owner.to_string());
            Err(Error::invalid(format!(
                "{url} has no archive of {owners}: there is no table {}; if it is in another schema, add schema=<name>",
                candidates(owner).map(|(_, table)| table).collect::<Vec<_>>().join(", ")
            )))
        }
        _ => {
            let tables = found.iter().map(|(_, table)| *table).collect::<Vec<_>>().join(" and ");
            Err(Error::invalid(format!(
                "{url} has the tables {tables}: name the server that wrote the archive"
            )))
        }
    }
}

async fn connect(url: &PostgresUrl) -> Result<Client, Error> {
    let options = PostgresOptions::new(url).map_err(|error| Error::invalid(error.to_string()))?;
    let tls = options.connector().map_err(|error| Error::invalid(error.to_string()))?;
    let mut config = options.config;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    // As psql does: every user of the machine can read a password on the command line.
    if config.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        config.password(password);
    }
    if config.get_application_name().is_none() {
        config.application_name("restante import");
    }
    let (client, connection) =
        Box::pin(config.connect(tls)).await.map_err(|error| failed("reach", url, error))?;
    tokio::spawn(async move {
        let _ = connection.await; // the next query reports its error
    });
    Ok(client)
}

fn failed(what: &str, url: &PostgresUrl, error: tokio_postgres::Error) -> Error {
    Error::unavailable(format!("can't {what} {url}: {}", describe(&error))).with_source(error)
}

/// The server's message, or the error of the connection.
fn describe(error: &tokio_postgres::Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    let said = error.as_db_error().map(|said| said.message().to_owned());
    said.or(source).unwrap_or_else(|| error.to_string())
}

/// Begins the transaction. A planner that expects all rows to be fetched would sort the whole table first, and a server that
/// ends idle transactions would end this one while a batch is stored.
fn begin(url: &PostgresUrl) -> String {
    let path = match url.schema() {
        "restante" => String::new(), // the default of a URL without a schema
        schema => format!("SET LOCAL search_path TO {schema};"),
    };
    format!(
        "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0; \
         SET LOCAL idle_in_transaction_session_timeout = 0; \
         SET LOCAL cursor_tuple_fraction = 0.0001; {path}"
    )
}

/// The tables that identify archives.
fn candidates(owner: Option<Owner>) -> impl Iterator<Item = (Owner, &'static str)> {
    let tables = nwaku::TABLES.iter().map(|table| (Owner::Nwaku, *table));
    let all = tables.chain([(Owner::Status, status::postgres::TABLE)]);
    all.filter(move |(one, _)| owner.is_none_or(|owner| owner == *one))
}

async fn find(
    client: &Client,
    owner: Option<Owner>,
) -> Result<Vec<(Owner, &'static str)>, tokio_postgres::Error> {
    let mut found = Vec::new();
    for (owner, table) in candidates(owner) {
        let row = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await?;
        if row.try_get(0)? {
            found.push((owner, table));
        }
    }
    Ok(found)
}

/// The columns of a table, and whether each holds bytes rather than text.
async fn columns(client: &Client, table: &str) -> Result<Vec<(String, bool)>, tokio_postgres::Error> {
    let rows = client
        .query(
            "SELECT attname::text, atttypid = 'bytea'::regtype FROM pg_attribute \
             WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
            &[&table],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Reads the rows in a task, which ends when the source is dropped.
async fn read_in_task(
    client: Client,
    url: &PostgresUrl,
    owner: Owner,
    rows: impl Rows,
) -> Result<Source, Error> {
    let total = estimate(&client, rows.table()).await.map_err(|error| failed("read", url, error))?;
    let (source, put) = Source::new(owner, total.map(Extent::Rows));
    let url = url.clone();
    tokio::spawn(async move {
        let end = read(&client, &url, rows, &put).await.map(|()| None);
        let _ = put.send(end).await; // fails when the source was dropped
    });
    Ok(source)
}

/// The approximate number of rows, from the server's statistics: counting them would take long.
async fn estimate(client: &Client, table: &str) -> Result<Option<u64>, tokio_postgres::Error> {
    let row = client
        .query_one(
            "SELECT sum(greatest(class.reltuples, 0))::bigint \
             FROM pg_partition_tree(to_regclass($1)) AS part JOIN pg_class AS class ON class.oid = part.relid \
             WHERE part.isleaf",
            &[&table],
        )
        .await?;
    let count: Option<i64> = row.try_get(0)?;
    Ok(count.and_then(|count| u64::try_from(count).ok()).filter(|count| *count > 0))
}

async fn read(
    client: &Client,
    url: &PostgresUrl,
    mut rows: impl Rows,
    put: &mpsc::Sender<Read>,
) -> Result<(), Error> {
    let failed = |error| failed("read", url, error);
    let declare = format!("DECLARE rows NO SCROLL CURSOR FOR {}", rows.select());
    client.batch_execute(&declare).await.map_err(failed)?;
    let fetch = client.prepare(&format!("FETCH {FETCH_ROWS} FROM rows")).await.map_err(failed)?;
    let mut gather = Gather::default();
    let mut done = 0;
    loop {
        let fetched = client.query(&fetch, &[]).await.map_err(failed)?;
        done += fetched.len() as u64;
        for row in &fetched {
            let converted = rows.convert(row);
            gather.add(converted, || rows.name(row));
        }
        let is_end = fetched.is_empty();
        if gather.is_full() || is_end {
            let is_open = put.send(Ok(Some(gather.take(rows.after(), done)))).await.is_ok();
            if is_end || !is_open {
                return Ok(());
            }
        }
    }
}
