//! What the network to an engine allows, measured without the engine's own work.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::measure::{median, ms};

const CONNECT_MAX: Duration = Duration::from_secs(10);
const CONNECTS: usize = 20;
/// Bytes that the loopback interface carries for its measurement.
const LOOPBACK_BYTES: usize = 256 << 20;
const LOOPBACK_MAX: Duration = Duration::from_secs(3);

/// Milliseconds until a TCP connection is open: one round trip, without any work of the engine.
///
/// # Errors
/// When nothing listens there.
pub(super) async fn connect_ms(host: &str, port: u16) -> anyhow::Result<f64> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // The look-up of the name is not part of it.
    let mut addresses = tokio::net::lookup_host((host, port)).await.context("can't look the host up")?;
    let address = addresses.next().context("the host has no address")?;
    let mut times = Vec::new();
    for _ in 0..CONNECTS {
        let begun = Instant::now();
        let connecting = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
        connecting.map_err(|_| anyhow!("no answer within {} s", CONNECT_MAX.as_secs()))??;
        times.push(ms(begun.elapsed()));
    }
    Ok(median(times))
}

/// What one connection within this machine carries, in 10^6 bytes a second.
pub(super) async fn loopback_mb_per_second() -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let sending = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let part = vec![0x5a_u8; 1 << 20];
        for _ in 0..LOOPBACK_BYTES / part.len() {
            stream.write_all(&part).await?;
        }
        anyhow::Ok(())
    });
    let mut stream = TcpStream::connect(address).await?;
    let mut buffer = vec![0_u8; 1 << 20];
    let (begun, mut received) = (Instant::now(), 0_usize);
    while begun.elapsed() < LOOPBACK_MAX {
        match stream.read(&mut buffer).await? {
            0 => break,
            bytes => received += bytes,
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    sending.abort();
    Ok(received as f64 / 1e6 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_network_of_this_machine_is_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(connect_ms("127.0.0.1", port).await.unwrap() > 0.0);
        drop(listener);
        assert!(connect_ms("127.0.0.1", port).await.is_err());
        assert!(loopback_mb_per_second().await.unwrap() > 0.0);
    }
}
