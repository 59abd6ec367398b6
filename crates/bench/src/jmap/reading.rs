//! What clients of JMAP request.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{
    caller::Caller,
    corpus::{Corpus, term},
    fill::User,
    load::Client,
};
use crate::random::Random;

/// Emails of a page.
const PAGE: u64 = 20;
/// Pages begin among this many of the newest emails.
const NEWEST: u64 = 10_000;
/// One of this many requests follows a change.
const CHANGE_EVERY: u64 = 10;
/// Emails whose keywords change, all among the newest.
const CHANGED: u64 = 1_000;
/// What a list of emails shows.
const LISTED: &str = "[\"id\",\"threadId\",\"mailboxIds\",\"keywords\",\"hasAttachment\",\"from\",\"subject\",\"receivedAt\",\
                      \"size\",\"preview\"]";

/// What a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A page of the inbox, newest first, and what a list shows of its emails.
    Query20,
    /// The same by threads, in four calls.
    ThreadChain,
    /// Changes one keyword of one email.
    Flag,
    /// Requests changes when there are none.
    Changes,
    /// All mailboxes.
    Mailboxes,
    /// The newest emails of the inbox that have a word.
    Text,
}

impl Op {
    /// The name in rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Query20 => "query20",
            Self::ThreadChain => "thread_chain",
            Self::Flag => "flag",
            Self::Changes => "changes",
            Self::Mailboxes => "mailboxes",
            Self::Text => "text",
        }
    }
}

/// A client of one account.
pub(super) struct Reader {
    caller: Caller,
    op: Op,
    emails: u64,
    mailboxes: u64,
    inbox: String,
    /// The emails that this client alone changes.
    own: Vec<String>,
    changes: usize,
    state: String,
    random: Random,
    is_checked: bool,
}

/// Clients of one account, with a connection each.
pub(super) async fn readers(
    address: SocketAddr,
    user: &User,
    op: Op,
    corpus: Corpus,
    count: u64,
) -> anyhow::Result<Vec<Reader>> {
    let mut readers = Vec::new();
    for number in 0..count {
        let caller = Caller::open(address, &user.token).await?;
        let mut reader = Reader {
            caller,
            op,
            emails: user.emails,
            mailboxes: user.mailboxes,
            inbox: String::new(),
            own: Vec::new(),
            changes: 0,
            state: String::new(),
            random: corpus.terms(number),
            is_checked: false,
        };
        reader.prepare(number, count).await?;
        readers.push(reader);
    }
    Ok(readers)
}

impl Client for Reader {
    async fn once(&mut self) -> anyhow::Result<Duration> {
        let is_page = matches!(self.op, Op::Query20 | Op::ThreadChain);
        if is_page && self.random.below(CHANGE_EVERY) == 0 {
            let change = self.change()?;
            self.caller.ask(&change).await?;
        }
        let calls = match self.op {
            Op::Query20 => self.page(false),
            Op::ThreadChain => self.page(true),
            Op::Flag => self.change()?,
            Op::Changes => self.call("Email/changes", &format!(",\"sinceState\":\"{}\"", self.state)),
            Op::Mailboxes => self.call("Mailbox/get", ",\"ids\":null"),
            Op::Text => self.search(),
        };
        let time = self.caller.ask(&calls).await?;
        if !self.is_checked {
            self.is_checked = true;
            self.check()?;
        }
        Ok(time)
    }
}

impl Reader {
    /// Changes a keyword; returns the state of the emails afterwards.
    pub(super) async fn change_to_state(&mut self) -> anyhow::Result<String> {
        let change = self.change()?;
        self.caller.ask(&change).await?;
        let responses = self.caller.responses()?;
        let set = responses.first().context("a change has no response")?;
        Ok(member(set, "newState").as_str().context("Email/set has no newState")?.to_owned())
    }

    /// Finds the inbox, the emails that this client changes, and the state.
    async fn prepare(&mut self, number: u64, count: u64) -> anyhow::Result<()> {
        let mailboxes = self.caller.call("Mailbox/get", ",\"ids\":null,\"properties\":[\"role\"]").await?;
        let inbox = list(&mailboxes).iter().find(|mailbox| member(mailbox, "role") == "inbox");
        self.inbox =
            inbox.and_then(|inbox| member(inbox, "id").as_str()).context("there is no inbox")?.to_owned();
        let newest = format!("{},\"limit\":{CHANGED}", self.of_inbox(""));
        let newest = self.caller.call("Email/query", &newest).await?;
        let ids = member(&newest, "ids").as_array().context("a query has no ids")?;
        let own = ids.iter().skip(number as usize).step_by(count.max(1) as usize);
        self.own = own.filter_map(|id| id.as_str().map(str::to_owned)).collect();
        let state = self.caller.call("Email/get", ",\"ids\":[]").await?;
        member(&state, "state").as_str().context("Email/get has no state")?.clone_into(&mut self.state);
        Ok(())
    }

    fn call(&self, name: &str, arguments: &str) -> String {
        format!("[\"{name}\",{{\"accountId\":\"{}\"{arguments}}},\"0\"]", self.caller.account)
    }

    /// Filter and sort of the inbox, newest first.
    fn of_inbox(&self, condition: &str) -> String {
        format!(
            ",\"filter\":{{\"inMailbox\":\"{}\"{condition}}},\"sort\":[{{\"property\":\"receivedAt\",\"isAscending\":false}}]",
            self.inbox
        )
    }

    /// A page at a random position, and the listed properties of its emails or of its threads.
    fn page(&mut self, is_of_threads: bool) -> String {
        // There are fewer threads than emails, but more than half as many.
        let count = if is_of_threads { self.emails / 2 } else { self.emails };
        let position = self.random.below(count.min(NEWEST).saturating_sub(PAGE).max(1));
        let account = &self.caller.account;
        let reference = |call: u8, name: &str, path: &str| {
            format!("\"#ids\":{{\"resultOf\":\"{call}\",\"name\":\"{name}\",\"path\":\"{path}\"}}")
        };
        let query = self.of_inbox("");
        let found = reference(0, "Email/query", "/ids");
        if !is_of_threads {
            return format!(
                "[\"Email/query\",{{\"accountId\":\"{account}\"{query},\"position\":{position},\"limit\":{PAGE}}},\"0\"],\
                 [\"Email/get\",{{\"accountId\":\"{account}\",{found},\"properties\":{LISTED}}},\"1\"]"
            );
        }
        let threads = reference(1, "Email/get", "/list/*/threadId");
        let emails = reference(2, "Thread/get", "/list/*/emailIds");
        format!(
            "[\"Email/query\",{{\"accountId\":\"{account}\"{query},\"collapseThreads\":true,\"position\":{position},\
             \"limit\":{PAGE}}},\"0\"],\
             [\"Email/get\",{{\"accountId\":\"{account}\",{found},\"properties\":[\"threadId\"]}},\"1\"],\
             [\"Thread/get\",{{\"accountId\":\"{account}\",{threads}}},\"2\"],\
             [\"Email/get\",{{\"accountId\":\"{account}\",{emails},\"properties\":{LISTED}}},\"3\"]"
        )
    }

    /// Sets a keyword that the email does not have, or removes one that it has.
    fn change(&mut self) -> anyhow::Result<String> {
        let count = self.own.len().max(1);
        let id =
            self.own.get(self.changes % count).context("the inbox has too few emails for so many clients")?;
        let value = if (self.changes / count).is_multiple_of(2) { "true" } else { "null" };
        self.changes += 1;
        Ok(self.call("Email/set", &format!(",\"update\":{{\"{id}\":{{\"keywords/bench\":{value}}}}}")))
    }

    fn search(&mut self) -> String {
        let term = term(&mut self.random);
        let query = self.of_inbox(&format!(",\"text\":\"{term}\""));
        self.call("Email/query", &format!("{query},\"limit\":{PAGE}"))
    }

    /// Checks that an answer is complete.
    fn check(&self) -> anyhow::Result<()> {
        let responses = self.caller.responses()?;
        let last = responses.last().context("an answer has no response")?;
        let (what, is_complete) = match self.op {
            Op::Query20 => {
                let listed = list(last)
                    .iter()
                    .filter(|email| email.as_object().is_some_and(|email| email.len() == 10));
                ("a page", listed.count() as u64 == PAGE.min(self.emails))
            }
            Op::ThreadChain => ("threads", responses.len() == 4 && !list(last).is_empty()),
            Op::Flag => {
                ("a change", member(last, "updated").as_object().is_some_and(|updated| updated.len() == 1))
            }
            Op::Changes => ("changes", member(last, "newState") == self.state.as_str()),
            Op::Mailboxes => ("mailboxes", list(last).len() as u64 == self.mailboxes),
            Op::Text => ("a search", member(last, "ids").is_array()),
        };
        ensure!(is_complete, "the answer to {what} is not complete: {last}");
        Ok(())
    }
}

fn list(arguments: &Value) -> &[Value] {
    member(arguments, "list").as_array().map_or(&[], Vec::as_slice)
}

/// A member of an object; null if it is missing.
fn member<'v>(object: &'v Value, name: &str) -> &'v Value {
    object.get(name).unwrap_or(&Value::Null)
}
