//! Writes a report as XML (RFC 7489 appendix C).

use std::fmt::Write;

use restante_core::Error;
use restante_mail::dmarc::{DmarcRows, SeenRow};

use super::{DAY_SECONDS, Published};

/// A report.
#[derive(Clone, Debug)]
pub struct Feedback {
    /// The name of this server.
    pub organization: String,
    /// The address for questions about the report.
    pub email: String,
    /// The domain that the report is about.
    pub domain: String,
    /// The day, counted since 1970.
    pub day: u64,
    /// The policy that was found.
    pub published: Published,
    /// The results.
    pub rows: Vec<SeenRow>,
}

impl Feedback {
    /// The id of the report: always the same for the same domain and day.
    pub fn id(&self) -> String {
        format!("{}.{}", self.day, self.domain)
    }

    /// The first and the last second that the report covers.
    pub fn range(&self) -> (u64, u64) {
        let begin = self.day.saturating_mul(DAY_SECONDS);
        (begin, begin.saturating_add(DAY_SECONDS - 1))
    }
}

/// The report about a domain in a day. `organization` and `email` are the name of this server and its address for questions. `None`
/// when there are no results, or no record that says where a report goes.
///
/// # Errors
/// Those of reading the rows.
pub async fn feedback_of(
    rows: &DmarcRows,
    day: u64,
    domain: &str,
    organization: &str,
    email: &str,
) -> Result<Option<Feedback>, Error> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = rows.rows(day, domain, after).await?;
        all.extend(page.rows);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // If the record changed during the day, the one with the most messages counts.
    all.sort_by_key(|row| std::cmp::Reverse(row.count));
    let published = all.iter().find_map(|row| Published::parse(row.record.as_deref()?));
    Ok(published.map(|published| Feedback {
        organization: organization.to_owned(),
        email: email.to_owned(),
        domain: domain.to_owned(),
        day,
        published,
        rows: all,
    }))
}

/// Writes a report.
pub fn write_xml(feedback: &Feedback) -> String {
    let mut xml = Xml::default();
    let (begin, end) = feedback.range();
    let Published { adkim, aspf, p, sp, pct, fo, rua: _ } = &feedback.published;
    xml.within("feedback", |xml| {
        xml.leaf("version", "1.0");
        xml.within("report_metadata", |xml| {
            xml.leaf("org_name", &feedback.organization);
            xml.leaf("email", &feedback.email);
            xml.leaf("report_id", &feedback.id());
            xml.within("date_range", |xml| {
                xml.leaf("begin", &begin.to_string());
                xml.leaf("end", &end.to_string());
            });
        });
        xml.within("policy_published", |xml| {
            let pct = pct.to_string();
            for (name, value) in [
                ("domain", feedback.domain.as_str()),
                ("adkim", adkim),
                ("aspf", aspf),
                ("p", p),
                ("sp", sp),
                ("pct", &pct),
                ("fo", fo),
            ] {
                xml.leaf(name, value);
            }
        });
        for row in &feedback.rows {
            xml.within("record", |xml| write_row(xml, row));
        }
    });
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}", xml.text)
}

fn write_row(xml: &mut Xml, SeenRow { row, count, record: _ }: &SeenRow) {
    let result = |is_aligned: bool| if is_aligned { "pass" } else { "fail" };
    xml.within("row", |xml| {
        xml.leaf("source_ip", &row.source.map(|source| source.to_string()).unwrap_or_default());
        xml.leaf("count", &count.to_string());
        xml.within("policy_evaluated", |xml| {
            xml.leaf("disposition", row.disposition.as_str());
            xml.leaf("dkim", result(row.dkim_aligned));
            xml.leaf("spf", result(row.spf_aligned));
            if let Some(reason) = &row.reason {
                xml.within("reason", |xml| xml.leaf("type", reason));
            }
        });
    });
    xml.within("identifiers", |xml| {
        xml.leaf("envelope_from", &row.envelope_from);
        xml.leaf("header_from", &row.header_from);
    });
    xml.within("auth_results", |xml| {
        for dkim in &row.dkim {
            xml.within("dkim", |xml| {
                xml.leaf("domain", &dkim.domain);
                xml.leaf("selector", &dkim.selector);
                // DKIMResultType has no softfail, and no signature has that result.
                xml.leaf("result", &dkim.result);
            });
        }
        if let Some(spf) = &row.spf {
            xml.within("spf", |xml| {
                xml.leaf("domain", &spf.domain);
                xml.leaf("scope", spf.scope.as_str());
                xml.leaf("result", &spf.result);
            });
        }
    });
}

/// XML that is being written, indented by two spaces.
#[derive(Default)]
struct Xml {
    text: String,
    depth: usize,
}

impl Xml {
    fn within(&mut self, name: &str, content: impl FnOnce(&mut Self)) {
        let indent = self.depth * 2;
        // Writing to a text does not fail.
        let _ = writeln!(self.text, "{:indent$}<{name}>", "");
        self.depth += 1;
        content(self);
        self.depth -= 1;
        let _ = writeln!(self.text, "{:indent$}</{name}>", "");
    }

    fn leaf(&mut self, name: &str, value: &str) {
        let indent = self.depth * 2;
        let _ = writeln!(self.text, "{:indent$}<{name}>{}</{name}>", "", escaped(value));
    }
}

/// A text within an element. Characters that are not allowed by XML 1.0 §2.2 are replaced: some texts come from other servers.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
