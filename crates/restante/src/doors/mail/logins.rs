//! Log-ins over HTTP: accounts of the directory, by password (Basic) or token (Bearer).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use http::{HeaderValue, request::Parts};
use restante_core::{Clock, ErrorKind};
use restante_directory::{AccountChange, AccountChanges, Directory, Login, LoginError, Scope};
use restante_http::{AccessEnded, Admission, Caller, Credentials, Denied, Guard, Refusal};
use tokio::time::sleep;
use tracing::{debug, warn};

/// How long to wait before failed records are queried again.
const RETRY: Duration = Duration::from_millis(250);
/// The client of a request without a connection, which only tests have.
const NO_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Accepts accounts of the directory. Handlers find the `Arc<Login>` with its scopes in the extensions of the request.
#[derive(Clone)]
pub(crate) struct LoginGuard {
    directory: Directory,
    clock: Arc<dyn Clock>,
    is_for_operators: bool,
}

impl LoginGuard {
    /// Accepts every active account.
    pub(crate) fn of_accounts(directory: Directory, clock: Arc<dyn Clock>) -> Self {
        Self { directory, clock, is_for_operators: false }
    }

    /// Accepts operators, by a password or by a token with the scope `operate`.
    pub(crate) fn of_operators(directory: Directory, clock: Arc<dyn Clock>) -> Self {
        Self { directory, clock, is_for_operators: true }
    }

    /// For Basic, browsers show their own dialog, which must not appear on the console.
    fn challenge(&self) -> HeaderValue {
        HeaderValue::from_static(if self.is_for_operators {
            "Bearer realm=\"restante\""
        } else {
            "Basic realm=\"restante\", charset=\"UTF-8\", Bearer realm=\"restante\""
        })
    }

    fn denied(&self, error: &LoginError) -> Denied {
        match error {
            LoginError::Refused | LoginError::Scram(_) => {
                let text = "the name, the password or the token is wrong, or the account is disabled";
                Denied::unauthorized(text, self.challenge(), true)
            }
            LoginError::Limited { wait_seconds } => Denied::limited(*wait_seconds),
            LoginError::Failed(error) if error.kind() == ErrorKind::Unavailable => {
                debug!(%error, "a log-in could not be checked");
                Denied::refused(Refusal::unavailable("the log-in can't be checked now: try again later"))
            }
            LoginError::Failed(error) => {
                warn!(%error, "a log-in could not be checked");
                Denied::refused(Refusal::internal())
            }
        }
    }
}

impl fmt::Debug for LoginGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginGuard").field("is_for_operators", &self.is_for_operators).finish_non_exhaustive()
    }
}

#[async_trait]
impl Guard for LoginGuard {
    async fn check(&self, head: &mut Parts, client: Option<SocketAddr>) -> Result<Admission, Denied> {
        let ip = client.map_or(NO_CLIENT, |client| client.ip());
        let login = match Credentials::of(&head.headers) {
            Some(Credentials::Basic { user, password }) => {
                self.directory.check_password(ip, &user, &password).await
            }
            Some(Credentials::Bearer(token)) => {
                let token = String::from_utf8_lossy(&token);
                // An old token of the server, or one of another program, does not count as a failed log-in of this client address.
                if Directory::is_token(&token) {
                    self.directory.check_token(ip, &token).await
                } else {
                    Err(LoginError::Refused)
                }
            }
            None => match restante_jmap::url_token(head).filter(|_| !self.is_for_operators) {
                Some(token) => self.directory.check_url_token(ip, token).await,
                None => {
                    let text = "log in with an address and a password (Basic), or with a token (Bearer)";
                    return Err(Denied::unauthorized(text, self.challenge(), false));
                }
            },
        };
        let login = login.map_err(|error| self.denied(&error))?;
        let caller = if !self.is_for_operators {
            Caller::Account(login.account.0)
        } else if login.allows(Scope::Operate) {
            Caller::Operator
        } else {
            let text =
                "this is for operators: the account is not an operator, or its token lacks the scope operate";
            return Err(Denied::forbidden(text));
        };
        head.extensions.insert(login.clone());
        let ended = ended(self.directory.clone(), self.clock.clone(), login);
        Ok(Admission { caller, ended: Some(AccessEnded::new(ended)) })
    }
}

/// Completes when a log-in is no longer valid. Changes are announced within about a second, no matter on which server they were made.
async fn ended(directory: Directory, clock: Arc<dyn Clock>, login: Arc<Login>) {
    let mut changes = directory.changes();
    loop {
        match directory.holds(&login).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                debug!(%error, "a log-in could not be checked again");
                sleep(RETRY).await;
                continue;
            }
        }
        tokio::select! {
            is_open = changed(&mut changes, &login) => if !is_open { return },
            () = expired(&*clock, &login) => {}
        }
    }
}

/// Waits until the account of a log-in may have changed; returns false when the directory is closed.
async fn changed(changes: &mut AccountChanges, login: &Login) -> bool {
    loop {
        match changes.next().await {
            Some(AccountChange::Account(account)) if account != login.account => {}
            Some(_) => return true,
            None => return false,
        }
    }
}

async fn expired(clock: &dyn Clock, login: &Login) {
    let Some(expires) = login.expires else { return std::future::pending().await };
    let seconds = expires.saturating_sub(clock.now().seconds());
    sleep(Duration::from_secs(u64::try_from(seconds).unwrap_or_default().max(1))).await;
}

#[cfg(test)]
mod tests;
