//! The mails that KDE Sink's benchmark stores, and the figures that its authors published.
//!
//! `dummyresourcewritebenchmark` stores mails of one subject and a tiny MIME body through all of Sink, in commits of a
//! hundred: 184 bytes each in the encodings of Sink and of this module. Sink has eight indexes of a mail; six of ours
//! answer the same queries:
//!
//! | Sink's index | ours |
//! |---|---|
//! | date, sorted | `date` |
//! | folder | `folder`, its first property alone |
//! | folder, sorted by date | `folder` |
//! | message id | `message_id` |
//! | message id -> thread | `message_id`; the thread is a property of that mail |
//! | thread -> message ids | `thread` |
//! | message id of the parent | `parent` |
//! | draft | `draft` |
//!
//! Every mail has a value for each of them, so it has an entry in all six, as in all eight of Sink's.

use restante_records::{Body, Change, Index, IndexSchema, Kind, KindSchema, Properties, Property, Schema};

use crate::random::Random;

const MAIL: Kind = Kind(1);
const DATE: Property = Property(1);
const FOLDER: Property = Property(2);
const MESSAGE: Property = Property(3);
const PARENT: Property = Property(4);
const THREAD: Property = Property(5);
const DRAFT: Property = Property(6);

/// Bytes of a mail, in Sink and here.
pub(super) const MAIL_BYTES: u64 = 184;
/// Changes of a commit: the batch that Sink takes from its queue.
pub(super) const BATCH: u64 = 100;

pub(super) fn schema() -> anyhow::Result<Schema> {
    let mail = KindSchema::new(MAIL, "mail")
        .property(DATE, "date")
        .property(FOLDER, "folder")
        .property(MESSAGE, "message_id")
        .property(PARENT, "parent")
        .property(THREAD, "thread")
        .property(DRAFT, "draft")
        .index(IndexSchema::ordered(Index(1), "date", &[DATE]))
        .index(IndexSchema::ordered(Index(2), "folder", &[FOLDER, DATE]))
        .index(IndexSchema::scattered(Index(3), "message_id", &[MESSAGE]))
        .index(IndexSchema::scattered(Index(4), "parent", &[PARENT]))
        .index(IndexSchema::ordered(Index(5), "thread", &[THREAD]))
        .index(IndexSchema::ordered(Index(6), "draft", &[DRAFT]));
    Ok(Schema::new(vec![mail])?)
}

const SUBJECT: &[u8] = b"Some subject";
const MIME: &[u8] =
    b"Content-Type: text/plain\r\nSubject: Some subject\r\nTo: doe@example.org\r\n\r\nThis is the body\r\n";
/// The first mail's date, and the one folder.
const FIRST: u64 = 1_532_700_000;
const FOLDER_ID: u64 = 1;

/// The creation of the n-th mail. Only uid, message id and date differ between mails.
pub(super) fn create(seed: u64, n: u64) -> Change {
    let mut random = Random::new(seed, (1 << 62) ^ n);
    let (message, parent) = (random.bits(), random.bits());
    let mut uid = [0; 16];
    random.fill(&mut uid);
    let date = FIRST + n;
    let mut body = Vec::with_capacity(MAIL_BYTES as usize);
    body.extend_from_slice(&uid);
    body.extend_from_slice(&FOLDER_ID.to_be_bytes());
    body.extend_from_slice(&date.to_be_bytes());
    body.push(0); // unread, unimportant, no draft
    add(&mut body, SUBJECT);
    add(&mut body, format!("{message:016x}@kube.example").as_bytes());
    add(&mut body, format!("{parent:016x}").as_bytes());
    add(&mut body, MIME);
    let properties = Properties::default()
        .with(DATE, date)
        .with(FOLDER, FOLDER_ID)
        .with(MESSAGE, message)
        .with(PARENT, parent)
        .with(THREAD, n + 1)
        .with(DRAFT, 0);
    Change::Create { kind: MAIL, body: Body::new(body), properties }
}

fn add(body: &mut Vec<u8>, text: &[u8]) {
    body.push(text.len() as u8); // all are shorter than 256
    body.extend_from_slice(text);
}

/// The figures of Sink's benchmarks at one revision of Sink.
pub(super) struct Sink {
    pub(super) name: &'static str,
    /// The first table: 5,000 mails. KiB, and bytes on disk divided by bytes of mails.
    pub(super) rss_kib: f64,
    pub(super) on_disk_kib: f64,
    pub(super) amplification: f64,
    /// The second table: 1,000 mails. Bytes, and bytes on disk divided by bytes of all keys and values.
    pub(super) pages: f64,
    pub(super) used_bytes: f64,
    pub(super) total_bytes: f64,
    pub(super) ratio: f64,
}

/// The published columns, and those of Sink built at three revisions and run unchanged (1855b835, af91a187, 46313049): medians
/// of four runs. For the second patch the authors published graphs only.
pub(super) const SINK: [Sink; 5] = [
    Sink {
        name: "published: before",
        rss_kib: 40_700.0,
        on_disk_kib: 10_788.0,
        amplification: 12.0075,
        pages: 760.0,
        used_bytes: 1_425_408.0,
        total_bytes: 3_293_184.0,
        ratio: 3.63268,
    },
    Sink {
        name: "published: binary keys",
        rss_kib: 39_112.0,
        on_disk_kib: 8_836.0,
        amplification: 9.83485,
        pages: 603.0,
        used_bytes: 1_191_936.0,
        total_bytes: 2_650_112.0,
        ratio: 3.51402,
    },
    Sink {
        name: "Sink run: before",
        rss_kib: 45_542.0,
        on_disk_kib: 10_722.0,
        amplification: 11.93,
        pages: 737.0,
        used_bytes: 1_392_640.0,
        total_bytes: 3_190_784.0,
        ratio: 3.52,
    },
    Sink {
        name: "Sink run: binary keys",
        rss_kib: 43_704.0,
        on_disk_kib: 9_010.0,
        amplification: 10.03,
        pages: 609.0,
        used_bytes: 1_191_936.0,
        total_bytes: 2_662_400.0,
        ratio: 3.55,
    },
    Sink {
        name: "Sink run: ids apart",
        rss_kib: 42_124.0,
        on_disk_kib: 7_668.0,
        amplification: 8.54,
        pages: 454.0,
        used_bytes: 1_000_000.0,
        total_bytes: 2_035_000.0,
        ratio: 2.54,
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_mail_has_as_many_bytes_as_in_sink_and_is_in_every_index() {
        let schema = schema().unwrap();
        let kind = schema.kind(MAIL).unwrap();
        let mut bodies = BTreeSet::new();
        for n in 0..500 {
            let Change::Create { body, properties, .. } = create(0, n) else { panic!("not a creation") };
            assert_eq!(body.bytes.len() as u64, MAIL_BYTES);
            assert!(
                kind.indexes
                    .iter()
                    .all(|index| index.parts.iter().all(|part| properties.values(*part).count() == 1))
            );
            bodies.insert(body.bytes);
        }
        assert_eq!(bodies.len(), 500);
    }

    #[test]
    fn the_figures_of_sink_are_consistent() {
        for sink in &SINK {
            // The first published table divides kibibytes by 5,000 x 184 bytes; medians of runs don't divide exactly.
            let by_mails = sink.on_disk_kib * 1_024.0 / (5_000 * MAIL_BYTES) as f64;
            assert!((by_mails - sink.amplification).abs() < 0.01, "{}: {by_mails}", sink.name);
            assert!(sink.pages * 4_096.0 >= sink.used_bytes, "{}", sink.name);
        }
    }
}
