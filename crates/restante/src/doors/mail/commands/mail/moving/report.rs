//! What a command reports at its end, and its progress.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use indicatif::HumanCount;
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    output::{counted, printable},
    progress::Progress,
};

/// Problems that are listed; further ones are only counted.
const LISTED_MAX: usize = 1_000;
/// How often a progress line is printed when stderr is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The number of problems, and the listed ones.
#[derive(Debug, Default, Serialize)]
pub(super) struct Problems {
    pub(super) count: u64,
    pub(super) listed: Vec<String>,
}

impl Problems {
    pub(super) fn add(&mut self, problem: String) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(problem);
        }
    }

    /// Lists them on stderr.
    pub(super) fn print(&self) {
        for problem in &self.listed {
            eprintln!("restante: {}", printable(problem));
        }
        let unlisted = self.count - self.listed.len() as u64;
        if unlisted > 0 {
            eprintln!("restante: {} more", HumanCount(unlisted));
        }
    }
}

/// A progress bar in a terminal, and lines elsewhere.
pub(super) struct Shown {
    bar: Progress,
    lines: Option<Instant>,
    what: &'static str,
}

impl Shown {
    pub(super) fn new(bar: Progress, what: &'static str) -> Self {
        let lines = (!io::stderr().is_terminal()).then(Instant::now);
        Self { bar, lines, what }
    }

    /// Sets the progress to `done`; `emails` were moved so far.
    pub(super) fn set(&mut self, done: u64, emails: u64) {
        self.bar.set(done);
        if let Some(last) = &mut self.lines
            && last.elapsed() >= LINE_INTERVAL
        {
            *last = Instant::now();
            eprintln!("{} {} so far", self.what, counted(emails, "email", "emails"));
        }
    }
}
