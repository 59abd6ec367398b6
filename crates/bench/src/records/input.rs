//! How well a compressor alone compresses the records, to judge the ratios of a store by.

use anyhow::{Context, ensure};
use restante_records::AccountId;
use serde::Serialize;

use super::mail::{Mails, in_one_piece};
use crate::measure::rounded;

/// Records that are compressed, and others that train the dictionary.
const RECORDS: u64 = 3_000;
/// The size of the dictionary, and the level: those of the measurements that the layout was chosen with.
const DICTIONARY_BYTES: usize = 64 << 10;
const LEVEL: i32 = 3;

/// Compressed sizes of single records.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Input {
    table: &'static str,
    pub(super) entities: u64,
    /// Mean bytes of a record.
    pub(super) record_bytes: f64,
    /// The same by zstd at level 3.
    pub(super) zstd_bytes: f64,
    /// The same with a dictionary of 64 KiB, trained on other records.
    pub(super) dictionary_bytes: f64,
}

/// Compresses the records of a seed.
pub(super) fn look(seed: u64) -> anyhow::Result<Input> {
    let mails = Mails { seed, account: AccountId(1), inbox_every: 2 };
    let records: Vec<Vec<u8>> = (0..RECORDS).map(|n| bytes(&mails, n)).collect();
    let others: Vec<Vec<u8>> = (RECORDS..2 * RECORDS).map(|n| bytes(&mails, n)).collect();
    let dictionary =
        zstd::dict::from_samples(&others, DICTIONARY_BYTES).context("can't make a dictionary")?;
    let mut plain = zstd::bulk::Compressor::new(LEVEL)?;
    let mut trained = zstd::bulk::Compressor::with_dictionary(LEVEL, &dictionary)?;
    let (mut by_itself, mut by_dictionary) = (0, 0);
    for record in &records {
        by_itself += plain.compress(record)?.len();
        by_dictionary += trained.compress(record)?.len();
    }
    let all: usize = records.iter().map(Vec::len).sum();
    ensure!(all > 0, "the records are empty");
    let mean = |bytes: usize| rounded(bytes as f64 / RECORDS as f64);
    Ok(Input {
        table: "input",
        entities: RECORDS,
        record_bytes: mean(all),
        zstd_bytes: mean(by_itself),
        dictionary_bytes: mean(by_dictionary),
    })
}

fn bytes(mails: &Mails, n: u64) -> Vec<u8> {
    in_one_piece(&mails.create(n).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of those measurements had 602 bytes, 445 by zstd alone and 276 with a dictionary.
    #[test]
    fn records_have_the_size_and_density_that_the_layout_was_chosen_with() {
        let input = look(0).unwrap();
        assert!((597.0..607.0).contains(&input.record_bytes), "{input:?}");
        assert!((430.0..460.0).contains(&input.zstd_bytes), "{input:?}");
        assert!((266.0..286.0).contains(&input.dictionary_bytes), "{input:?}");
    }
}
