//! The report as one page: no other file, no script, no network.

use super::{Goal, Plot, Report, Table, plot::COLOURS};

const STYLE: &str = "
:root { color-scheme: light dark; --page: #fff; --ink: #1c1e21; --soft: #6a7078; --rule: #dfe2e6; --good: #1a7f37; --bad: #c0362c }
:root { --c0: #2463c4; --c1: #d9822b; --c2: #2c9161; --c3: #a83f8c; --c4: #8a8f98; --c5: #b04a3b; --c6: #1d93a8; --c7: #8a7a1f; --c8: #5b4fc9; --c9: #c94f7c; --c10: #4f7a28; --c11: #555b66 }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --ink: #e4e6e9; --soft: #9aa1aa; --rule: #33373d; --good: #57c274; --bad: #f0776c }
  :root { --c0: #6ea3f2; --c1: #eda45c; --c2: #5fc493; --c3: #d981c0; --c4: #9aa1aa; --c5: #e28878; --c6: #56c3d6; --c7: #c9b75a; --c8: #9d93f5; --c9: #f08fb2; --c10: #94c269; --c11: #c2c8d0 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.4rem; margin: .5rem 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
.plots { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)) }
figure { margin: 0 } figcaption { font-weight: 600 }
svg { display: block; width: 100%; max-width: 38rem; height: auto } svg text { fill: var(--soft); font-size: 11px }
svg line { stroke: var(--rule) } svg polyline { fill: none; stroke-width: 1.8 }
.legend { color: var(--soft); font-size: .85rem; list-style: none; margin: 0; padding: 0 }
.legend li { display: inline-block; margin-right: 1rem } .legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em }
.columns { color: var(--soft); columns: 26rem; font-size: .82rem; list-style: none; margin: .4rem 0 0; padding: 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; border-bottom: 1px solid var(--rule); white-space: nowrap }
.n { text-align: right } .yes { color: var(--good) } .no { color: var(--bad); font-weight: 600 }
footer, .notes { color: var(--soft); font-size: .88rem }
";

pub(super) fn page(report: &Report) -> String {
    let body = [
        format!("<h1>restante bench {}</h1>\n<p>{}</p>\n", report.bench, escape(&report.title)),
        goals(report),
        plots(&report.plots),
        report.tables.iter().map(table).collect(),
        notes(&report.notes),
        machine(report),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>restante bench {}</title>\n<style>{STYLE}{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
        report.bench,
        colours(),
        body.concat(),
    )
}

/// The classes that colour bars, curves and legends.
fn colours() -> String {
    let mut rules = String::new();
    for colour in 0..COLOURS {
        rules.push_str(&format!(
            "rect.c{colour} {{ fill: var(--c{colour}) }} polyline.c{colour} {{ stroke: var(--c{colour}) }} \
             i.c{colour} {{ background: var(--c{colour}) }}\n"
        ));
    }
    rules
}

fn goals(report: &Report) -> String {
    let withheld = report.withheld_line().map(|line| format!("<p class=\"notes\">{}</p>\n", escape(&line)));
    let withheld = withheld.unwrap_or_default();
    let goals: Vec<&Goal> = report.judged().collect();
    if goals.is_empty() {
        return withheld;
    }
    let mut rows = String::new();
    for goal in goals {
        let class = if goal.is_met == Some(true) { "yes" } else { "no" };
        rows.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>\n",
            escape(&goal.what),
            escape(&goal.bound),
            escape(&goal.measured),
            goal.verdict(),
        ));
    }
    format!(
        "<h2>Goals</h2>\n<div class=\"wide\"><table>\n\
         <tr><th>what</th><th>goal</th><th>measured</th><th>met</th></tr>\n{rows}</table></div>\n{withheld}"
    )
}

fn plots(plots: &[Plot]) -> String {
    let figures: String = plots.iter().filter(|plot| plot.has_values()).map(figure).collect();
    if figures.is_empty() {
        return figures;
    }
    format!("<h2>Plots</h2>\n<div class=\"plots\">\n{figures}</div>\n")
}

fn figure(plot: &Plot) -> String {
    let mut legend = String::new();
    for (number, name) in plot.series().iter().enumerate() {
        legend.push_str(&format!("<li><i class=\"c{}\"></i>{}</li>", number % COLOURS, escape(name)));
    }
    let caption = format!("{} ({})", escape(plot.title()), plot.unit());
    let drawing = plot.svg();
    format!(
        "<figure><figcaption>{caption}</figcaption>\n<ul class=\"legend\">{legend}</ul>\n{drawing}</figure>\n"
    )
}

fn table(table: &Table) -> String {
    let has_numbers = table.has_numbers();
    let row = |tag: &str, cells: &[String]| {
        let mut line = String::from("<tr>");
        for (cell, is_number) in cells.iter().zip(&has_numbers) {
            let class = if *is_number { " class=\"n\"" } else { "" };
            line.push_str(&format!("<{tag}{class}>{}</{tag}>", escape(cell)));
        }
        line + "</tr>\n"
    };
    let mut lines = row("th", &table.columns);
    for cells in &table.rows {
        lines.push_str(&row("td", cells));
    }
    let title = escape(&table.title);
    format!("<h2>{title}</h2>\n<div class=\"wide\"><table>\n{lines}</table></div>\n{}", columns(table))
}

/// What the columns of a table mean.
fn columns(table: &Table) -> String {
    let mut items = String::new();
    for (column, meaning) in table.legend() {
        items.push_str(&format!("<li><b>{}</b>: {}</li>\n", escape(column), escape(meaning)));
    }
    if items.is_empty() { items } else { format!("<ul class=\"columns\">\n{items}</ul>\n") }
}

fn notes(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let items: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    format!("<h2>How to read this</h2>\n<ul class=\"notes\">\n{items}</ul>\n")
}

fn machine(report: &Report) -> String {
    let facts = report.machine.facts();
    let words: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {}", escape(value))).collect();
    format!("<footer><h2>Machine</h2><p>{}</p></footer>\n", words.join("; "))
}

/// Text escaped for HTML.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_self_contained_and_complete() {
        let page = page(&super::super::tests::example());
        assert!(page.starts_with("<!doctype html>"));
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<polyline").count(), 1);
        assert_eq!(page.matches("<rect").count(), 3);
        assert!(page.contains("An &lt;example&gt;."));
        assert!(page.contains("class=\"no\">NO<"));
        for outside in ["<script", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_plot_without_values_is_omitted() {
        let mut report = super::super::tests::example();
        let (title, unit) = ("Nothing".to_owned(), "ms");
        let lines = vec![("pages".to_owned(), Vec::new())];
        report.plots.push(Plot::Curves(super::super::Curves { title, unit, lines }));
        assert!(!page(&report).contains("Nothing"));
        report.plots.clear();
        assert!(!page(&report).contains("<h2>Plots"));
    }

    #[test]
    fn tags_are_closed() {
        let page = page(&super::super::tests::example());
        for tag in [
            "figure", "table", "tr", "td", "th", "ul", "li", "svg", "text", "h2", "b", "p", "div", "body",
            "html",
        ] {
            let opened =
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
