//! Tests are named by the rules of `docs/design/mail-rules.md`.

use restante_records::{Config, EngineUrl, Opened, Schema, open};

use super::*;
use crate::kinds;

const DAY: u64 = 19_675;
const ROWS_MAX: usize = 10_000;

async fn store() -> Opened {
    open(Config::new(EngineUrl::Memory, Schema::new(kinds()).unwrap())).await.unwrap()
}

fn new(domain: &str, source: u8, is_pass: bool, count: u64) -> NewRow {
    let row = Row {
        domain: domain.into(),
        source: Some([192, 0, 2, source].into()),
        dkim_aligned: is_pass,
        header_from: domain.into(),
        envelope_from: "bounces.example".into(),
        dkim: vec![DkimSeen { domain: domain.into(), selector: "s".into(), result: "pass".into() }],
        spf: Some(SpfSeen {
            domain: "bounces.example".into(),
            scope: SpfScope::Mfrom,
            result: "none".into(),
        }),
        ..Row::others()
    };
    NewRow { day: DAY, row, record: Some("v=DMARC1; p=none".into()), count }
}

async fn counts(rows: &DmarcRows, domain: &str) -> Vec<u64> {
    let (mut counts, mut after) = (Vec::new(), None);
    loop {
        let page = rows.rows(DAY, domain, after).await.unwrap();
        counts.extend(page.rows.iter().map(|row| row.count));
        after = page.next;
        if after.is_none() {
            counts.sort_unstable();
            return counts;
        }
    }
}

#[tokio::test]
async fn chk21_each_message_is_counted_once_in_its_row() {
    let store = store().await;
    let rows = DmarcRows::new(store.records.clone(), ROWS_MAX);
    let mut first =
        vec![new("a.example", 1, true, 2), new("a.example", 2, false, 3), new("b.example", 1, true, 4)];
    rows.add(&mut first).await.unwrap();
    assert_eq!(first, []);
    let mut second = vec![new("a.example", 1, true, 5), new("a.example", 1, true, 6)];
    DmarcRows::new(store.records.clone(), ROWS_MAX).add(&mut second).await.unwrap();
    assert_eq!(counts(&rows, "a.example").await, [3, 13]);
    assert_eq!(counts(&rows, "b.example").await, [4]);
    assert_eq!(counts(&rows, "c.example").await, [0; 0]);
    let domains = rows.domains(DAY).await.unwrap();
    let seen = |domain: &str, passed, failed| DomainSeen { domain: domain.into(), passed, failed };
    assert_eq!(domains, [seen("a.example", 13, 3), seen("b.example", 4, 0)]);
}

#[tokio::test]
async fn chk21_servers_that_count_at_once_lose_nothing() {
    let store = store().await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let rows = DmarcRows::new(store.records.clone(), ROWS_MAX);
            tokio::spawn(async move {
                for source in 0..20 {
                    rows.add(&mut vec![new("a.example", source % 5, true, 1)]).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counts(&DmarcRows::new(store.records.clone(), ROWS_MAX), "a.example").await, [16; 5]);
}

#[tokio::test]
async fn chk21_what_is_beyond_the_rows_of_a_day_is_counted_together() {
    let store = store().await;
    let rows = DmarcRows::new(store.records.clone(), 300);
    let many =
        |count| (0..400_u16).map(|n| new(&format!("d{n}.example"), 1, false, count)).collect::<Vec<_>>();
    rows.add(&mut many(1)).await.unwrap();
    assert_eq!(counts(&rows, "").await, [100]);
    rows.add(&mut many(2)).await.unwrap();
    assert_eq!(counts(&rows, "").await, [300]);
    let domains = rows.domains(DAY).await.unwrap();
    assert_eq!(domains.len(), 301);
    assert_eq!(domains.iter().map(|seen| seen.failed).sum::<u64>(), 1_200);
    let mut tomorrow = new("d399.example", 1, false, 1);
    tomorrow.day += 1;
    rows.add(&mut vec![tomorrow]).await.unwrap();
    assert_eq!(rows.domains(DAY + 1).await.unwrap().len(), 1, "another day has rows of its own");
    assert_eq!(rows.days(10).await.unwrap(), [DAY + 1, DAY]);
}

#[tokio::test]
async fn chk21_the_record_that_was_seen_last_counts() {
    let store = store().await;
    let rows = DmarcRows::new(store.records.clone(), ROWS_MAX);
    let with = |record: &str| vec![NewRow { record: Some(record.into()), ..new("a.example", 1, true, 1) }];
    rows.add(&mut with("v=DMARC1; p=none")).await.unwrap();
    rows.add(&mut with("v=DMARC1; p=reject")).await.unwrap();
    rows.add(&mut vec![NewRow { record: None, ..new("a.example", 1, true, 1) }]).await.unwrap();
    rows.add(&mut with(&"x".repeat(3_000))).await.unwrap();
    let page = rows.rows(DAY, "a.example", None).await.unwrap();
    assert_eq!(page.rows.len(), 1);
    assert_eq!((page.rows[0].record.as_deref(), page.rows[0].count), (Some("v=DMARC1; p=reject"), 4));
}

#[tokio::test]
async fn chk22_a_report_is_noted_and_old_days_are_forgotten() {
    let store = store().await;
    let rows = DmarcRows::new(store.records.clone(), ROWS_MAX);
    rows.add(&mut vec![new("a.example", 1, true, 1), new("a.example", 2, true, 1)]).await.unwrap();
    assert!(!rows.is_reported(DAY, "a.example").await.unwrap());
    rows.note_reported(DAY, "a.example", true).await.unwrap();
    rows.note_reported(DAY, "b.example", false).await.unwrap();
    let noted = [("a.example".to_owned(), true), ("b.example".to_owned(), false)];
    assert_eq!(rows.reported(DAY).await.unwrap(), noted.into());
    assert!(rows.reported(DAY + 1).await.unwrap().is_empty());
    assert!(rows.is_reported(DAY, "a.example").await.unwrap());
    assert!(!rows.is_reported(DAY + 1, "a.example").await.unwrap());
    assert_eq!(rows.forget_before(DAY).await.unwrap(), 0);
    assert_eq!(rows.forget_before(DAY + 1).await.unwrap(), 4);
    assert!(rows.days(10).await.unwrap().is_empty());
    assert!(!rows.is_reported(DAY, "a.example").await.unwrap());
}
