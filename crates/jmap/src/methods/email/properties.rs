//! Which properties of emails and their parts are requested (RFC 8621 §4.1 and §4.2).

use restante_mail::message::Shorthand;
use restante_mail_wire::header::{Form, HeaderProperty};

use crate::core::{Args, MethodError, answers::write_json};

/// A property of an Email.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EmailProperty {
    Id,
    BlobId,
    ThreadId,
    MailboxIds,
    Keywords,
    Size,
    ReceivedAt,
    /// Stored as JSON in the row.
    Ready(Shorthand),
    Headers,
    Header(HeaderWanted),
    BodyStructure,
    BodyValues,
    TextBody,
    HtmlBody,
    Attachments,
}

/// A property `header:...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderWanted {
    /// As the client wrote it; the response repeats it in this form.
    pub(crate) asked: String,
    pub(crate) name: String,
    pub(crate) form: Form,
    pub(crate) is_all: bool,
}

/// A property of an EmailBodyPart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartProperty {
    PartId,
    BlobId,
    Size,
    Name,
    Type,
    Charset,
    Disposition,
    Cid,
    Language,
    Location,
    Headers,
    Header(HeaderWanted),
    SubParts,
}

/// What is requested of emails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) properties: Vec<EmailProperty>,
    /// The text before the value of each property: a brace or a comma, and the name. The same for all emails.
    pub(crate) names: Vec<Vec<u8>>,
    pub(crate) parts: Vec<PartProperty>,
    pub(crate) values: ValuesWanted,
}

/// Which body values are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValuesWanted {
    pub(crate) is_text: bool,
    pub(crate) is_html: bool,
    pub(crate) is_all: bool,
    /// 0 for no limit.
    pub(crate) bytes_max: usize,
}

/// E10, for Email/get and Email/parse. The metadata of the store comes first.
const DEFAULT: [(&str, EmailProperty); 24] = [
    ("id", EmailProperty::Id),
    ("blobId", EmailProperty::BlobId),
    ("threadId", EmailProperty::ThreadId),
    ("mailboxIds", EmailProperty::MailboxIds),
    ("keywords", EmailProperty::Keywords),
    ("size", EmailProperty::Size),
    ("receivedAt", EmailProperty::ReceivedAt),
    ("messageId", EmailProperty::Ready(Shorthand::MessageId)),
    ("inReplyTo", EmailProperty::Ready(Shorthand::InReplyTo)),
    ("references", EmailProperty::Ready(Shorthand::References)),
    ("sender", EmailProperty::Ready(Shorthand::Sender)),
    ("from", EmailProperty::Ready(Shorthand::From)),
    ("to", EmailProperty::Ready(Shorthand::To)),
    ("cc", EmailProperty::Ready(Shorthand::Cc)),
    ("bcc", EmailProperty::Ready(Shorthand::Bcc)),
    ("replyTo", EmailProperty::Ready(Shorthand::ReplyTo)),
    ("subject", EmailProperty::Ready(Shorthand::Subject)),
    ("sentAt", EmailProperty::Ready(Shorthand::SentAt)),
    ("hasAttachment", EmailProperty::Ready(Shorthand::HasAttachment)),
    ("preview", EmailProperty::Ready(Shorthand::Preview)),
    ("bodyValues", EmailProperty::BodyValues),
    ("textBody", EmailProperty::TextBody),
    ("htmlBody", EmailProperty::HtmlBody),
    ("attachments", EmailProperty::Attachments),
];

/// How many properties at the beginning of [`DEFAULT`] Email/parse leaves out.
const METADATA: usize = 7;

const OTHERS: [(&str, EmailProperty); 2] =
    [("headers", EmailProperty::Headers), ("bodyStructure", EmailProperty::BodyStructure)];

const PARTS_DEFAULT: [(&str, PartProperty); 10] = [
    ("partId", PartProperty::PartId),
    ("blobId", PartProperty::BlobId),
    ("size", PartProperty::Size),
    ("name", PartProperty::Name),
    ("type", PartProperty::Type),
    ("charset", PartProperty::Charset),
    ("disposition", PartProperty::Disposition),
    ("cid", PartProperty::Cid),
    ("language", PartProperty::Language),
    ("location", PartProperty::Location),
];

const PARTS_OTHERS: [(&str, PartProperty); 2] =
    [("headers", PartProperty::Headers), ("subParts", PartProperty::SubParts)];

impl EmailProperty {
    /// Reads a name; `None` for a property that does not exist (E2, E3).
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let known = DEFAULT.iter().chain(&OTHERS).find(|(known, _)| *known == name);
        known.map(|(_, property)| property.clone()).or_else(|| HeaderWanted::parse(name).map(Self::Header))
    }

    /// Its name in the response.
    pub(crate) fn name(&self) -> &str {
        if let Self::Header(header) = self {
            return &header.asked;
        }
        let known = DEFAULT.iter().chain(&OTHERS).find(|(_, property)| property == self);
        known.map_or("", |(name, _)| name)
    }
}

impl PartProperty {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let known = PARTS_DEFAULT.iter().chain(&PARTS_OTHERS).find(|(known, _)| *known == name);
        known.map(|(_, property)| property.clone()).or_else(|| HeaderWanted::parse(name).map(Self::Header))
    }

    pub(crate) fn name(&self) -> &str {
        if let Self::Header(header) = self {
            return &header.asked;
        }
        let known = PARTS_DEFAULT.iter().chain(&PARTS_OTHERS).find(|(_, property)| property == self);
        known.map_or("", |(name, _)| name)
    }
}

impl HeaderWanted {
    fn parse(name: &str) -> Option<Self> {
        let property = HeaderProperty::parse(name)?;
        Some(Self {
            asked: name.to_owned(),
            name: property.name.to_owned(),
            form: property.form,
            is_all: property.all,
        })
    }
}

impl Wanted {
    /// Takes the arguments that Email/get and Email/parse share. Email/get always returns the id (G2), Email/parse returns metadata
    /// only when it is requested.
    pub(crate) fn take(args: &mut Args, is_get: bool) -> Result<Self, MethodError> {
        let asked = args.nullable::<Vec<String>>("properties")?;
        let parts_asked = args.nullable::<Vec<String>>("bodyProperties")?;
        let is_text = args.optional::<bool>("fetchTextBodyValues")?.unwrap_or_default();
        let is_html = args.optional::<bool>("fetchHTMLBodyValues")?.unwrap_or_default();
        let is_all = args.optional::<bool>("fetchAllBodyValues")?.unwrap_or_default();
        let bytes_max = args.optional::<u64>("maxBodyValueBytes")?.unwrap_or_default();
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let properties = match asked {
            Some(asked) => Self::properties(&asked, is_get)?,
            None => {
                let left_out = if is_get { 0 } else { METADATA };
                DEFAULT.iter().skip(left_out).map(|(_, property)| property.clone()).collect()
            }
        };
        let parts = match parts_asked {
            Some(asked) => distinct("bodyProperties", &asked, PartProperty::parse)?,
            None => PARTS_DEFAULT.iter().map(|(_, property)| property.clone()).collect(),
        };
        Ok(Self::new(properties, parts, ValuesWanted { is_text, is_html, is_all, bytes_max }))
    }

    /// Properties by their names, with the default properties of parts.
    pub(crate) fn named(names: &[&str]) -> Result<Self, MethodError> {
        let parts = PARTS_DEFAULT.iter().map(|(_, property)| property.clone()).collect();
        Ok(Self::new(Self::properties(names, true)?, parts, ValuesWanted::default()))
    }

    fn new(properties: Vec<EmailProperty>, parts: Vec<PartProperty>, values: ValuesWanted) -> Self {
        let mut names: Vec<Vec<u8>> = Vec::with_capacity(properties.len());
        for property in &properties {
            let mut name = vec![if names.is_empty() { b'{' } else { b',' }];
            write_json(property.name(), &mut name);
            name.push(b':');
            names.push(name);
        }
        Self { properties, names, parts, values }
    }

    fn properties<S: AsRef<str>>(asked: &[S], is_get: bool) -> Result<Vec<EmailProperty>, MethodError> {
        let mut properties = distinct("properties", asked, EmailProperty::parse)?;
        if is_get && !properties.contains(&EmailProperty::Id) {
            properties.insert(0, EmailProperty::Id);
        }
        Ok(properties)
    }

    pub(crate) fn has(&self, property: &EmailProperty) -> bool {
        self.properties.contains(property)
    }

    /// Whether more is requested than the properties of the records contain, so that rows are needed.
    pub(crate) fn needs_row(&self) -> bool {
        let is_in_record = |property: &EmailProperty| {
            matches!(
                property,
                EmailProperty::Id
                    | EmailProperty::BlobId
                    | EmailProperty::ThreadId
                    | EmailProperty::MailboxIds
                    | EmailProperty::Keywords
                    | EmailProperty::ReceivedAt
            )
        };
        !self.properties.iter().all(is_in_record)
    }

    /// Whether fields of the message's header are requested.
    pub(crate) fn has_header(&self) -> bool {
        let is_header =
            |property: &EmailProperty| matches!(property, EmailProperty::Headers | EmailProperty::Header(_));
        self.properties.iter().any(is_header)
    }

    /// Whether parts are requested.
    pub(crate) fn has_parts(&self) -> bool {
        let lists = [
            EmailProperty::BodyStructure,
            EmailProperty::TextBody,
            EmailProperty::HtmlBody,
            EmailProperty::Attachments,
        ];
        lists.iter().any(|list| self.has(list))
    }

    /// Whether fields of parts' headers are requested.
    pub(crate) fn has_part_headers(&self) -> bool {
        let is_header =
            |property: &PartProperty| matches!(property, PartProperty::Headers | PartProperty::Header(_));
        self.has_parts() && self.parts.iter().any(is_header)
    }

    /// Whether body values are requested.
    pub(crate) fn has_values(&self) -> bool {
        let ValuesWanted { is_text, is_html, is_all, .. } = self.values;
        self.has(&EmailProperty::BodyValues) && (is_text || is_html || is_all)
    }
}

/// Each of the named properties once.
fn distinct<S: AsRef<str>, P: PartialEq>(
    argument: &str,
    names: &[S],
    parse: impl Fn(&str) -> Option<P>,
) -> Result<Vec<P>, MethodError> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let name = name.as_ref();
        let property = parse(name).ok_or_else(|| MethodError::argument(argument, &why_unknown(name)))?;
        if !found.contains(&property) {
            found.push(property);
        }
        if found.len() > PROPERTIES_MAX {
            return Err(MethodError::argument(argument, "names too many properties"));
        }
    }
    Ok(found)
}

/// Why a name is not that of a property.
fn why_unknown(name: &str) -> String {
    match HeaderProperty::parse_any_form(name) {
        Some(header) => format!("{name:?} asks for {} in a form that the field does not have", header.name),
        None => format!("there is no property {name:?}"),
    }
}

/// The most properties that can be requested: each may be a header field, which is searched for in each email.
pub(crate) const PROPERTIES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e10_the_defaults_are_those_of_the_specification() {
        let names: Vec<&str> = DEFAULT.iter().map(|(name, _)| *name).collect();
        let expected = "id blobId threadId mailboxIds keywords size receivedAt messageId inReplyTo references sender from to cc \
                        bcc replyTo subject sentAt hasAttachment preview bodyValues textBody htmlBody attachments";
        assert_eq!(names.join(" "), expected);
        let parts: Vec<&str> = PARTS_DEFAULT.iter().map(|(name, _)| *name).collect();
        assert_eq!(parts.join(" "), "partId blobId size name type charset disposition cid language location");
    }

    #[test]
    fn e2_header_properties_keep_the_name_as_asked() {
        let property = EmailProperty::parse("header:SUBJECT:asText:all").unwrap();
        assert_eq!(property.name(), "header:SUBJECT:asText:all");
        let EmailProperty::Header(header) = property else { panic!("a header") };
        assert_eq!((header.name.as_str(), header.form, header.is_all), ("SUBJECT", Form::Text, true));
    }

    #[test]
    fn g2_unknown_properties_are_invalid_arguments() {
        for wrong in ["nope", "Id", "header:", "header:Subject:asDate", "header:Subject:all:asText", ""] {
            let error = Wanted::named(&["id", wrong]).unwrap_err();
            let MethodError::InvalidArguments(text) = error else { panic!("{wrong}: {error:?}") };
            assert!(text.contains(&format!("{wrong:?}")), "{text}");
            assert_eq!(
                text.contains("a form that the field does not have"),
                wrong == "header:Subject:asDate",
                "{text}"
            );
        }
        assert_eq!(PartProperty::parse("textBody"), None);
    }

    #[test]
    fn every_property_has_its_name() {
        for (name, property) in DEFAULT.iter().chain(&OTHERS) {
            assert_eq!(property.name(), *name);
        }
        for (name, property) in PARTS_DEFAULT.iter().chain(&PARTS_OTHERS) {
            assert_eq!(property.name(), *name);
        }
    }
}
