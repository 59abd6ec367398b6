//! What the checks of a message cost.

mod letter;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use bytes::Bytes;
use restante_checks::{Authentication, Authenticator, DmarcPolicy, Outcome, Peer};
use restante_core::SystemClock;
use serde::Serialize;

use crate::{
    machine::processor_time,
    measure::{Latencies, rounded},
    report::{Goal, Report, Table, number, optional},
};
use letter::Keys;

const LENGTH: Duration = Duration::from_secs(2);
const QUICK: Duration = Duration::from_millis(50);
/// Messages sent before the measured ones.
const WARM_UP: usize = 20;
/// What restante promises for a mail of 4 KB with two signatures.
const CHECK_US_MAX: f64 = 2_000.0;
const BODY_BYTES: usize = 3_200;
const LARGE_BYTES: usize = 10 << 20;

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
struct Row {
    op: &'static str,
    bytes: u64,
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Processor time of a message, of all threads.
    server_cpu_us: Option<f64>,
}

/// A message that is checked, and the expected results.
struct Case {
    op: &'static str,
    raw: Bytes,
    sender: &'static str,
    dmarc: Outcome,
    signatures: &'static [Outcome],
}

/// Measures the checks of each kind of message, and adds them to the report.
pub(super) async fn measure(is_quick: bool, report: &mut Report) -> anyhow::Result<()> {
    let keys = Keys::generate()?;
    let authenticator =
        Authenticator::new(Arc::new(keys.names()?), Arc::new(SystemClock), Duration::from_secs(20));
    let mut rows = Vec::new();
    for case in cases(&keys)? {
        rows.push(case.measure(&authenticator, if is_quick { QUICK } else { LENGTH }).await?);
    }
    present(&rows, report)
}

fn cases(keys: &Keys) -> anyhow::Result<Vec<Case>> {
    let mut changed = keys.mail(BODY_BYTES, 2)?.to_vec();
    changed.extend_from_slice(b"Unsubscribe\r\n");
    let (sender, other) = ("bounces@bank.example", "someone@other.example");
    let both = &[Outcome::Pass, Outcome::Pass];
    Ok(vec![
        Case {
            op: "unsigned",
            raw: keys.mail(BODY_BYTES, 0)?,
            sender: other,
            dmarc: Outcome::Fail,
            signatures: &[],
        },
        Case { op: "spf", raw: keys.mail(BODY_BYTES, 0)?, sender, dmarc: Outcome::Pass, signatures: &[] },
        Case {
            op: "one_signature",
            raw: keys.mail(BODY_BYTES, 1)?,
            sender,
            dmarc: Outcome::Pass,
            signatures: &[Outcome::Pass],
        },
        Case {
            op: "two_signatures",
            raw: keys.mail(BODY_BYTES, 2)?,
            sender,
            dmarc: Outcome::Pass,
            signatures: both,
        },
        Case {
            op: "changed",
            raw: changed.into(),
            sender: other,
            dmarc: Outcome::Fail,
            signatures: &[Outcome::Fail, Outcome::Fail],
        },
        Case { op: "large", raw: keys.mail(LARGE_BYTES, 2)?, sender, dmarc: Outcome::Pass, signatures: both },
    ])
}

impl Case {
    async fn measure(&self, authenticator: &Authenticator, length: Duration) -> anyhow::Result<Row> {
        for _ in 0..WARM_UP {
            let found = self.check(authenticator).await?;
            let signatures: Vec<Outcome> = found.dkim.iter().map(|signature| signature.outcome).collect();
            let is_right = found.dmarc == self.dmarc && signatures == self.signatures;
            ensure!(is_right && found.policy == DmarcPolicy::Reject, "{}: found {found:?}", self.op);
        }
        let mut times = Latencies::default();
        let (begun, worked) = (Instant::now(), processor_time("self"));
        while begun.elapsed() < length {
            let start = Instant::now();
            self.check(authenticator).await?;
            times.record(start.elapsed());
        }
        let duration = begun.elapsed();
        let cpu = processor_time("self").zip(worked).map(|(now, before)| now.saturating_sub(before));
        let count = times.len().max(1) as f64;
        Ok(Row {
            op: self.op,
            bytes: self.raw.len() as u64,
            per_s: rounded(count / duration.as_secs_f64().max(f64::MIN_POSITIVE)),
            p50_ms: rounded(times.median_ms()),
            p99_ms: rounded(times.p99_ms()),
            server_cpu_us: cpu.map(|cpu| rounded(cpu.as_secs_f64() * 1e6 / count)),
        })
    }

    async fn check(&self, authenticator: &Authenticator) -> anyhow::Result<Authentication> {
        let peer =
            Peer { address: "192.0.2.7".parse()?, hello: "mail.bank.example".to_owned(), is_tls: true };
        Ok(authenticator.authenticate(&peer, self.sender, &self.raw).await)
    }
}

/// Adds rows, a table and goals.
fn present(rows: &[Row], report: &mut Report) -> anyhow::Result<()> {
    report.add_rows(rows)?;
    let columns = ["op", "bytes", "/s", "p50 ms", "p99 ms", "us of a message"];
    let mut table = Table::new(
        "Checks of a message: SPF, DKIM, ARC and DMARC, one after the other, with all names in memory",
        &columns,
    )
    .explain(&[
        ("bytes", "of the message"),
        ("/s", "messages a second, one after the other"),
        ("us of a message", "processor time of all threads"),
    ]);
    for row in rows {
        table.add([
            row.op.to_owned(),
            number(row.bytes as f64),
            number(row.per_s),
            number(row.p50_ms),
            number(row.p99_ms),
            optional(row.server_cpu_us),
        ]);
    }
    report.tables.push(table);
    let signed = rows.iter().find(|row| row.op == "two_signatures").and_then(|row| row.server_cpu_us);
    let what = "processor time of a check of 4 KB with two signatures";
    report.goals.push(Goal::at_most(what, CHECK_US_MAX, "us", signed));
    report.notes.push(
        "unsigned: a stranger sends with the bank's name. spf: a server of the bank sends. one_signature, two_signatures: RSA of 2,048 bits, and \
         also Ed25519. changed: the body was changed on the way. large: 10 MB with both signatures."
            .to_owned(),
    );
    Ok(())
}
