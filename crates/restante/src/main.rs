//! The `restante` binary: command line, configuration, the server that opens the archive and starts the doors.

mod backups;
mod certificates;
mod cli;
mod client;
mod clock;
mod commands;
mod config;
mod doors;
mod exit;
mod live;
mod logging;
mod modes;
mod moment;
mod new_file;
mod open_files;
mod output;
mod progress;
mod public;
mod secrets;
mod signals;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;
use tikv_jemallocator::Jemalloc;

/// It returns unused memory to the system, including that of C libraries (LMDB, zstd). With the C library's allocator, which has more
/// arenas than cores and keeps free memory in them, a server that indexes mail needs several times as much.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// How long jemalloc keeps free pages: with its default of 10 seconds a server that receives and indexes mail has twice as many as it
/// uses. The environment variable `MALLOC_CONF` overrides it.
#[used]
#[expect(unsafe_code, reason = "jemalloc reads its settings from a variable of this name")]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 19] = b"dirty_decay_ms:200\0";

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(doors::advise(error)),
    };
    if cli.command.keeps_data() {
        modes::restrict();
    }
    restante_net::tls::install_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&anyhow::Error::new(error).context("can't start the runtime")),
    };
    // The command runs on this thread, not on one of the workers, so it may read files and write to a pipe in between.
    let outcome = runtime.block_on(commands::run(cli.command));
    // Remaining work had its time to finish; nothing may keep the process from ending now.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}
