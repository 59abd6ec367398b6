//! Version 2 of the PROXY protocol, by which a TCP proxy names the client of each connection.
//!
//! The format is that of HAProxy's `proxy-protocol.txt`, section 2.2. Version 1, which is text, is not read.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, version and command, family, and the length of the rest.
const START_BYTES: usize = 16;
/// The longest rest of a header: addresses take at most 36 bytes, and what proxies add about TLS and themselves a few hundred.
const REST_BYTES_MAX: usize = 4 << 10;

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// They don't begin with the signature.
    #[error("no PROXY protocol header of version 2")]
    NoHeader,
    /// The version, command, family or length is not one that a proxy of TCP connections sends.
    #[error("an invalid PROXY protocol header")]
    Invalid,
    /// More bytes are needed.
    #[error("an incomplete PROXY protocol header")]
    Incomplete,
}

/// The beginning of a header.
#[derive(Clone, Copy, Debug)]
struct Start {
    addresses: Addresses,
    rest_bytes: usize,
}

/// What the rest of a header begins with.
#[derive(Clone, Copy, Debug)]
enum Addresses {
    /// Nothing that names the client.
    None,
    Ipv4,
    Ipv6,
}

impl Start {
    fn parse(bytes: &[u8; START_BYTES]) -> Result<Self, HeaderError> {
        let (signature, fields) = bytes.split_at(SIGNATURE.len());
        let [version_and_command, family, length @ ..] = fields else { return Err(HeaderError::Invalid) };
        if signature != SIGNATURE {
            return Err(HeaderError::NoHeader);
        }
        let addresses = match (version_and_command, family) {
            (0x20, _) => Addresses::None, // LOCAL: the proxy's own connection; the rest of the header is ignored
            (0x21, 0x00 | 0x31) => Addresses::None, // an unknown protocol, or a Unix socket
            (0x21, 0x11) => Addresses::Ipv4,
            (0x21, 0x21) => Addresses::Ipv6,
            _ => return Err(HeaderError::Invalid),
        };
        let rest_bytes = length.iter().fold(0, |bytes, byte| bytes << 8 | usize::from(*byte));
        let is_long_enough = match addresses {
            Addresses::None => true,
            Addresses::Ipv4 => rest_bytes >= 12,
            Addresses::Ipv6 => rest_bytes >= 36,
        };
        if !is_long_enough || rest_bytes > REST_BYTES_MAX {
            return Err(HeaderError::Invalid);
        }
        Ok(Self { addresses, rest_bytes })
    }

    /// The client that the rest names: source address, destination address, source port.
    fn client(self, rest: &[u8]) -> Option<SocketAddr> {
        let (address, port_at): (IpAddr, usize) = match self.addresses {
            Addresses::None => return None,
            Addresses::Ipv4 => (Ipv4Addr::from(*rest.first_chunk::<4>()?).into(), 8),
            Addresses::Ipv6 => (Ipv6Addr::from(*rest.first_chunk::<16>()?).into(), 32),
        };
        let port = u16::from_be_bytes(*rest.get(port_at..)?.first_chunk()?);
        Some(SocketAddr::new(address, port))
    }
}

/// Parses a header at the beginning of `bytes`. Returns its length, and the client if it names one.
///
/// # Errors
/// The bytes are not a header, or only a part of one.
pub fn parse(bytes: &[u8]) -> Result<(usize, Option<SocketAddr>), HeaderError> {
    let (start, rest) = bytes.split_first_chunk().ok_or(HeaderError::Incomplete)?;
    let start = Start::parse(start)?;
    let rest = rest.get(..start.rest_bytes).ok_or(HeaderError::Incomplete)?;
    Ok((START_BYTES + start.rest_bytes, start.client(rest)))
}

/// Reads exactly the header. Returns the client if it names one.
///
/// # Errors
/// The stream ends too early, or begins with something else.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut start = [0; START_BYTES];
    stream.read_exact(&mut start).await?;
    let start = Start::parse(&start).map_err(io::Error::other)?;
    let mut rest = vec![0; start.rest_bytes];
    stream.read_exact(&mut rest).await?;
    Ok(start.client(&rest))
}

/// A property for the fuzzer: for any bytes, both functions find the same header, and its length is bounded.
///
/// # Panics
/// When that does not hold.
#[doc(hidden)]
pub fn assert_parsed_alike(bytes: &[u8]) {
    let parsed = parse(bytes);
    let mut stream = bytes;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(read) = std::pin::pin!(read(&mut stream)).poll(&mut context) else {
        panic!("bytes in memory are always ready");
    };
    match parsed {
        Ok((length, client)) => {
            assert!(length <= START_BYTES + REST_BYTES_MAX);
            assert_eq!((read.ok(), stream.len()), (Some(client), bytes.len() - length));
        }
        Err(_) => assert!(read.is_err()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with these fields.
    fn header(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[version_and_command, family][..], &length, rest].concat()
    }

    const IPV4: [u8; 12] = [192, 0, 2, 1, 203, 0, 113, 9, 0x1f, 0x90, 0x01, 0xbb];

    fn ipv6() -> Vec<u8> {
        let source: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let target: Ipv6Addr = "2001:db8::2".parse().unwrap();
        [&source.octets()[..], &target.octets(), &[0x1f, 0x90, 0x01, 0xbb]].concat()
    }

    #[test]
    fn the_client_of_ipv4_and_ipv6_connections_is_found() {
        let v4 = header(0x21, 0x11, &IPV4);
        assert_eq!(parse(&v4), Ok((28, Some("192.0.2.1:8080".parse().unwrap()))));
        let v6 = header(0x21, 0x21, &ipv6());
        assert_eq!(parse(&v6), Ok((52, Some("[2001:db8::1]:8080".parse().unwrap()))));
        let with_more = header(0x21, 0x11, &[&IPV4[..], &[0x04, 0, 1, 0]].concat());
        assert_eq!(parse(&[&with_more[..], b"GET /"].concat()), Ok((32, parse(&v4).unwrap().1)));
    }

    #[test]
    fn connections_of_the_proxy_itself_and_of_unknown_protocols_name_no_client() {
        for (command, family, rest) in
            [(0x20, 0x00, &[][..]), (0x20, 0x11, &IPV4), (0x21, 0x00, &[7; 9]), (0x21, 0x31, &[0; 216])]
        {
            assert_eq!(parse(&header(command, family, rest)), Ok((16 + rest.len(), None)));
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        assert_eq!(parse(b"PROXY TCP4 192.0.2.1 203.0.113.9 8080 443\r\n"), Err(HeaderError::NoHeader));
        assert_eq!(parse(b"GET / HTTP/1.1\r\nhost: a"), Err(HeaderError::NoHeader));
        for (command, family, rest) in [
            (0x11, 0x11, &IPV4[..]),   // version 1
            (0x22, 0x11, &IPV4),       // an unknown command
            (0x21, 0x12, &IPV4),       // UDP
            (0x21, 0x41, &IPV4),       // an unknown family
            (0x21, 0x11, &IPV4[..11]), // shorter than its addresses
            (0x21, 0x21, &IPV4),       // the same
            (0x20, 0x00, &[0; 4097]),  // longer than any proxy's
        ] {
            assert_eq!(parse(&header(command, family, rest)), Err(HeaderError::Invalid));
        }
        let whole = header(0x21, 0x21, &ipv6());
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), Err(HeaderError::Incomplete), "{length}");
        }
    }

    #[test]
    fn any_bytes_are_parsed_alike_by_both_functions() {
        let whole = header(0x21, 0x21, &ipv6());
        for at in 0..whole.len() {
            for byte in 0..=255 {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                assert_parsed_alike(&bytes);
                assert_parsed_alike(&bytes[..at]);
            }
        }
    }
}
