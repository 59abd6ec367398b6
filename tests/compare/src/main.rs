//! `restante-compare`: see the library beside it.

use clap::Parser;
use restante_compare::CompareArgs;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    restante_compare::run(&CompareArgs::parse()).await
}
