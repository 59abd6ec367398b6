//! Floors of the same run: what the disk below a local engine and the connection to it allow.

use std::{
    net::{IpAddr, ToSocketAddrs},
    os::unix::fs::MetadataExt,
    path::Path,
};

use crate::{ingest::disk, store::work_folder};

use super::EnginesArgs;

/// What bounds every engine, whatever its quality.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Floors {
    /// Synced appends a second of the disk below the engine, where that is a disk of this machine.
    pub(crate) syncs_per_s: Option<f64>,
    /// Milliseconds until the answer to the smallest request.
    pub(crate) round_trip_ms: f64,
}

impl Floors {
    /// Milliseconds of an operation that needs one round trip and one sync.
    pub(crate) fn durable_ms(&self) -> Option<f64> {
        self.syncs_per_s.map(|syncs| self.round_trip_ms + 1e3 / syncs)
    }
}

/// Whether a host is this machine by a loopback address.
pub(crate) fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let addresses = (host, 0).to_socket_addrs();
    addresses.is_ok_and(|mut found| found.all(|address| address.ip().is_loopback()))
}

/// Measures the disk below an engine's folder, without touching the folder: with a file of the bench on the same device.
/// `None` if there is no place for one; --data names one.
pub(crate) async fn disk_below(folder: &Path, args: &EnginesArgs) -> anyhow::Result<Option<disk::Disk>> {
    let common = args.common();
    let own = work_folder(&common)?;
    let device = |path: &Path| path.metadata().ok().map(|found| found.dev());
    if device(folder).is_none() || device(folder) != device(own.path()) {
        return Ok(None);
    }
    disk::probe(own.path(), &common).await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local() {
        for host in ["127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["192.0.2.1", "2001:db8::1"] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn floors_are_those_of_the_slowest_part() {
        let floors = Floors { syncs_per_s: Some(500.0), round_trip_ms: 0.5 };
        assert_eq!(floors.durable_ms(), Some(2.5));
    }
}
