//! A client of JMAP over one kept-alive connection.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::{answer::beginning, http::Connection};

const MAIL: &str = "urn:ietf:params:jmap:mail";

/// A connection of a user.
pub(super) struct Caller {
    connection: Connection,
    authority: String,
    token: String,
    /// The path of requests.
    path: String,
    /// The user's account.
    pub(super) account: String,
    answer: Vec<u8>,
}

impl Caller {
    /// Connects and reads the session object.
    pub(super) async fn open(address: SocketAddr, token: &str) -> anyhow::Result<Self> {
        let (authority, token) = (address.to_string(), token.to_owned());
        let connection = Connection::open(address).await?;
        let (path, account, answer) = Default::default();
        let mut caller = Self { connection, authority, token, path, account, answer };
        caller.send("GET", "/.well-known/jmap", "").await?;
        let session: Value = serde_json::from_slice(&caller.answer).context("can't parse the session")?;
        let text = |pointer: &str| session.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        caller.account = text(&format!("/primaryAccounts/{MAIL}")).context("the session has no account")?;
        let url = text("/apiUrl").context("the session has no apiUrl")?;
        let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        caller.path = format!("/{}", path.context("the apiUrl is not a URL")?.1);
        Ok(caller)
    }

    /// Makes a request with these calls, JSON without the brackets around it. Returns the time until the complete answer.
    pub(super) async fn ask(&mut self, calls: &str) -> anyhow::Result<Duration> {
        let body =
            format!("{{\"using\":[\"urn:ietf:params:jmap:core\",\"{MAIL}\"],\"methodCalls\":[{calls}]}}");
        let path = std::mem::take(&mut self.path);
        let asked = Instant::now();
        let sent = self.send("POST", &path, &body).await;
        let time = asked.elapsed();
        self.path = path;
        sent?;
        let is_error = self.answer.split(|byte| *byte == b'[').any(|rest| rest.starts_with(b"\"error\","));
        ensure!(!is_error, "a method failed: {}", beginning(&self.answer));
        Ok(time)
    }

    /// The arguments of the last answer's responses, in order.
    pub(super) fn responses(&self) -> anyhow::Result<Vec<Value>> {
        let mut answer: Value = serde_json::from_slice(&self.answer).context("can't parse an answer")?;
        let Some(Value::Array(responses)) = answer.get_mut("methodResponses").map(Value::take) else {
            bail!("an answer has no methodResponses: {}", beginning(&self.answer));
        };
        Ok(responses
            .into_iter()
            .map(|mut response| response.get_mut(1).map(Value::take).unwrap_or_default())
            .collect())
    }

    /// The arguments of the response to one call.
    pub(super) async fn call(&mut self, name: &str, arguments: &str) -> anyhow::Result<Value> {
        let account = &self.account;
        let call = format!("[\"{name}\",{{\"accountId\":\"{account}\"{arguments}}},\"0\"]");
        self.ask(&call).await?;
        self.responses()?.into_iter().next().context("a call has no response")
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let (authority, token, length) = (&self.authority, &self.token, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        self.answer.clear();
        let answer = &mut self.answer;
        let status = self.connection.ask(request.as_bytes(), |piece| answer.extend_from_slice(piece)).await?;
        ensure!(status == 200, "{path} was answered with status {status}: {}", beginning(&self.answer));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{serve, sized};

    fn answer(line: &str, body: &str) -> Vec<u8> {
        let session = "{\"primaryAccounts\":{\"urn:ietf:params:jmap:mail\":\"a7\"},\"apiUrl\":\"http://127.0.0.1:1/jmap/api\"}";
        match line {
            "GET /.well-known/jmap HTTP/1.1" => sized("200 OK", session),
            "POST /jmap/api HTTP/1.1" if body.contains("Foo/get") => {
                sized("200 OK", "{\"methodResponses\":[[\"error\",{\"type\":\"unknownMethod\"},\"0\"]]}")
            }
            "POST /jmap/api HTTP/1.1" if body.contains("\"accountId\":\"a7\",\"ids\":[]") => {
                sized("200 OK", "{\"methodResponses\":[[\"Email/get\",{\"state\":\"5\"},\"0\"]]}")
            }
            _ => sized("400 Bad Request", "not a request"),
        }
    }

    #[tokio::test]
    async fn calls_go_to_the_api_of_the_session_and_errors_of_methods_are_errors() {
        let mut caller = Caller::open(serve(answer).await, "token").await.unwrap();
        let state = caller.call("Email/get", ",\"ids\":[]").await.unwrap();
        assert_eq!(state, serde_json::json!({"state": "5"}));
        let error = caller.call("Foo/get", "").await.unwrap_err().to_string();
        assert!(error.contains("unknownMethod"), "{error}");
        let error = caller.call("Email/get", "").await.unwrap_err().to_string();
        assert!(error.contains("400") && error.contains("not a request"), "{error}");
    }
}
