//! Tables of plain text, and the formatting of numbers.

/// A table with a title.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Columns and their meanings.
    explained: Vec<(&'static str, &'static str)>,
}

/// The meanings of columns that many tables have.
const COMMON: &[(&str, &str)] = &[
    ("p50 ms", "half of the times were at most this long"),
    ("p95 ms", "95 % of the times were at most this long"),
    ("p99 ms", "99 % of the times were at most this long"),
    ("p50 us", "half of the times were at most this long"),
    ("p99 us", "99 % of the times were at most this long"),
    ("longest ms", "the longest of the times"),
    ("longest us", "the longest of the times"),
    ("at once", "queries that run at the same time"),
    ("MB/s", "bytes of message bodies, 1,000,000 a second"),
    ("lost", "acknowledged, but missing at the end"),
    ("refused", "answered with an error"),
    ("unanswered", "the connection ended without an answer"),
];

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { title: title.into(), columns, rows: Vec::new(), explained: Vec::new() }
    }

    /// Adds the meanings of columns, which are shown below a table that has these columns.
    pub fn explain(mut self, columns: &[(&'static str, &'static str)]) -> Self {
        self.explained.extend_from_slice(columns);
        self
    }

    /// The columns with a meaning, in their order.
    pub(super) fn legend(&self) -> impl Iterator<Item = (&str, &str)> {
        self.columns.iter().filter_map(|column| {
            let mut known = self.explained.iter().chain(COMMON);
            known.find(|(name, _)| name == column).copied()
        })
    }

    /// Adds a row; it has as many cells as there are columns.
    pub fn add(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(row.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(row);
    }

    /// For each column whether it has numbers, which are aligned right.
    pub(super) fn has_numbers(&self) -> Vec<bool> {
        let of_column = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.all(|cell| cell == "-" || cell.starts_with(|first: char| first.is_ascii_digit()))
        };
        (0..self.columns.len()).map(of_column).collect()
    }

    /// The table as text, with columns aligned by spaces.
    pub(super) fn text(&self) -> String {
        let has_numbers = self.has_numbers();
        let widths = self.widths();
        let mut text = format!("{}\n", self.title);
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        for row in [&self.columns, &rule].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), is_number) in row.iter().zip(&widths).zip(&has_numbers) {
                let padding = " ".repeat(width.saturating_sub(cell.len()));
                let (left, right) = if *is_number { (padding.as_str(), "") } else { ("", padding.as_str()) };
                line.push_str(&format!("{left}{cell}{right}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        for (column, meaning) in self.legend() {
            text.push_str(&format!("  {column}: {meaning}\n"));
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(String::len).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.len());
            }
        }
        widths
    }
}

/// A number with three significant digits; an integer if it is at least a hundred, with commas if it is at least a thousand.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    with_commas(text)
}

/// A number that may be missing.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// Commas between groups of three digits before the point.
fn with_commas(text: &str) -> String {
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        let left = whole.len() - place;
        let is_after_digit = grouped.ends_with(|last: char| last.is_ascii_digit());
        if left % 3 == 0 && is_after_digit {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Columns that need no explanation.
    const PLAIN: &[&str] = &[
        "acknowledged",
        "appenders",
        "changes",
        "committers",
        "connections",
        "direction",
        "engine",
        "errors",
        "goal",
        "keys",
        "measured",
        "messages",
        "messages/s",
        "met",
        "op",
        "page",
        "pages",
        "pages/s",
        "published",
        "query",
        "records",
        "requests",
        "rows",
        "sent",
        "sessions",
        "status",
        "store",
        "stored",
        "streams",
        "text",
        "topics",
        "unit",
        "users",
        "value",
        "what",
    ];

    /// Panics when a table has a column without an explanation.
    pub(crate) fn assert_explained(tables: &[Table]) {
        for table in tables {
            let known: Vec<&str> = table.legend().map(|(column, _)| column).collect();
            for column in &table.columns {
                let is_known = known.contains(&column.as_str()) || PLAIN.contains(&column.as_str());
                assert!(is_known, "nothing explains the column {column} of {}", table.title);
            }
        }
    }

    #[test]
    fn a_legend_follows_the_order_of_columns() {
        let mut table = Table::new("T", &["engine", "p50 ms", "own"]).explain(&[("own", "of this table")]);
        table.add(["a".to_owned(), "1".to_owned(), "2".to_owned()]);
        let text = table.text();
        let below = text.split_once("a            1    2\n").unwrap().1;
        assert_eq!(below, "  p50 ms: half of the times were at most this long\n  own: of this table\n");
        assert_explained(&[table]);
    }

    #[test]
    #[should_panic(expected = "nothing explains the column strange")]
    fn a_column_without_meaning_is_noticed() {
        assert_explained(&[Table::new("T", &["engine", "strange"])]);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.00005, 0.0154, 0.2, 1.0, 4.456, 71.04, 316.4, 1_467_846.0, -1234.0].map(number);
        let expected = ["0", "0.0001", "0.0154", "0.2", "1", "4.46", "71", "316", "1,467,846", "-1,234"];
        assert_eq!(shown, expected.map(str::to_owned));
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("T", &["name", "ms"]);
        table.add(["a".to_owned(), "1".to_owned()]);
        table.add(["long name".to_owned(), "12.5".to_owned()]);
        assert_eq!(table.text(), "T\nname         ms\n---------  ----\na             1\nlong name  12.5\n");
    }
}
