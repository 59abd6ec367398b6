//! A Status mailserver's LevelDB: the key is timestamp, hash and topic, the value the envelope.

use std::path::PathBuf;

use tokio::sync::mpsc;

use super::message_of;
use crate::{
    Error, Extent, Options, Owner, Source,
    leveldb::Reader,
    source::{Gather, Read},
};

/// Opens the LevelDB in a folder.
pub(crate) async fn open(folder: PathBuf, options: Options) -> Result<Source, Error> {
    let after = options.after.as_ref().map(hex::decode).transpose();
    let after = after
        .map_err(|error| Error::invalid("the position to continue at is not a key").with_source(error))?;
    let opening = tokio::task::spawn_blocking(move || Reader::open(&folder, after));
    let reader = opening.await.map_err(|error| Error::invalid("the reader failed").with_source(error))??;
    let (source, put) = Source::new(Owner::Status, Some(Extent::Bytes(reader.bytes().1)));
    // It waits for the disk and for the consumer, so not on one of the runtime's own threads.
    std::thread::spawn(move || read(reader, &options, &put));
    Ok(source)
}

/// Reads everything, or until the source is dropped.
fn read(mut reader: Reader, options: &Options, put: &mpsc::Sender<Read>) {
    let mut gather = Gather::default();
    let mut after = None;
    while let Some((key, envelope)) = reader.next() {
        gather.add(message_of(&key, &envelope, options), || format!("envelope {}", hex::encode(&key)));
        after = Some(key);
        if gather.is_full() {
            gather.add_damage(reader.take_damage());
            let batch = gather.take(after.as_ref().map(hex::encode), reader.bytes().0);
            if put.blocking_send(Ok(Some(batch))).is_err() {
                return;
            }
        }
    }
    gather.add_damage(reader.take_damage());
    let last = gather.take(after.as_ref().map(hex::encode), reader.bytes().0);
    if put.blocking_send(Ok(Some(last))).is_ok() {
        let _ = put.blocking_send(Ok(None)); // fails when the source was dropped
    }
}
