//! `GET /admin/v1/mail/accounts` and `GET /admin/v1/mail/account`: the console's pages about accounts.

use std::sync::Arc;

use axum::{
    Json,
    extract::RawQuery,
    response::{IntoResponse, Response},
};
use restante_core::Error;
use restante_directory::{Actor, Answer, Directory, EmailAddress, Operation};
use restante_http::{Audience, Refusal, Route, path};
use restante_jmap::OpenConnections;
use restante_mail::{Mail, MailError};
use restante_records::AccountId;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::account;
use crate::doors::mail::commands::directory::refusal;

/// The default and the maximum of accounts per page.
const ACCOUNTS: usize = 100;
const ACCOUNTS_MAX: usize = 500;
/// Pages that are built concurrently. Further requests wait, because each reads many records.
const PAGES_AT_ONCE: usize = 2;

/// The sources of the pages.
#[derive(Clone)]
pub(crate) struct Pages {
    mail: Mail,
    directory: Directory,
    connections: OpenConnections,
    permits: Arc<Semaphore>,
}

impl Pages {
    pub(crate) fn new(mail: Mail, directory: Directory, connections: OpenConnections) -> Self {
        Self { mail, directory, connections, permits: Arc::new(Semaphore::new(PAGES_AT_ONCE)) }
    }
}

/// The routes of the pages.
pub(crate) fn routes(pages: &Pages) -> [Route; 2] {
    let (of_list, of_one) = (pages.clone(), pages.clone());
    let list = move |RawQuery(query)| answer(list(of_list.clone(), query));
    let one = move |RawQuery(query)| answer(one(of_one.clone(), query));
    let routes = [
        Route::get("/admin/v1/mail/accounts", "accounts with the size of their mail", list),
        Route::get("/admin/v1/mail/account", "an account with its mailboxes, vault and connections", one),
    ];
    routes.map(|route| route.with_audience(Audience::Operators))
}

/// Why a page could not be built.
enum Failure {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<MailError> for Failure {
    fn from(error: MailError) -> Self {
        match error {
            MailError::Store(error) => Self::Failed(error),
            error => Self::Failed(Error::internal(format!("can't read the mail of the account: {error}"))),
        }
    }
}

async fn answer(page: impl Future<Output = Result<Value, Failure>>) -> Response {
    match page.await {
        Ok(page) => Json(page).into_response(),
        Err(Failure::Refused(refused)) => refused.into_response(),
        Err(Failure::Failed(error)) => refusal(&error),
    }
}

/// `GET /admin/v1/mail/accounts?domain=example.org&limit=100&after=...`
async fn list(pages: Pages, query: Option<String>) -> Result<Value, Failure> {
    let mut asked = Asked::default();
    asked.read(query.as_deref().unwrap_or_default(), &["domain", "after", "limit"])?;
    let domain = asked.domain.as_deref().map(str::parse).transpose();
    let domain = domain.map_err(|_| Refusal::field("domain", "is no domain, as example.org"))?;
    let limit = asked.limit.unwrap_or(ACCOUNTS);
    let _permit = pages.permits.acquire().await;
    let actor = Actor(String::new()); // reads are not logged
    let operation = Operation::Accounts { domain, after: asked.after, limit };
    let Answer::Accounts(page) = pages.directory.operate(&actor, operation).await? else {
        return Err(Refusal::internal().into());
    };
    let mut lines = Vec::with_capacity(page.items.len());
    for account in &page.items {
        lines.push(account::show_line(&pages.mail, account).await?);
    }
    Ok(json!({"accounts": lines, "next": page.next}))
}

/// `GET /admin/v1/mail/account?address=anna@example.org`
async fn one(pages: Pages, query: Option<String>) -> Result<Value, Failure> {
    let mut asked = Asked::default();
    asked.read(query.as_deref().unwrap_or_default(), &["address"])?;
    let missing = || Refusal::field("address", "is missing: name the account, as anna@example.org");
    let address: EmailAddress = asked
        .address
        .ok_or_else(missing)?
        .parse()
        .map_err(|_| Refusal::field("address", "is no address, as anna@example.org"))?;
    let _permit = pages.permits.acquire().await;
    let actor = Actor(String::new()); // reads are not logged
    let Answer::Account(info) = pages.directory.operate(&actor, Operation::Account { address }).await? else {
        return Err(Refusal::internal().into());
    };
    let connections = pages.connections.of(AccountId(info.summary.account));
    Ok(account::show(&pages.mail, &info, connections).await?)
}

/// The parameters of a request.
#[derive(Debug, Default)]
struct Asked {
    address: Option<String>,
    domain: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

impl Asked {
    fn read(&mut self, query: &str, known: &[&str]) -> Result<(), Refusal> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                return Err(Refusal::unknown(name, known));
            }
            let value = path::decode_form(value, name)?.into_owned();
            let set = match name {
                "address" => path::set_once(&mut self.address, value),
                "domain" => path::set_once(&mut self.domain, value),
                "after" => path::set_once(&mut self.after, value),
                _ => path::set_once(&mut self.limit, parse_limit(&value)?),
            };
            set.map_err(|problem| Refusal::field(name, problem))?;
        }
        Ok(())
    }
}

fn parse_limit(text: &str) -> Result<usize, Refusal> {
    let limit = text.parse().ok().filter(|limit| (1..=ACCOUNTS_MAX).contains(limit));
    limit.ok_or_else(|| Refusal::field("limit", "expected a whole number from 1 to 500"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str, known: &[&str]) -> Result<Asked, String> {
        let mut asked = Asked::default();
        asked.read(query, known).map(|()| asked).map_err(|refusal| refusal.text.into_owned())
    }

    #[test]
    fn parameters_are_read_once_and_others_are_refused() {
        let known = &["domain", "after", "limit"];
        let asked = read("domain=example.org&limit=500&after=3.ab", known).unwrap();
        assert_eq!((asked.domain.as_deref(), asked.limit), (Some("example.org"), Some(500)));
        assert_eq!(asked.after.as_deref(), Some("3.ab"));
        assert_eq!(read("", known).unwrap().limit, None);
        for wrong in ["limit=0", "limit=501", "limit=x", "address=a", "after=1&after=2", "domain=%ff"] {
            assert!(read(wrong, known).is_err(), "{wrong}");
        }
        let asked = read("address=anna%2Bx%40example.org", &["address"]).unwrap();
        assert_eq!(asked.address.as_deref(), Some("anna+x@example.org"));
    }
}
