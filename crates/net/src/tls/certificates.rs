//! The certificates of listeners: chosen by the name that a client requests, and read again when their files change.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::gauge::Gauge;
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tracing::{info, warn};
use x509_cert::{
    Certificate,
    der::Decode,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use super::{TlsError, files, provider};
use crate::NetMetrics;

/// How often [`Certificates::reload_changed`] is to be called.
pub const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// A certificate and its key, as two PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by the intermediate ones.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The certificates of one or several listeners.
#[derive(Debug)]
pub struct Certificates {
    /// At least one: the first is for clients that request no name, or an unknown one.
    entries: Vec<Entry>,
    /// Incremented by each reload.
    version: AtomicU64,
    metrics: NetMetrics,
}

/// A certificate with its files.
#[derive(Debug)]
struct Entry {
    files: CertificateFiles,
    loaded: RwLock<Arc<Loaded>>,
    stamps: Mutex<Stamps>,
    expiry: Gauge,
}

#[derive(Debug)]
struct Loaded {
    certified: Arc<CertifiedKey>,
    key: PrivateKeyDer<'static>,
    /// The DNS names of the certificate in lower case. A name may begin with `*.`.
    names: Vec<String>,
    /// When it expires, in seconds since the epoch.
    expires_at: i64,
}

/// Device, inode, length and time of change of both files; `None` where one can't be read.
type Stamp = [Option<(u64, u64, u64, i64, i64)>; 2];

#[derive(Debug)]
struct Stamps {
    /// At the last attempt to read the files.
    read: Stamp,
    /// At the last poll.
    polled: Stamp,
}

impl CertificateFiles {
    /// Checks that the files hold a certificate and its key.
    ///
    /// # Errors
    /// Names the file that can't be used.
    pub fn check(&self) -> Result<(), TlsError> {
        self.load().map(|_| ())
    }

    fn load(&self) -> Result<Loaded, TlsError> {
        let (chain, key) = (files::certificates(&self.certificate)?, files::private_key(&self.key)?);
        let wrong = |what: &dyn ToString| {
            let (certificate, key) = (self.certificate.display(), self.key.display());
            TlsError(format!(
                "the certificate in {certificate} can't be used with the key in {key}: {}",
                what.to_string()
            ))
        };
        let (names, expires_at) =
            chain.first().map_or(Ok((Vec::new(), 0)), names_and_expiry).map_err(|e| wrong(&e))?;
        // Compares the public keys of both.
        let certified = CertifiedKey::from_der(chain, key.clone_key(), &provider()).map_err(|e| wrong(&e))?;
        Ok(Loaded { certified: Arc::new(certified), key, names, expires_at })
    }

    fn stamp(&self) -> Stamp {
        let of = |file: &Path| {
            let found = std::fs::metadata(file).ok()?;
            Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        };
        [of(&self.certificate), of(&self.key)]
    }
}

fn names_and_expiry(certificate: &CertificateDer<'_>) -> Result<(Vec<String>, i64), x509_cert::der::Error> {
    let parsed = Certificate::from_der(certificate)?.tbs_certificate;
    let expiry = parsed.validity.not_after.to_unix_duration().as_secs();
    let alternatives = parsed.get::<SubjectAltName>()?.map(|(_, names)| names.0).unwrap_or_default();
    let names = alternatives.iter().filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        _ => None,
    });
    Ok((names.collect(), i64::try_from(expiry).unwrap_or(i64::MAX)))
}

impl Certificates {
    /// Reads certificates. Their times of expiry are shown in `metrics`.
    ///
    /// # Errors
    /// No files are given, or some can't be read or used.
    pub fn load(files: &[CertificateFiles], metrics: &NetMetrics) -> Result<Arc<Self>, TlsError> {
        if files.is_empty() {
            return Err(TlsError("TLS needs a certificate and its key".to_owned()));
        }
        let mut entries = Vec::with_capacity(files.len());
        for files in files {
            let stamp = files.stamp();
            let loaded = files.load()?;
            let expiry = metrics.certificate_expiry(&files.certificate);
            expiry.set(loaded.expires_at);
            entries.push(Entry {
                files: files.clone(),
                loaded: RwLock::new(Arc::new(loaded)),
                stamps: Mutex::new(Stamps { read: stamp, polled: stamp }),
                expiry,
            });
        }
        Ok(Arc::new(Self { entries, version: AtomicU64::new(0), metrics: metrics.clone() }))
    }

    /// Reads all files again. Certificates that can't be used are logged, and the former ones stay in use. Open connections are
    /// not affected. Blocks.
    pub fn reload(&self) {
        for entry in &self.entries {
            self.reload_entry(entry, entry.files.stamp());
        }
    }

    /// As [`Certificates::reload`], but only for files that changed before the previous call and not since: a certificate and its
    /// key are not replaced in one step, and should not be read in between. Call it every [`POLL_INTERVAL`].
    pub fn reload_changed(&self) {
        for entry in &self.entries {
            let now = entry.files.stamp();
            let is_due = {
                let mut stamps = entry.stamps.lock();
                let is_quiet = std::mem::replace(&mut stamps.polled, now) == now;
                is_quiet && stamps.read != now
            };
            if is_due {
                self.reload_entry(entry, now);
            }
        }
    }

    fn reload_entry(&self, entry: &Entry, stamp: Stamp) {
        entry.stamps.lock().read = stamp;
        let loaded = entry.files.load();
        self.metrics.count_reload(loaded.is_ok());
        match loaded {
            Ok(loaded) => {
                entry.expiry.set(loaded.expires_at);
                info!(file = %entry.files.certificate.display(), names = ?loaded.names, "read a certificate again");
                *entry.loaded.write() = Arc::new(loaded);
                self.version.fetch_add(1, Ordering::Release);
            }
            Err(error) => warn!(%error, "can't read a certificate again: the former one stays in use"),
        }
    }

    /// A number that changes with each reload, for libraries that take a certificate by value.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The chain and the key of the first certificate.
    pub fn first(&self) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let loaded = self.entries.first()?.loaded.read().clone();
        Some((loaded.certified.cert.clone(), loaded.key.clone_key()))
    }

    /// The certificate for a name, or the first one.
    fn find(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let name = name.map(str::to_ascii_lowercase);
        let mut first = None;
        for entry in &self.entries {
            let loaded = entry.loaded.read().clone();
            if name.as_ref().is_some_and(|name| loaded.names.iter().any(|own| is_name_of(own, name))) {
                return Some(loaded.certified.clone());
            }
            first.get_or_insert(loaded);
        }
        first.map(|loaded| loaded.certified.clone())
    }
}

/// RFC 9525 §6.3: `*` stands for exactly one label, the first.
fn is_name_of(own: &str, asked: &str) -> bool {
    match own.strip_prefix("*.") {
        Some(parent) => {
            asked.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == parent)
        }
        None => own == asked,
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tls::authority::{Authority, files_in};

    fn shown(certificates: &Certificates, name: Option<&str>) -> Vec<u8> {
        certificates.find(name).unwrap().cert[0].to_vec()
    }

    fn metric(metrics: &NetMetrics) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn the_name_that_is_asked_for_chooses_the_certificate() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let (one, other) = (files_in(folder.path(), "one"), files_in(folder.path(), "other"));
        let first = authority.renew(&one, &["example.org"]);
        let second = authority.renew(&other, &["Example.net", "*.example.net"]);
        let certificates = Certificates::load(&[one, other], &NetMetrics::default()).unwrap();
        for (name, expected) in [
            (Some("example.org"), &first),
            (Some("example.net"), &second),
            (Some("MAIL.example.net"), &second),
            (Some("a.mail.example.net"), &first),
            (Some(".example.net"), &first),
            (Some("unknown.example"), &first),
            (None, &first),
        ] {
            assert_eq!(&shown(&certificates, name), expected, "{name:?}");
        }
    }

    #[test]
    fn changed_files_are_read_once_they_are_quiet() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let (files, metrics) = (files_in(folder.path(), "one"), NetMetrics::default());
        let old = authority.renew(&files, &["example.org"]);
        let certificates = Certificates::load(std::slice::from_ref(&files), &metrics).unwrap();
        certificates.reload_changed();
        assert_eq!(certificates.version(), 0, "nothing has changed");
        let new = authority.renew(&files, &["example.org"]);
        certificates.reload_changed();
        assert_eq!(shown(&certificates, None), old, "the key may be about to change as well");
        certificates.reload_changed();
        assert_eq!(shown(&certificates, None), new);
        certificates.reload_changed();
        assert_eq!(certificates.version(), 1);
        assert!(metric(&metrics).contains("certificate_reloads_total{result=\"ok\"} 1\n"));
    }

    #[test]
    fn files_that_can_not_be_used_keep_the_former_certificate() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let (files, metrics) = (files_in(folder.path(), "one"), NetMetrics::default());
        let old = authority.renew(&files, &["example.org"]);
        let certificates = Certificates::load(std::slice::from_ref(&files), &metrics).unwrap();
        let (_, key_of_another) = authority.sign(&["example.org"]);
        let text = fs::read(&files.certificate).unwrap();
        for bad in [b"".to_vec(), b"no PEM".to_vec(), text[..text.len() / 2].to_vec()] {
            fs::write(&files.certificate, bad).unwrap();
            certificates.reload();
            assert_eq!(shown(&certificates, None), old);
        }
        fs::write(&files.certificate, &text).unwrap();
        fs::write(&files.key, key_of_another.serialize_pem()).unwrap();
        certificates.reload();
        fs::remove_file(&files.key).unwrap();
        for _ in 0..5 {
            certificates.reload_changed(); // tried once, not with every poll
        }
        assert_eq!((shown(&certificates, None), certificates.version()), (old, 0));
        assert!(
            metric(&metrics).contains("certificate_reloads_total{result=\"failed\"} 5\n"),
            "{}",
            metric(&metrics)
        );
        assert!(Certificates::load(&[files], &metrics).unwrap_err().to_string().contains("one.key"));
        assert!(Certificates::load(&[], &metrics).is_err());
    }

    #[test]
    fn the_expiry_of_a_certificate_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let (files, metrics) = (files_in(folder.path(), "one"), NetMetrics::default());
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        fs::write(&files.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        Certificates::load(&[files], &metrics).unwrap();
        let text = metric(&metrics);
        let line = text.lines().find(|line| line.contains("expiry_timestamp_seconds{")).unwrap();
        assert!(line.ends_with("one.pem\"} 1893456000"), "{line}");
    }
}
