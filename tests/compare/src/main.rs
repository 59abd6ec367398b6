//! The command `restante-compare`; see the library.

use clap::Parser;
use restante_compare::CompareArgs;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    restante_compare::run(&CompareArgs::parse()).await
}
