//! Incoming mail: the cost of checking a message, and how known senders are served during floods of strangers.

mod checks;
mod flood;

use std::path::PathBuf;

use crate::{args::OutputArgs, machine::Machine, report::Report, server, store::work_folder};

/// Flags of `bench mail-in`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench mail-in --data /var/lib/restante
  restante bench mail-in --flood --html mail-in.html
  restante bench mail-in --checks --quick --json mail-in.json")]
pub struct MailInArgs {
    /// Measure the checks of messages; without it and --flood both are measured
    #[arg(long)]
    pub checks: bool,
    /// Flood a server with connections, slow clients, unknown recipients and guessed passwords, and time known senders beside that
    #[arg(long)]
    pub flood: bool,
    /// Program to run as the server; by default this one
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// Where files and results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &MailInArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.output.common(0))
}

async fn measure(args: &MailInArgs) -> anyhow::Result<Report> {
    let common = args.output.common(0);
    let folder = work_folder(&common)?;
    let title = "Incoming mail: what checks cost, and known senders beside floods.";
    let mut report = Report::new("mail-in", title, Machine::look(folder.path()));
    let has_both = args.checks == args.flood;
    if args.checks || has_both {
        checks::measure(common.quick, &mut report).await?;
    }
    if args.flood || has_both {
        let program = server::program(args.server.as_deref())?;
        flood::measure(&program, folder.path(), common.quick, &mut report).await?;
    }
    report.note_debug_build();
    report.note_quick(args.output.quick);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_explained;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_quick_run_checks_each_kind_of_message() {
        let folder = tempfile::tempdir().unwrap();
        let data = Some(folder.path().to_owned());
        let output = OutputArgs { data, json: None, html: None, quick: true };
        let args = MailInArgs { checks: true, flood: false, server: None, output };
        let report = measure(&args).await.unwrap();
        let ops: Vec<&str> = report.rows.iter().filter_map(|row| row["op"].as_str()).collect();
        assert_eq!(ops, ["unsigned", "spf", "one_signature", "two_signatures", "changed", "large"]);
        assert!(report.rows.iter().all(|row| row["server_cpu_us"].as_f64() > Some(0.0)), "{:?}", report.rows);
        assert_explained(&report.tables);
    }
}
