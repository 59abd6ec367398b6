//! Redis, with what a table of sessions needs: open a session, look a user up, notify other servers.

use std::time::Duration;

use anyhow::{Context, anyhow};
use async_trait::async_trait;
use parking_lot::Mutex;
use redis::{
    Client, IntoConnectionInfo, Pipeline, TlsCertificates, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use restante_net::tls;

use super::{
    Engine, EnginesArgs,
    floors::Floors,
    load::{Done, Measured, closed_loop, round_trip_ms},
    results::{References, Results},
    setting::EngineSetting,
    target,
};
use crate::progress;

const NAME: &str = "redis";
/// The variable that dev/services sets.
const VARIABLE: &str = "RESTANTE_REDIS_URL";
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Clients that never pause: one alone, and as many as a server has requests in flight.
const CLIENTS: [usize; 2] = [1, 64];
const USERS: u64 = 10_000;
const UNLINKED_AT_ONCE: usize = 1_000;
/// About a session: a resource, a node, a time and some info.
const SESSION_BYTES: usize = 200;
const LIMIT: Duration = Duration::from_secs(60);
/// Seconds until Redis removes what a run left behind when it was killed.
const EXPIRY_SECONDS: i64 = 3_600;

/// Connects to the Redis that is named.
pub(super) async fn connect(args: &EnginesArgs) -> anyhow::Result<Option<Box<dyn Engine>>> {
    let Some(url) = target::named(args.redis.as_ref(), VARIABLE) else { return Ok(None) };
    let client = client(&url, args)?;
    let connecting = client.get_multiplexed_async_connection();
    let connection = tokio::time::timeout(CONNECT_MAX, connecting)
        .await
        .map_err(|_| anyhow!("no answer within {} s", CONNECT_MAX.as_secs()))
        .and_then(|connected| connected.map_err(anyhow::Error::from))
        .context("can't connect: look at --redis, --redis-password-file and --ca-file")?;
    Ok(Some(Box::new(Redis { connection, prefix: target::fresh_name() })))
}

fn client(url: &str, args: &EnginesArgs) -> anyhow::Result<Client> {
    // The error of the client library might contain the password.
    let invalid = |_| anyhow!("the URL of Redis can't be used: it is redis://<host>:<port>/<database>");
    let info = url.into_connection_info().map_err(invalid)?;
    // As a server does: no request waits to be sent with the next one.
    let mut info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    if let Some(file) = &args.redis_password_file {
        let settings = info.redis_settings().clone().set_password(target::secret(file)?);
        info = info.set_redis_settings(settings);
    }
    if !url.starts_with("rediss:") {
        return Client::open(info).map_err(invalid);
    }
    tls::install_provider();
    let root_cert = args.ca_file.as_deref().map(tls::read_pem).transpose()?;
    Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert }).context("can't set up TLS")
}

struct Redis {
    connection: MultiplexedConnection,
    /// Of all keys of this run.
    prefix: String,
}

#[async_trait]
impl Engine for Redis {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        format!(
            "keys that begin with {}: they expire within an hour, or redis-cli --scan --pattern '{}*' | xargs redis-cli unlink",
            self.prefix, self.prefix
        )
    }

    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        let mut found = Vec::new();
        for name in ["appendonly", "save", "maxmemory", "maxmemory-policy"] {
            let answer: Result<Vec<String>, _> =
                redis::cmd("CONFIG").arg("GET").arg(name).query_async(&mut self.connection.clone()).await;
            // Hosted servers refuse CONFIG.
            let value = answer.ok().and_then(|pair| pair.get(1).cloned());
            found.push((name, value));
        }
        Ok(judge_settings(&found))
    }

    async fn measure(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        let ping = async || {
            let answer: Result<String, _> =
                redis::cmd("PING").query_async(&mut self.connection.clone()).await;
            answer.map(drop).map_err(anyhow::Error::from)
        };
        let round_trip_ms = round_trip_ms(args.pick(1_000, 200), ping).await?;
        let floors = Floors { round_trip_ms, ..Floors::default() };
        results.lock().table(NAME, "floors").shown("round trip p50", "ms", round_trip_ms);
        for clients in CLIENTS {
            let operations = args.pick(200_000, 20_000).min(clients as u64 * args.pick(20_000, 5_000));
            self.measure_by(clients, operations, &floors, results).await?;
        }
        Ok(())
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        let mut connection = self.connection.clone();
        // By their names: a scan would read all keys that the Redis has.
        for first in (0..USERS).step_by(UNLINKED_AT_ONCE) {
            let keys: Vec<String> =
                (first..USERS).take(UNLINKED_AT_ONCE).map(|user| key(&self.prefix, user)).collect();
            redis::cmd("UNLINK").arg(keys).query_async::<()>(&mut connection).await?;
        }
        Ok(())
    }
}

fn key(prefix: &str, user: u64) -> String {
    format!("{prefix}:{user}")
}

/// The three requests, each with the kind that its rows have.
#[derive(Clone, Copy)]
enum Request {
    Ping,
    Open,
    LookUp,
}

impl Redis {
    async fn measure_by(
        &self,
        clients: usize,
        operations: u64,
        floors: &Floors,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        // The rate of this connection when the server does nothing.
        let empty = self.load(Request::Ping, clients, operations).await?;
        let open = self.load(Request::Open, clients, operations).await?;
        let look_up = self.load(Request::LookUp, clients, operations).await?;
        let mut results = results.lock();
        let mut table = results.table(NAME, format!("sessions, {clients} at once"));
        table.shown("empty requests", "1/s", empty.per_second());
        for (kind, row, measured) in
            [("open", "sessions opened", &open), ("look-up", "users looked up", &look_up)]
        {
            let run = measured.circumstances(kind);
            let times = measured.times(kind).service;
            table.rate(row, "1/s", measured.per_second(), References::floor(empty.per_second()), &run);
            let allowed = floors.round_trip_ms.max(empty.times("empty").service.median_ms());
            table.time(format!("{row} p50"), times.median_ms(), References::floor(allowed), &run);
            let slowest = empty.times("empty").service.p99_ms().max(allowed);
            table.time(format!("{row} p99"), times.p99_ms(), References::floor(slowest), &run);
            table.curve(format!("redis, {clients} at once"), kind, &times);
        }
        Ok(())
    }

    async fn load(&self, request: Request, clients: usize, operations: u64) -> anyhow::Result<Measured> {
        let bar = progress::bar(&format!("redis: {} by {clients}", request.kind()), operations);
        let (connection, prefix) = (self.connection.clone(), self.prefix.clone());
        let operation = move |_, number: u64| {
            let mut connection = connection.clone();
            let key = key(&prefix, number.wrapping_mul(0x9e37_79b9) % USERS);
            let channel = format!("{prefix}:changed");
            async move {
                let pipeline = request.commands(&key, &channel, number);
                pipeline.query_async::<redis::Value>(&mut connection).await?;
                Ok(Done::new(request.kind(), SESSION_BYTES))
            }
        };
        let measured = closed_loop(clients, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        measured
    }
}

impl Request {
    fn kind(self) -> &'static str {
        match self {
            Self::Ping => "empty",
            Self::Open => "open",
            Self::LookUp => "look-up",
        }
    }

    fn commands(self, key: &str, channel: &str, number: u64) -> Pipeline {
        let mut commands = redis::pipe();
        match self {
            Self::Ping => commands.cmd("PING"),
            Self::LookUp => commands.cmd("HGETALL").arg(key),
            Self::Open => {
                let resource = format!("resource-{}", number % 3);
                let session = [b's'; SESSION_BYTES];
                commands.atomic();
                commands.cmd("HSET").arg(key).arg(&resource).arg(&session).ignore();
                commands.cmd("EXPIRE").arg(key).arg(EXPIRY_SECONDS).ignore();
                commands.cmd("PUBLISH").arg(channel).arg(key)
            }
        };
        commands
    }
}

/// The settings with a judgement; `None` is a value that the server does not report.
fn judge_settings(found: &[(&'static str, Option<String>)]) -> Vec<EngineSetting> {
    let judge = |(name, value): &(&'static str, Option<String>)| {
        let Some(value) = value else {
            return EngineSetting::safe(NAME, name, "unknown: the server refuses CONFIG GET");
        };
        let has_log =
            found.iter().any(|(name, value)| *name == "appendonly" && value.as_deref() == Some("yes"));
        let setting = EngineSetting::safe(NAME, name, value.clone());
        match *name {
            "appendonly" if value != "yes" => setting.into_unsafe(
                "after a restart of Redis all sessions are gone until their users connect again",
                "set appendonly yes, appendfsync everysec",
            ),
            "save" if !value.is_empty() && has_log => setting.into_costly(
                "snapshots double the memory while they are written, and the log already keeps the data",
                "set save \"\"",
            ),
            "maxmemory" if value == "0" => setting.into_unsafe(
                "Redis grows until the system ends it",
                "set maxmemory to three quarters of the memory of its machine",
            ),
            "maxmemory-policy" if value != "noeviction" => setting.into_unsafe(
                "a full Redis drops sessions of connected users without a word",
                "set maxmemory-policy noeviction",
            ),
            _ => setting,
        }
    };
    found.iter().map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::setting::Judgement, *};

    fn judged(name: &'static str, value: &str) -> Judgement {
        let found = [("appendonly", Some("yes".to_owned())), (name, Some(value.to_owned()))];
        judge_settings(&found).pop().unwrap().judgement
    }

    #[test]
    fn settings_that_lose_sessions_are_unsafe() {
        for (name, value) in [("appendonly", "no"), ("maxmemory", "0"), ("maxmemory-policy", "allkeys-lru")] {
            assert!(matches!(judged(name, value), Judgement::Unsafe { .. }), "{name} {value}");
        }
        for (name, value) in
            [("appendonly", "yes"), ("maxmemory", "1000"), ("maxmemory-policy", "noeviction"), ("save", "")]
        {
            assert_eq!(judged(name, value), Judgement::Safe, "{name} {value}");
        }
        assert!(matches!(judged("save", "3600 1"), Judgement::Costly { .. }));
    }

    #[test]
    fn a_server_that_refuses_config_is_measured_all_the_same() {
        let settings = judge_settings(&[("maxmemory", None)]);
        assert!(settings[0].value.starts_with("unknown"));
    }
}
