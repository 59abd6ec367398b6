//! Figures of engines, for people.

use std::io::{self, Write};

use indicatif::HumanCount;

/// Prints the figures that an engine has beside those that all have.
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
    fn figures_stand_below_each_other() {
        let figures = [("pages".to_owned(), 12_345), ("free pages".to_owned(), 7)];
        let text = printed(|out| print_figures(figures.iter().map(|(name, figure)| (name, figure)), out));
        assert_eq!(text, "\npages                 12,345\nfree pages                 7\n");
        assert_eq!(printed(|out| print_figures([], out)), "");
    }
}
