//! The server is killed at each stage of outgoing mail: while it is submitted, while it is queued, while it is sent, and while a
//! failure is reported.

use std::{collections::BTreeMap, path::Path, thread, time::Duration};

use serde_json::json;

use super::{
    Sending, SubmissionClient, USER,
    sink::{Sink, Step},
    transmitted,
};
use crate::{
    mail::make_account,
    support::{folder, wait_until},
};

/// How often the server is killed at each stage, unless `RESTANTE_KILLS` sets another number for all of them together.
const ROUNDS: usize = 2;
/// Emails that are read at once.
const PAGE: usize = 50;
const STAGES: [Stage; 4] = [Stage::Submission, Stage::Queueing, Stage::Sending, Stage::Bouncing];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// A client transmits a message.
    Submission,
    /// It was accepted, and nothing is sent yet.
    Queueing,
    /// The other server has received the message, and has not answered.
    Sending,
    /// The other server has refused the message.
    Bouncing,
}

/// A mail to another server and to the own account.
struct Mail {
    stage: Stage,
    subject: String,
    /// Its recipient elsewhere.
    to: String,
    is_accepted: bool,
}

impl Mail {
    fn new(stage: Stage, number: usize) -> Self {
        let begin = if stage == Stage::Bouncing { "refused" } else { "to" };
        let (subject, to) = (format!("mail{number}"), format!("{begin}{number}@example.net"));
        Self { stage, subject, to, is_accepted: false }
    }

    fn text(&self) -> String {
        let Self { subject, to, .. } = self;
        format!("From: Alice <{USER}>\nTo: {to}, {USER}\nSubject: {subject}\n\nA text.\n.A dot.\n")
    }
}

fn rounds() -> usize {
    let kills = std::env::var("RESTANTE_KILLS").ok().map(|kills| kills.parse::<usize>().unwrap());
    kills.map_or(ROUNDS, |kills| kills.div_ceil(STAGES.len()))
}

/// Kills at different moments of a stage.
fn pause(round: usize) {
    thread::sleep(Duration::from_millis(7 * (round as u64 / 2 % 12)));
}

fn start(folder: &Path, sink: &Sink) -> Sending {
    let settings = ["MESSAGES_PER_HOUR_MAX", "RECIPIENTS_PER_DAY_MAX"]
        .map(|name| format!("RESTANTE_SUBMISSION__{name}"));
    let settings = settings.each_ref().map(|name| (name.as_str(), "100000"));
    Sending::start_with(folder, sink, &settings)
}

/// Starts a server, makes it process a mail up to a stage, and kills it.
fn kill_at(folder: &Path, sink: &Sink, mail: &mut Mail, round: usize) {
    let sending = start(folder, sink);
    let (to, text, is_even) = (mail.to.clone(), mail.text(), round.is_multiple_of(2));
    let submit = || {
        let reply = sending.submit(&[&to, USER], &text);
        assert!(reply.starts_with("250 "), "{reply}");
    };
    match mail.stage {
        Stage::Submission => {
            let mut client = SubmissionClient::begin(sending.submission, &[&to, USER]).unwrap();
            let whole = transmitted(&text);
            if is_even {
                client.write(&whole[..whole.len() / 2]).unwrap();
            } else {
                client.write(&whole).unwrap();
                pause(round);
            }
            sending.server.kill();
            mail.is_accepted = client.reply().is_ok_and(|reply| reply.starts_with("250 "));
            return;
        }
        Stage::Queueing => {
            sink.set_silent(true);
            if is_even {
                submit();
            } else {
                sending.submit_by_jmap(&text);
            }
        }
        Stage::Sending => {
            let reached = sink.hold(if is_even { Step::Taken } else { Step::Data }, &to);
            submit();
            reached.recv().unwrap();
        }
        Stage::Bouncing => {
            let reached = sink.hold(Step::Refused, &to);
            submit();
            reached.recv().unwrap();
            pause(round);
        }
    }
    mail.is_accepted = true;
    sending.server.kill();
    sink.set_silent(false);
}

/// The emails in the inbox: subjects and texts.
fn inbox(sending: &Sending) -> Vec<(String, String)> {
    let found = sending.calls(&[("Mailbox/query", json!({"filter": {"role": "inbox"}}))]);
    let inbox = &found[0][1]["ids"][0];
    let mut emails = Vec::new();
    loop {
        let filter = json!({"inMailbox": inbox});
        let query = json!({"filter": filter, "position": emails.len(), "limit": PAGE});
        let ids = json!({"resultOf": "0", "name": "Email/query", "path": "/ids"});
        let get = json!({"#ids": ids, "properties": ["subject", "textBody", "bodyValues"], "fetchTextBodyValues": true});
        let answers = sending.calls(&[("Email/query", query), ("Email/get", get)]);
        let page = answers[1][1]["list"].as_array().unwrap();
        emails.extend(page.iter().map(|email| {
            let values = email["bodyValues"].as_object().unwrap().values();
            let text: Vec<&str> = values.filter_map(|value| value["value"].as_str()).collect();
            (email["subject"].as_str().unwrap_or_default().to_owned(), text.concat())
        }));
        if page.len() < PAGE {
            return emails;
        }
    }
}

/// What was accepted is sent, once unless the answer to it was lost; it is in the own account once, and a refused one is reported
/// once.
fn verify(mail: &Mail, sink: &Sink, inbox: &[(String, String)]) {
    let Mail { stage, subject, to, is_accepted } = mail;
    let taken: Vec<_> =
        sink.taken().into_iter().filter(|taken| taken.field("Subject") == Some(subject)).collect();
    let own = inbox.iter().filter(|(found, _)| found == subject).count();
    let reports = inbox.iter().filter(|(_, text)| text.contains(to.as_str())).count();
    let what = format!("{subject}, killed at {stage:?}: {taken:?}, {own} in the own account");
    assert!(own == 1 || (own == 0 && !is_accepted), "{what}");
    if *stage == Stage::Bouncing {
        assert_eq!((taken.len(), reports), (0, 1), "{what}");
        return;
    }
    assert_eq!(taken.is_empty(), own == 0, "{what}");
    let repeated = taken.split_last().map_or(&[][..], |(_, before)| before);
    assert!(repeated.iter().all(|copy| !copy.is_noted), "sent again though its answer was noted: {what}");
    assert!(taken.iter().all(|copy| copy.recipients == [to.as_str()]), "{what}");
}

#[test]
fn qu1_what_was_accepted_survives_kills_at_each_stage() {
    let (_guard, folder) = folder();
    let sink = Sink::start();
    make_account(&folder);
    let mut mails: Vec<Mail> = Vec::new();
    let mut kills: BTreeMap<Stage, usize> = BTreeMap::new();
    for round in 0..rounds() {
        for stage in STAGES {
            let mut mail = Mail::new(stage, mails.len());
            kill_at(&folder, &sink, &mut mail, round);
            *kills.entry(stage).or_default() += 1;
            mails.push(mail);
        }
    }
    println!("kills by stage: {kills:?}");
    let sending = start(&folder, &sink);
    let is_sent =
        |mail: &Mail| sink.taken().iter().any(|taken| taken.field("Subject") == Some(&mail.subject));
    let to_send = || mails.iter().filter(|mail| mail.is_accepted && mail.stage != Stage::Bouncing);
    // What was submitted by JMAP is queued after the start. A claim of a killed server expires with its lease.
    wait_until("what was accepted is sent", || to_send().all(is_sent));
    wait_until("the queue is empty", || sending.queue(&folder, &["list"]).is_empty());
    let inbox = inbox(&sending);
    for mail in &mails {
        verify(mail, &sink, &inbox);
    }
    assert_eq!(sending.server.stop().code(), Some(0));
}
