//! Lists that are printed page by page, so that a long one is never in memory as a whole.

use std::{
    io::{self, Write},
    marker::PhantomData,
};

use serde::Serialize;

use crate::output::{ReportFormat, write_json};

/// An item of a list, with its line for people.
pub(super) trait Item: Serialize {
    /// The head line of the list.
    fn head() -> String;

    /// Its line, without characters that could control a terminal.
    fn line(&self) -> String;
}

/// Prints items: as lines below one head, or as one JSON array.
pub(super) struct Pages<T> {
    format: ReportFormat,
    printed: u64,
    items: PhantomData<T>,
}

impl<T: Item> Pages<T> {
    pub(super) fn new(format: ReportFormat) -> Self {
        Self { format, printed: 0, items: PhantomData }
    }

    /// Prints a page.
    pub(super) fn print(&mut self, items: &[T], out: &mut dyn Write) -> io::Result<()> {
        for item in items {
            match self.format {
                ReportFormat::Text => {
                    if self.printed == 0 {
                        writeln!(out, "{}", T::head().trim_end())?;
                    }
                    writeln!(out, "{}", item.line().trim_end())?;
                }
                ReportFormat::Json => {
                    out.write_all(if self.printed == 0 { b"[" } else { b"," })?;
                    write_json(&mut *out, item)?;
                }
            }
            self.printed += 1;
        }
        Ok(())
    }

    /// Ends the list.
    pub(super) fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.format {
            ReportFormat::Text => Ok(()),
            ReportFormat::Json if self.printed == 0 => writeln!(out, "[]"),
            ReportFormat::Json => writeln!(out, "]"),
        }
    }
}
