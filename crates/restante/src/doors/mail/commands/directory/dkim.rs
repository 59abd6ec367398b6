//! `restante domain dkim`: the keys that sign the mail of a domain.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, Subcommand, ValueEnum};
use restante_delivery::{
    dkim::{Algorithm, Answer, DkimKeys, KeyInfo, KeyState, Operation},
    domain_records::{Content, DnsRecord, Purpose},
};
use restante_directory::{Directory, DirectoryMetrics, Domain};

use super::{
    reach::{DirectoryFlags, Reached, command_line},
    show,
};
use crate::{backups, clock, config::Config, output::ReportFormat};

/// The path for operations on keys on a running server.
pub(super) const PATH: &str = "/admin/v1/dkim";
/// The file in the data folder with the key that encrypts private keys.
pub(crate) const KEY_FILE: &str = "secrets.key";

#[derive(Subcommand, Debug)]
pub(crate) enum DkimCommand {
    /// List the keys of a domain
    #[command(after_help = "Example:\n  restante domain dkim list example.org")]
    List(DomainFlags),
    /// Create keys, and print the DNS records to publish
    #[command(after_help = CREATE_HELP)]
    Create(CreateFlags),
    /// Sign with a key, and retire the one that signed before
    #[command(after_help = ACTIVATE_HELP)]
    Activate(KeyFlags),
    /// Stop signing with a key
    #[command(after_help = "Example:\n  restante domain dkim retire example.org 20261123r")]
    Retire(KeyFlags),
    /// Remove a key that does not sign
    #[command(after_help = REMOVE_HELP)]
    Remove(KeyFlags),
}

const CREATE_HELP: &str = "\
Examples:
  restante domain dkim create example.org
  restante domain dkim create example.org --algorithm rsa --selector mail

Without --algorithm it creates a key of RSA, which all servers verify, and one of Ed25519. Nothing
is signed with them yet: publish the records, check them with `restante domain check`, then use
`restante domain dkim activate`.";

const ACTIVATE_HELP: &str = "\
Example:
  restante domain dkim activate example.org 20261123r

Its DNS record must be published: restante domain check example.org. The active key of the same
algorithm is retired. Leave its record in the DNS for a week, for mail that is still under way, and
remove both then.";

const REMOVE_HELP: &str = "\
Example:
  restante domain dkim remove example.org 20260523r

Remove its DNS record, too. A key that signs is not removed: activate another one or retire it.";

#[derive(Args, Debug)]
pub(crate) struct DomainFlags {
    /// The domain, as example.org
    domain: Domain,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct CreateFlags {
    /// The domain, as example.org
    domain: Domain,
    /// Create one key, of this algorithm [default: one of each]
    #[arg(long, value_name = "ALGORITHM")]
    algorithm: Option<AlgorithmFlag>,
    /// The name of the key in the DNS [default: the date and a letter]
    #[arg(long, value_name = "NAME", requires = "algorithm")]
    selector: Option<String>,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Args, Debug)]
pub(crate) struct KeyFlags {
    /// The domain, as example.org
    domain: Domain,
    /// The name of the key, as `restante domain dkim list` prints it
    selector: String,
    #[command(flatten)]
    flags: DirectoryFlags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AlgorithmFlag {
    /// RSA with 2,048 bits
    Rsa,
    /// Ed25519
    Ed25519,
}

impl From<AlgorithmFlag> for Algorithm {
    fn from(flag: AlgorithmFlag) -> Self {
        match flag {
            AlgorithmFlag::Rsa => Self::Rsa,
            AlgorithmFlag::Ed25519 => Self::Ed25519,
        }
    }
}

/// The keys in records that this process has open.
pub(super) async fn open_keys(
    opened: &restante_records::Opened,
    config: &Config,
) -> anyhow::Result<DkimKeys> {
    let (settings, metrics) = (config.directory.clone(), DirectoryMetrics::default());
    let (directory, _) = Directory::open(opened, settings, clock::system(), metrics).await?;
    Ok(keys_of(opened, config, directory))
}

/// The keys of domains in these records.
pub(crate) fn keys_of(opened: &restante_records::Opened, config: &Config, directory: Directory) -> DkimKeys {
    let key_file = backups::data_folder(config).join(KEY_FILE);
    DkimKeys::new(opened.records.clone(), clock::system(), directory, key_file)
}

/// Does one operation, in records that no server has open or through the server that has.
pub(super) async fn operate(reached: &Reached, operation: Operation) -> anyhow::Result<Vec<KeyInfo>> {
    let answer: Answer = match reached {
        Reached::Here { opened, config } => {
            let keys = open_keys(opened, config).await?;
            // A refusal has the same exit code as when a running server refuses.
            keys.operate(&command_line(), operation).await.map_err(|error| anyhow::anyhow!("{error}"))?
        }
        Reached::Server(server) => server.ask(PATH, operation).await?,
    };
    Ok(answer.keys)
}

pub(super) async fn run(command: DkimCommand) -> anyhow::Result<ExitCode> {
    let (operation, flags) = match command {
        DkimCommand::List(DomainFlags { domain, flags }) => (Operation::List { domain }, flags),
        DkimCommand::Create(CreateFlags { domain, algorithm, selector, flags }) => {
            let algorithms = algorithm.map(Algorithm::from).into_iter().collect();
            (Operation::Create { domain, algorithms, selector }, flags)
        }
        DkimCommand::Activate(KeyFlags { domain, selector, flags }) => {
            (Operation::Activate { domain, selector }, flags)
        }
        DkimCommand::Retire(KeyFlags { domain, selector, flags }) => {
            (Operation::Retire { domain, selector }, flags)
        }
        DkimCommand::Remove(KeyFlags { domain, selector, flags }) => {
            (Operation::Remove { domain, selector }, flags)
        }
    };
    let is_creation = matches!(operation, Operation::Create { .. });
    let reached = flags.reach().await?;
    let done = operate(&reached, operation).await;
    reached.close().await?;
    let keys = done?;
    match flags.format {
        ReportFormat::Text if is_creation => print_created(&keys)?,
        format => show::list(&keys, format, HEAD, row)?,
    }
    Ok(ExitCode::SUCCESS)
}

const HEAD: &[&str] = &["selector", "algorithm", "state", "created", "changed"];

fn row(key: &KeyInfo) -> Vec<String> {
    let algorithm = match key.algorithm {
        Algorithm::Rsa => "rsa",
        Algorithm::Ed25519 => "ed25519",
    };
    let state = match key.state {
        KeyState::Waiting => "waiting",
        KeyState::Active => "active",
        KeyState::Retired => "retired",
    };
    let (created, changed) = (show::time(key.created), show::time(key.changed));
    vec![key.selector.clone(), algorithm.to_owned(), state.to_owned(), created, changed]
}

/// Prints the records of new keys, and what to do next.
fn print_created(keys: &[KeyInfo]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "; Publish these records:")?;
    for key in keys {
        let record = DnsRecord {
            purpose: Purpose::Dkim,
            name: key.record_name(),
            content: Content::Txt(key.record_text()),
            key: Some(key.state),
        };
        writeln!(out, "{record}")?;
    }
    if let Some(domain) = keys.first().map(|key| &key.domain) {
        writeln!(out, "; Then: restante domain check {domain}")?;
    }
    for key in keys {
        writeln!(out, ";       restante domain dkim activate {} {}", key.domain, key.selector)?;
    }
    Ok(())
}
