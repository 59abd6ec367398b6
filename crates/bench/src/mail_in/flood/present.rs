//! The table, the goals and the notes of floods.

use super::{Row, Tally};
use crate::report::{Goal, Report, Table, number, optional};

/// How much longer known senders may take during a flood, as a ratio of medians.
const RATIO_MAX: f64 = 2.0;
/// How much a flood may add to the private memory of the server: by default, 1,024 connections on each of two listeners, with 32
/// KiB each for what they have read.
const GROWTH_MB_MAX: f64 = 64.0;

/// Adds rows, a table, goals and notes.
pub(super) fn present(rows: &[Row], tally: &Tally, report: &mut Report) -> anyhow::Result<()> {
    report.add_rows(rows)?;
    report.tables.push(table(rows));
    for row in rows {
        let what = format!("{}, {}: times beside the flood by times alone", row.op, row.known);
        report.goals.push(Goal::at_most(what, RATIO_MAX, "", row.ratio));
    }
    for row in rows.iter().filter(|row| row.known == "smtp") {
        let growth = row.private_mb_peak.zip(row.private_mb_before).map(|(peak, before)| peak - before);
        let what = format!("{}: what the flood adds to the server's memory", row.op);
        report.goals.push(Goal::at_most(what, GROWTH_MB_MAX, "MB", growth.map(|mb| mb.max(0.0))));
    }
    report.goals.push(Goal::none("mails of known senders that were not accepted", tally.failed));
    report.goals.push(Goal::none("messages in the server beside those of known senders", tally.unexplained));
    report.goals.push(Goal::none("recipients and log-ins of floods that were accepted", tally.let_in));
    report.notes.push(format!(
        "{} mails of known senders were accepted, and {} were not{}. Nothing of a flood may be stored: the server has {} messages more or fewer than known \
         senders had accepted.",
        number(tally.accepted as f64),
        tally.failed,
        tally.first_error.as_ref().map(|error| format!(" (the first: {error})")).unwrap_or_default(),
        tally.unexplained,
    ));
    report.notes.push(
        "Floods: clients from 1,000 networks that connect again two seconds after their connection has ended. connections: they say no more than EHLO. \
         slow_talkers: a byte a second, half of them within commands and half within messages. unknown_recipients: 20 at once on each connection. \
         password_guessing: three log-ins on each connection, over TLS, half of them to accounts that exist. all_at_once: all of these together."
            .to_owned(),
    );
    report.notes.push(
        "Known senders: mails of 4 KB, each on a connection of its own, 32 a second from eight mail servers and 5 a second from three users who log in over TLS. \
         Times are from the start of the connection to the reply to the mail, without the 100 ms that each client waits for the greeting of SMTP."
            .to_owned(),
    );
    report.notes.push(
        "The server has its default limits. Set are its stores, a certificate, a name server that knows no names, and that 127.0.0.1 is a proxy which names the \
         clients: loopback itself is exempt from limits. Each scenario has a fresh server. The clients share the processors with it."
            .to_owned(),
    );
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let columns = [
        "flood",
        "known",
        "connections",
        "attempts",
        "cut off",
        "alone p50",
        "alone p99",
        "beside p50",
        "beside p99",
        "ratio",
        "MB before",
        "MB peak",
    ];
    let mut table = Table::new("Known senders beside floods, times in ms", &columns).explain(&[
        ("flood", "what its clients do"),
        ("known", "how the known senders send"),
        ("connections", "of the flood, at once"),
        ("attempts", "connections, recipients and log-ins that the flood tried"),
        ("cut off", "those that were refused, or whose connection was closed"),
        ("alone p50", "half of the mails were accepted within this time without the flood"),
        ("alone p99", "99 % of the mails, without the flood"),
        ("beside p50", "half of the mails, beside the flood"),
        ("beside p99", "99 % of the mails, beside the flood"),
        ("ratio", "of the medians: beside the flood by without it"),
        ("MB before", "private memory of the server before the first flood"),
        ("MB peak", "the most beside the flood"),
    ]);
    for row in rows {
        table.add([
            row.op.to_owned(),
            row.known.to_owned(),
            number(row.connections as f64),
            number(row.attempts as f64),
            number(row.refused as f64),
            number(row.known_alone_p50_ms),
            number(row.known_alone_p99_ms),
            number(row.known_beside_p50_ms),
            number(row.known_beside_p99_ms),
            optional(row.ratio),
            optional(row.private_mb_before),
            optional(row.private_mb_peak),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        machine::Machine,
        report::{Goal, assert_explained},
    };

    fn row(known: &'static str, ratio: f64, peak: f64) -> Row {
        Row {
            op: "connections",
            known,
            connections: 2_000,
            attempts: 2_500,
            refused: 1_476,
            known_alone_p50_ms: 5.0,
            known_alone_p99_ms: 9.0,
            known_beside_p50_ms: 5.0 * ratio,
            known_beside_p99_ms: 30.0,
            ratio: Some(ratio),
            private_mb_before: Some(40.0),
            private_mb_peak: Some(peak),
        }
    }

    #[test]
    fn goals_judge_times_memory_and_mails() {
        let mut report = Report::new("mail-in", "a test", Machine::look(".".as_ref()));
        let rows = [row("smtp", 1.5, 110.0), row("submission", 2.5, 110.0)];
        let tally =
            Tally { accepted: 100, failed: 1, first_error: Some("smtp: cut".to_owned()), ..Tally::default() };
        present(&rows, &tally, &mut report).unwrap();
        let met: Vec<Option<bool>> = report.goals.iter().map(|goal: &Goal| goal.is_met).collect();
        assert_eq!(met, [Some(true), Some(false), Some(false), Some(false), Some(true), Some(true)]);
        assert!(report.notes[0].contains("100 mails") && report.notes[0].contains("smtp: cut"));
        assert_explained(&report.tables);
    }
}
