//! Concurrent log-ins while the records are slow, as records behind a network are.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::{net::IpAddr, num::NonZero, sync::Arc, time::Duration};

use async_trait::async_trait;
use restante_core::{ManualClock, Timestamp};
use restante_directory::{
    Actor, Answer, Directory, DirectoryConfig, DirectoryMetrics, LoginError, NewToken, Operation, Role, Scope,
};
use restante_records::{
    AccountId, Config, EngineUrl, Error, Schema,
    testing::{Hook, Hooked},
};
use tokio::{task::JoinSet, time::sleep};

const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const READ: Duration = Duration::from_millis(10);

/// Makes reads slow.
struct SlowReads;

#[async_trait]
impl Hook for SlowReads {
    async fn before_read(&self, _: AccountId) -> Result<(), Error> {
        sleep(READ).await;
        Ok(())
    }
}

/// A directory that allows five failures for each IP address, and a token of an account in it.
async fn directory_with_token() -> (Directory, String) {
    let schema = Schema::new(restante_directory::kinds()).unwrap();
    let mut opened = restante_records::open(Config::new(EngineUrl::Memory, schema)).await.unwrap();
    opened.records = Arc::new(Hooked { inner: opened.records, hook: SlowReads });
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_800_000_000)));
    let config =
        DirectoryConfig { failures_per_ip_max: NonZero::new(5).unwrap(), ..DirectoryConfig::default() };
    let opened = Directory::open(&opened, config, clock, DirectoryMetrics::default()).await;
    let (directory, follower) = opened.unwrap();
    tokio::spawn(follower.run());
    let token = NewToken { name: "a script".into(), scopes: vec![Scope::Mail], expires_in: None };
    let address = "anna@example.org".parse::<restante_directory::EmailAddress>().unwrap();
    let operations = [
        Operation::AddDomain { domain: "example.org".parse().unwrap(), separator: None, catch_all: None },
        Operation::AddAccount {
            address: address.clone(),
            password: None,
            role: Role::User,
            quota_bytes: None,
        },
        Operation::CreateToken { address, token },
    ];
    let mut answer = None;
    for operation in operations {
        answer = Some(directory.operate(&Actor("a test".into()), operation).await.unwrap());
    }
    let Some(Answer::Token { token, .. }) = answer else { panic!("no token") };
    (directory, token)
}

/// How many of 64 log-ins at once were accepted, refused and limited.
async fn log_in_at_once(directory: &Directory, token: &str) -> (usize, usize, usize) {
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (directory, token) = (directory.clone(), token.to_owned());
        tasks.spawn(async move { directory.check_token(IP, &token).await });
    }
    let (mut accepted, mut refused, mut limited) = (0, 0, 0);
    for result in tasks.join_all().await {
        match result {
            Ok(_) => accepted += 1,
            Err(LoginError::Refused) => refused += 1,
            Err(LoginError::Limited { .. }) => limited += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    (accepted, refused, limited)
}

#[tokio::test(start_paused = true)]
async fn as_many_connections_as_one_likes_log_in_at_once_by_a_token() {
    let (directory, token) = directory_with_token().await;
    assert_eq!(log_in_at_once(&directory, &token).await, (64, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn wrong_tokens_at_once_are_refused_until_the_limit_and_limited_from_then_on() {
    let (directory, token) = directory_with_token().await;
    let mut wrong = token.clone();
    let replaced = if wrong.remove(10) == 'A' { 'B' } else { 'A' };
    wrong.insert(10, replaced);
    assert_eq!(log_in_at_once(&directory, &wrong).await, (0, 5, 59));
    assert_eq!(log_in_at_once(&directory, &token).await, (0, 0, 64));
}
