//! A report as a message (RFC 7489 §7.2.1.1).

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use restante_core::Error;
use restante_mail_wire::{
    compose::{Content, FieldValue, Message, Origin, Part},
    header::{Address, Date},
};

use super::{Feedback, write_xml};

/// A report, compressed.
pub(super) fn compressed(feedback: &Feedback) -> Result<Bytes, Error> {
    let failed = |error| Error::internal("a report can't be compressed").with_source(error);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(write_xml(feedback).as_bytes()).map_err(failed)?;
    Ok(encoder.finish().map_err(failed)?.into())
}

/// The message that carries a report to its addresses.
pub(super) fn compose(
    feedback: &Feedback,
    compressed: Bytes,
    to: &[&str],
    now: u64,
    key: [u8; 32],
) -> Result<Bytes, Error> {
    let Feedback { organization, email, domain, .. } = feedback;
    let (begin, end) = feedback.range();
    let address = |email: &str| Address { name: None, email: email.to_owned() };
    let subject = format!("Report Domain: {domain} Submitter: {organization} Report-ID: <{}>", feedback.id());
    let fields = vec![
        ("From", FieldValue::Addresses(vec![address(email)])),
        ("To", FieldValue::Addresses(to.iter().map(|to| address(to)).collect())),
        ("Subject", FieldValue::Text(subject)),
        ("Auto-Submitted", FieldValue::Raw(" auto-generated".to_owned())),
    ];
    let text = format!(
        "This is an aggregate report of DMARC about {domain}, from {organization}.\n\
         It covers the seconds {begin} to {end} since 1970, in UTC.\n"
    );
    let mut file = Part::new("application/gzip", Content::Bytes(compressed));
    file.disposition = Some("attachment".to_owned());
    file.name = Some(format!("{organization}!{domain}!{begin}!{end}.xml.gz"));
    let parts = vec![Part::new("text/plain", Content::Text(text.into())), file];
    let message = Message {
        fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        root: Part::new("multipart/mixed", Content::Parts(parts)),
    };
    let mut seed = [0; 16];
    seed.iter_mut().zip(key).for_each(|(byte, of_key)| *byte = of_key);
    let date = Date { seconds: i64::try_from(now).unwrap_or(i64::MAX), offset_minutes: 0 };
    let written = message.write(&Origin { seed, date, host: organization });
    Ok(written.map_err(|error| Error::internal("a report can't be written").with_source(error))?.into())
}
