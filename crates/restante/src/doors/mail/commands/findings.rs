//! Prints the findings of checks for people.

use std::io::{self, Write};

use indicatif::HumanCount;

use crate::output::{counted, printable};

/// Prints each finding on a line, with its place and the problem, and how many more there are.
pub(crate) fn print<'f>(
    findings: impl Iterator<Item = (&'f str, &'f str)>,
    wrong: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut printed = 0;
    for (place, what) in findings {
        writeln!(out, "{}: {}", printable(place), printable(what))?;
        printed += 1;
    }
    if wrong > printed {
        writeln!(out, "and {} more", HumanCount(wrong - printed))?;
    }
    Ok(())
}

/// Whether there are problems, in two or three words.
pub(crate) fn verdict(wrong: u64) -> String {
    match wrong {
        0 => "all sound".to_owned(),
        _ => counted(wrong, "damaged place", "damaged places"),
    }
}

/// Prints the figures of an engine that not all engines have.
pub(crate) fn print_figures<'f>(
    figures: impl IntoIterator<Item = (&'f String, &'f u64)>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let figures: Vec<(&String, &u64)> = figures.into_iter().collect();
    let width = figures.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    if width > 0 {
        writeln!(out)?;
    }
    for (name, figure) in figures {
        writeln!(out, "{name:<width$}  {:>16}", HumanCount(*figure).to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn findings_are_listed_one_a_line() {
        let findings = [("account 1", "it has no body"), ("x.pack", "checksum is wrong")];
        let text = printed(|out| print(findings.into_iter(), 5, out));
        assert_eq!(text, "account 1: it has no body\nx.pack: checksum is wrong\nand 3 more\n");
        assert_eq!(printed(|out| print(std::iter::empty(), 0, out)), "");
        let verdicts = [0, 1, 1_000].map(verdict);
        assert_eq!(verdicts, ["all sound", "1 damaged place", "1,000 damaged places"]);
    }

    #[test]
    fn figures_stand_below_each_other() {
        let figures = [("pages".to_owned(), 12_345), ("free pages".to_owned(), 7)];
        let text = printed(|out| print_figures(figures.iter().map(|(name, figure)| (name, figure)), out));
        assert_eq!(text, "\npages                 12,345\nfree pages                 7\n");
        assert_eq!(printed(|out| print_figures([], out)), "");
    }
}
