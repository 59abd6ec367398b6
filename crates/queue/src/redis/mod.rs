//! Redis 6 or later: announcements, by PUBLISH and SUBSCRIBE.

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, TlsCertificates,
    aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use restante_net::tls;
use tokio::time::timeout;

use crate::{
    Config, Error, OpenedAnnouncements,
    bus::{self, Carrier, Connected, Outlet},
};

/// Opens announcements.
///
/// # Errors
/// `Invalid`: the URL or the certificates can't be used.
pub(crate) async fn open(url: &str, config: &Config) -> Result<OpenedAnnouncements, Error> {
    // The error of the client library might contain the password.
    let invalid = || Error::invalid("the URL of Redis can't be used: it is redis://<host>:<port>/<database>");
    let is_tls = url.starts_with("rediss:");
    if is_tls {
        tls::install_provider();
    }
    let mut info: ConnectionInfo = url.into_connection_info().map_err(|_| invalid())?;
    if let (None, Some(password)) = (info.redis_settings().password(), &config.password) {
        let settings = info.redis_settings().clone().set_password(password);
        info = info.set_redis_settings(settings);
    }
    info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    // All databases of a Redis share its channels.
    let channel = format!("{}:{}:announcements", config.shared.prefix, info.redis_settings().db());
    let client = match is_tls {
        false => Client::open(info).map_err(|_| invalid())?,
        true => {
            let certificates =
                TlsCertificates { client_tls: None, root_cert: authorities(&config.shared.ca_file)? };
            let built = Client::build_with_tls(info, certificates);
            built.map_err(|error| Error::invalid(format!("TLS to redis can't be set up: {error}")))?
        }
    };
    let limit = Duration::from_millis(config.shared.timeout_ms.get());
    Ok(bus::open(std::sync::Arc::new(Redis { client, channel, limit }), config.metrics.clone()).await)
}

/// The trusted authorities in a file; `None` for those of the operating system.
fn authorities(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    tls::read_pem(file).map(Some).map_err(|error| Error::invalid(format!("TLS to redis: {error}")))
}

struct Redis {
    client: Client,
    channel: String,
    limit: Duration,
}

#[async_trait]
impl Carrier for Redis {
    async fn connect(&self) -> Result<Connected, Error> {
        let connecting = async {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.limit))
                .set_response_timeout(Some(self.limit));
            let publishing = self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut listening = self.client.get_async_pubsub().await?;
            listening.subscribe(&self.channel).await?;
            Ok((publishing, listening))
        };
        let connected = timeout(self.limit, connecting).await.map_err(|_| late(self.limit))?;
        let (publishing, listening) = connected.map_err(|error: redis::RedisError| unavailable(&error))?;
        let messages =
            listening.into_on_message().map(|message| Bytes::from(message.get_payload_bytes().to_vec()));
        let outlet = RedisOutlet { publishing, channel: self.channel.clone(), limit: self.limit };
        Ok(Connected { outlet: Box::new(outlet), messages: messages.boxed() })
    }
}

struct RedisOutlet {
    publishing: MultiplexedConnection,
    channel: String,
    limit: Duration,
}

#[async_trait]
impl Outlet for RedisOutlet {
    async fn send(&mut self, message: Vec<u8>) -> Result<(), Error> {
        let mut command = redis::cmd("PUBLISH");
        command.arg(&self.channel).arg(message);
        let sent = timeout(self.limit, command.query_async::<i64>(&mut self.publishing)).await;
        sent.map_err(|_| late(self.limit))?.map(drop).map_err(|error| unavailable(&error))
    }

    async fn close(&mut self) {} // the connections end when they are dropped
}

fn late(limit: Duration) -> Error {
    Error::unavailable(format!("redis does not answer within {} ms", limit.as_millis()))
}

fn unavailable(error: &redis::RedisError) -> Error {
    Error::unavailable(format!("redis is unreachable: {error}"))
}
