//! The accounts, the certificate and the settings of the server that is flooded.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
};

use restante_archive::EngineUrl;
use restante_core::SystemClock;
use restante_directory::{
    Actor, Directory, DirectoryConfig, DirectoryMetrics, Domain, NewPassword, Operation, Role,
};
use restante_records::Schema;

use super::{Scenario, known::SUBMITTERS};
use crate::server::{Server, Settings};

pub(super) const DOMAIN: &str = "example.org";
pub(super) const PASSWORD: &str = "correct horse battery";
/// Accounts that known senders write to.
pub(super) const RECIPIENTS: u64 = 20;
/// Accounts whose passwords are guessed.
pub(super) const VICTIMS: u64 = 100;

/// An account that known senders write to.
pub(super) fn recipient(number: u64) -> String {
    format!("recipient{number}@{DOMAIN}")
}

/// An account whose password a flood guesses.
pub(super) fn victim(number: u64) -> String {
    format!("victim{number}@{DOMAIN}")
}

/// A user who submits mail in a scenario: each account may send 100 mails an hour.
pub(super) fn user(scenario: Scenario, number: u64) -> String {
    format!("{}{number}@{DOMAIN}", scenario.op())
}

/// The files of all servers of a run.
pub(super) struct Setup {
    folder: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    /// The name server that they query.
    names: SocketAddr,
}

/// A server with SMTP and submission.
pub(super) struct Target {
    pub(super) server: Server,
    pub(super) smtp: SocketAddr,
    pub(super) submission: SocketAddr,
}

impl Setup {
    /// Makes accounts and a certificate.
    pub(super) async fn make(folder: &Path, names: SocketAddr) -> anyhow::Result<Self> {
        let (certificate, key) = (folder.join("own.pem"), folder.join("own.key"));
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        fs::write(&certificate, own.cert.pem())?;
        fs::write(&key, own.key_pair.serialize_pem())?;
        let setup = Self { folder: folder.to_owned(), certificate, key, names };
        setup.add_accounts().await?;
        Ok(setup)
    }

    async fn add_accounts(&self) -> anyhow::Result<()> {
        let kinds = restante_mail::kinds().into_iter().chain(restante_directory::kinds());
        let url = restante_records::EngineUrl::Lmdb(self.folder.join("records"));
        let schema = Schema::new(kinds.collect())?;
        let records = restante_records::open(restante_records::Config::new(url, schema)).await?;
        let (config, metrics) = (DirectoryConfig::default(), DirectoryMetrics::default());
        let (directory, _) = Directory::open(&records, config, Arc::new(SystemClock), metrics).await?;
        let actor = Actor("restante bench".to_owned());
        let domain: Domain = DOMAIN.parse()?;
        directory.operate(&actor, Operation::AddDomain { domain, separator: None, catch_all: None }).await?;
        let mut accounts: Vec<(String, Option<NewPassword>)> = Vec::new();
        accounts.extend((0..RECIPIENTS).map(|number| (recipient(number), None)));
        accounts.extend((0..VICTIMS).map(|number| (victim(number), None)));
        for scenario in Scenario::ALL {
            let password = || Some(NewPassword::Given(PASSWORD.to_owned()));
            accounts.extend((0..SUBMITTERS).map(|number| (user(scenario, number), password())));
        }
        for (address, password) in accounts {
            let address = address.parse()?;
            let add = Operation::AddAccount { address, password, role: Role::User, quota_bytes: None };
            directory.operate(&actor, add).await?;
        }
        drop(directory);
        Ok(records.upkeep.close().await?)
    }

    /// Starts a server of its own for a scenario, so that no limit or memory use is left over from another one.
    pub(super) async fn start(&self, program: &Path, scenario: Scenario) -> anyhow::Result<Target> {
        let [smtp, submission] = free_addresses()?;
        let below = |name: &str| self.folder.join(name).display().to_string();
        let flags = [
            ("--smtp-listen", smtp.to_string()),
            ("--submission-listen", submission.to_string()),
            ("--records", format!("lmdb:{}", below("records"))),
            ("--blobs", format!("files:{}", below("blobs"))),
            ("--search", format!("tantivy:{}", below("search"))),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let variables = vec![
            // Loopback is exempt from the limits of addresses: clients have the addresses that a proxy header gives.
            ("RESTANTE_SMTP__PROXIES", "127.0.0.1".to_owned()),
            ("RESTANTE_TLS__CERTIFICATE_FILES", self.certificate.display().to_string()),
            ("RESTANTE_TLS__CERTIFICATE_KEY_FILES", self.key.display().to_string()),
            ("RESTANTE_DELIVERY__REMOTE__RESOLVER", self.names.to_string()),
            ("RESTANTE_OPERATE__LISTEN", String::new()),
            ("RESTANTE_PUBLIC__LISTEN", String::new()),
        ];
        let settings = Settings { flags, variables };
        let name = format!("server-{}", scenario.op());
        let server = Server::start_with(program, &EngineUrl::Memory, &self.folder, &name, &settings).await?;
        Ok(Target { server, smtp, submission })
    }
}

/// Addresses whose ports are free now.
fn free_addresses() -> anyhow::Result<[SocketAddr; 2]> {
    let bind = || TcpListener::bind("127.0.0.1:0");
    let (one, other) = (bind()?, bind()?);
    Ok([one.local_addr()?, other.local_addr()?])
}
