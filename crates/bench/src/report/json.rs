//! The report as JSON: `{"bench", "machine", "rows"}`.

use serde::Serialize;

use super::Report;
use crate::machine::Machine;

#[derive(Serialize)]
struct Page<'a> {
    bench: &'static str,
    machine: &'a Machine,
    rows: &'a [serde_json::Value],
}

pub(super) fn page(report: &Report) -> anyhow::Result<String> {
    let page = Page { bench: report.bench, machine: &report.machine, rows: &report.rows };
    let mut text = serde_json::to_string_pretty(&page)?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_bench_machine_and_rows() {
        let text = super::page(&super::super::tests::example()).unwrap();
        let page: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(page["bench"], "history");
        assert!(page["machine"]["cores"].is_u64());
        assert_eq!(page["rows"][0]["median_ms"], 0.5);
        assert_eq!(page.as_object().unwrap().len(), 3);
    }
}
