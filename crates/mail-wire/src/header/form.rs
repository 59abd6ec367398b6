use super::is_field_name;

/// A form in which a field's value is returned (RFC 8621, section 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As it is in the message: [`super::as_raw`].
    Raw,
    /// Decoded text: [`super::as_text`].
    Text,
    /// A list of addresses: [`super::as_addresses`].
    Addresses,
    /// Addresses with their groups: [`super::as_grouped_addresses`].
    GroupedAddresses,
    /// A list of message ids: [`super::as_message_ids`].
    MessageIds,
    /// A point in time with its zone: [`super::as_date`].
    Date,
    /// A list of URLs: [`super::as_urls`].
    Urls,
}

/// The type of a field as defined by RFC 5322 and RFC 2369.
enum Kind {
    Text,
    Addresses,
    MessageIds,
    Date,
    Urls,
    Trace,
}

impl Form {
    /// Parses a suffix such as `asText`; case matters.
    pub fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "asRaw" => Self::Raw,
            "asText" => Self::Text,
            "asAddresses" => Self::Addresses,
            "asGroupedAddresses" => Self::GroupedAddresses,
            "asMessageIds" => Self::MessageIds,
            "asDate" => Self::Date,
            "asURLs" => Self::Urls,
            _ => return None,
        })
    }

    /// Whether the field of that name, in any case, may be returned in this form. Fields that RFC 5322 and RFC 2369 don't define
    /// may be returned in any form.
    pub fn is_allowed(self, field_name: &str) -> bool {
        let Some(kind) = Kind::of(field_name) else { return true };
        match self {
            Self::Raw => true,
            Self::Text => matches!(kind, Kind::Text),
            Self::Addresses | Self::GroupedAddresses => matches!(kind, Kind::Addresses),
            Self::MessageIds => matches!(kind, Kind::MessageIds),
            Self::Date => matches!(kind, Kind::Date),
            Self::Urls => matches!(kind, Kind::Urls),
        }
    }
}

impl Kind {
    fn of(field_name: &str) -> Option<Self> {
        const FIELDS: [(Kind, &[&str]); 6] = [
            (Kind::Text, &["Subject", "Comments", "Keywords"]),
            (
                Kind::Addresses,
                &[
                    "From",
                    "Sender",
                    "Reply-To",
                    "To",
                    "Cc",
                    "Bcc",
                    "Resent-From",
                    "Resent-Sender",
                    "Resent-Reply-To",
                    "Resent-To",
                    "Resent-Cc",
                    "Resent-Bcc",
                ],
            ),
            (Kind::MessageIds, &["Message-ID", "In-Reply-To", "References", "Resent-Message-ID"]),
            (Kind::Date, &["Date", "Resent-Date"]),
            (
                Kind::Urls,
                &[
                    "List-Help",
                    "List-Unsubscribe",
                    "List-Subscribe",
                    "List-Post",
                    "List-Owner",
                    "List-Archive",
                ],
            ),
            (Kind::Trace, &["Return-Path", "Received"]),
        ];
        let has_name = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(field_name));
        FIELDS.into_iter().find(|(_, names)| has_name(names)).map(|(kind, _)| kind)
    }
}

/// A property `header:NAME[:asFORM][:all]` of an Email or a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderProperty<'p> {
    /// The field's name as requested.
    pub name: &'p str,
    /// The form; [`Form::Raw`] if none is named.
    pub form: Form,
    /// Whether all instances are returned as an array, instead of only the last one.
    pub all: bool,
}

impl<'p> HeaderProperty<'p> {
    /// Parses a property's name. `None` if it doesn't begin with `header:`, has no name or an unknown form, has its suffixes in
    /// another order, or requests a form that is not allowed for the field.
    pub fn parse(property: &'p str) -> Option<Self> {
        Self::parse_any_form(property).filter(|parsed| parsed.form.is_allowed(parsed.name))
    }

    /// As [`Self::parse`], but also accepts a form that is not allowed for the field.
    pub fn parse_any_form(property: &'p str) -> Option<Self> {
        let mut parts = property.strip_prefix("header:")?.split(':');
        let name = parts.next().filter(|name| is_field_name(name))?;
        let mut suffix = parts.next();
        let mut form = Form::Raw;
        if let Some(named) = suffix.filter(|suffix| *suffix != "all") {
            form = Form::parse(named)?;
            suffix = parts.next();
        }
        let all = suffix.is_some();
        let is_well_formed = suffix.is_none_or(|suffix| suffix == "all") && parts.next().is_none();
        is_well_formed.then_some(Self { name, form, all })
    }
}
