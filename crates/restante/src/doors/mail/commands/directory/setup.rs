//! `restante setup`: creates settings, a domain and a first account for a new server.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueHint};
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use restante_directory::{Answer, Domain, EmailAddress, NewPassword, Operation, Role, SEPARATOR};

use super::reach::operate_on;
use crate::{
    clock,
    config::Config,
    doors::{self, mail::records},
    exit::UsageError,
};

/// The settings are written where `restante serve` looks for them.
const SETTINGS: &str = "restante.toml";
/// The self-signed certificate is valid until this many years after the current one.
const CERTIFICATE_YEARS: i32 = 2;

#[derive(Args, Debug)]
pub(crate) struct SetupFlags {
    /// The domain of the addresses, as example.org
    domain: Domain,
    /// The first account, before the @; postmaster and abuse are aliases of it
    #[arg(long, value_name = "NAME", default_value = "admin")]
    user: String,
    /// Keep everything below this folder
    #[arg(long, value_name = "DIR", default_value = "data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
}

pub(crate) async fn run(flags: &SetupFlags) -> anyhow::Result<ExitCode> {
    let SetupFlags { domain, user, data } = flags;
    let address = EmailAddress::new(user, domain.clone()).map_err(|error| UsageError(error.to_string()))?;
    check_is_new(data)?;
    let host: Domain = format!("mail.{domain}").parse()?;
    let config = config(data);
    fs::create_dir_all(data).with_context(|| format!("can't make {}", data.display()))?;
    let certificate = make_certificate(domain, &host, data)?;
    make_token(&config.operate.token_file)?;
    let password = make_directory(&config, domain, &address).await?;
    // Last: once it exists, everything that it names exists.
    write_new(Path::new(SETTINGS), 0o640, settings(data, &host, &config, &certificate)?.as_bytes())?;
    let text = report(domain, &host, &address, &password, &certificate, &config);
    write!(io::stdout().lock(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// Fails when there is already a server here.
fn check_is_new(data: &Path) -> anyhow::Result<()> {
    if fs::symlink_metadata(SETTINGS).is_ok() {
        bail!(
            "{SETTINGS} is there already: run this in another folder, or add a domain with `restante domain add`"
        );
    }
    let is_used = |entries: fs::ReadDir| entries.flatten().next().is_some();
    if fs::read_dir(data).is_ok_and(is_used) {
        bail!("{} is not empty: name another folder with --data", data.display());
    }
    Ok(())
}

/// The settings that differ from their defaults, except those of doors.
fn config(data: &Path) -> Config {
    let mut config = Config::default();
    config.server.data_dir = data.to_owned();
    config.operate.token_file = data.join("operator.token");
    config
}

fn settings(data: &Path, host: &Domain, config: &Config, files: &CertificateFiles) -> anyhow::Result<String> {
    let quoted = |path: &Path| -> anyhow::Result<String> {
        let text = path.to_str().ok_or_else(|| anyhow!("{} is no UTF-8", data.display()))?;
        Ok(toml::Value::String(text.to_owned()).to_string())
    };
    Ok(format!(
        "# Settings that differ from the defaults; `restante config show` prints all.\n\n\
         [server]\ndata_dir = {}\n\n\
         # Operators need the token in this file: commands on this machine read it, the console asks for it.\n\
         [operate]\ntoken_file = {}\n\n\
         # Self-signed: replace them by certificates that clients trust.\n\
         [tls]\ncertificate_files = [{}]\ncertificate_key_files = [{}]\n\n\
         [smtp]\nhostname = {}\n{}",
        quoted(data)?,
        quoted(&config.operate.token_file)?,
        quoted(&files.certificate)?,
        quoted(&files.key)?,
        quoted(Path::new(host.as_str()))?,
        doors::lines("restante.toml"),
    ))
}

struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
}

/// Creates a self-signed certificate, so that clients can try the server before it has a trusted one.
fn make_certificate(domain: &Domain, host: &Domain, data: &Path) -> anyhow::Result<CertificateFiles> {
    let failed = "can't make a certificate";
    let names = vec![host.to_string(), domain.to_string()];
    let mut params = CertificateParams::new(names).context(failed)?;
    params.distinguished_name.push(DnType::CommonName, host.to_string());
    // The date begins with the year.
    let today = clock::system().now().to_string();
    let year: i32 = today.split('-').next().and_then(|year| year.parse().ok()).context(failed)?;
    params.not_before = date_time_ymd(year, 1, 1);
    params.not_after = date_time_ymd(year + CERTIFICATE_YEARS, 12, 31);
    let key = KeyPair::generate().context(failed)?;
    let certificate = params.self_signed(&key).context(failed)?;
    let folder = data.join("tls");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let files = CertificateFiles {
        certificate: folder.join(format!("{domain}.crt")),
        key: folder.join(format!("{domain}.key")),
    };
    write_new(&files.certificate, 0o640, certificate.pem().as_bytes())?;
    write_new(&files.key, 0o600, key.serialize_pem().as_bytes())?;
    Ok(files)
}

/// Creates the token of operators.
fn make_token(file: &Path) -> anyhow::Result<()> {
    let token = restante_directory::random_secret()?;
    write_new(file, 0o600, format!("{token}\n").as_bytes())
}

/// Creates the records with the domain, the account and its aliases; returns the password.
async fn make_directory(config: &Config, domain: &Domain, address: &EmailAddress) -> anyhow::Result<String> {
    let opened = records::open(config, Default::default()).await?;
    let made = fill_directory(&opened, config, domain, address).await;
    opened.upkeep.close().await.context("can't close the records")?;
    made
}

async fn fill_directory(
    opened: &restante_records::Opened,
    config: &Config,
    domain: &Domain,
    address: &EmailAddress,
) -> anyhow::Result<String> {
    let add = Operation::AddDomain { domain: domain.clone(), separator: Some(SEPARATOR), catch_all: None };
    operate_on(opened, config, add).await?;
    let add = Operation::AddAccount {
        address: address.clone(),
        password: Some(NewPassword::Generated),
        role: Role::Operator,
        quota_bytes: None,
    };
    let Answer::Password { password: Some(password), .. } = operate_on(opened, config, add).await? else {
        bail!("the account got no password");
    };
    // RFC 5321 §4.5.1 requires postmaster, RFC 2142 abuse.
    for name in ["postmaster", "abuse"] {
        let alias = EmailAddress::new(name, domain.clone())?;
        if alias != *address {
            let add = Operation::AddAlias { address: alias, targets: vec![address.clone()] };
            operate_on(opened, config, add).await?;
        }
    }
    Ok(password)
}

/// Writes a new file durably; it must not exist.
fn write_new(path: &Path, mode: u32, content: &[u8]) -> anyhow::Result<()> {
    let written = File::options().write(true).create_new(true).mode(mode).open(path).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} is there already", path.display())
        }
        written => written.with_context(|| format!("can't write {}", path.display()))?,
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("can't write {}", path.display()))
}

fn report(
    domain: &Domain,
    host: &Domain,
    address: &EmailAddress,
    password: &str,
    files: &CertificateFiles,
    config: &Config,
) -> String {
    let CertificateFiles { certificate, key } = files;
    format!(
        "\
account      {address}
password     {password}
             Shown only once; `restante account password {address}` sets another.
settings     {SETTINGS}
data         {data}
certificate  {certificate}, key {key}: self-signed, for a first try
token        {token}, for the console and for commands on other machines

DNS records to set, with the addresses of your server:
  {host}.  A     192.0.2.1
  {host}.  AAAA  2001:db8::1
  {domain}.  MX    10 {host}.
  {domain}.  TXT   \"v=spf1 mx -all\"
  _dmarc.{domain}.  TXT   \"v=DMARC1; p=quarantine; rua=mailto:postmaster@{domain}\"
  _jmap._tcp.{domain}.  SRV   0 1 443 {host}.

Next:
  restante serve
  restante account add NAME@{domain}
  restante account list
The console is at http://127.0.0.1:8646 and asks for the token.
Mail programs read by JMAP at http://127.0.0.1:8647, mail comes in by LMTP at 127.0.0.1:2424.
Before the MX record is set, let mail in: smtp.listen = [\"0.0.0.0:25\"]. To send to other servers,
make keys with `restante domain dkim create {domain}`, then `restante domain check {domain}`.
",
        data = config.server.data_dir.display(),
        certificate = certificate.display(),
        key = key.display(),
        token = config.operate.token_file.display(),
    )
}
