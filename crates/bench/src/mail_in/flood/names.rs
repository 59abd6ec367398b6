//! A name server that knows no name: nothing is sent to the network, and each look-up is answered at once.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::{net::UdpSocket, task::JoinHandle};

const HEADER_BYTES: usize = 12;
/// The longest query over UDP that resolvers send.
const QUERY_BYTES_MAX: usize = 4_096;
/// Response, and NXDOMAIN with "recursion available" (RFC 1035 §4.1.1).
const IS_RESPONSE: u8 = 0x80;
const NO_SUCH_NAME: u8 = 0x83;
/// The SOA of the root, for an hour: only the SOA of a zone proves that a name does not exist (RFC 2308 §2). Its names are the
/// root, its numbers 1.
const ROOT_SOA: [u8; 33] =
    [0, 0, 6, 0, 1, 0, 0, 14, 16, 0, 22, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1];

/// A running name server. Dropping it stops it.
pub(super) struct Names {
    pub(super) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Names {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Names {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; QUERY_BYTES_MAX];
            while let Ok((bytes, peer)) = socket.recv_from(&mut buffer).await {
                if let Some(reply) = buffer.get(..bytes).and_then(no_such_name) {
                    let _ = socket.send_to(&reply, peer).await; // a resolver that is gone asks no more
                }
            }
        });
        Ok(Self { address, task })
    }
}

/// The answer to a query with one question: its name does not exist.
fn no_such_name(query: &[u8]) -> Option<Vec<u8>> {
    let mut end = HEADER_BYTES;
    loop {
        let label = usize::from(*query.get(end)?);
        end += 1 + label;
        if label == 0 {
            break;
        }
    }
    end += 4; // type and class
    let mut reply = query.get(..end)?.to_vec();
    *reply.get_mut(2)? |= IS_RESPONSE;
    *reply.get_mut(3)? = NO_SUCH_NAME;
    // No answers, one authority, no additional records.
    reply.get_mut(6..HEADER_BYTES)?.copy_from_slice(&[0, 0, 0, 1, 0, 0]);
    reply.extend_from_slice(&ROOT_SOA);
    Some(reply)
}

#[cfg(test)]
mod tests {
    use restante_net::dns::{Answer, Resolver, ResolverConfig, SystemResolver};

    use super::*;

    #[tokio::test]
    async fn no_name_exists() {
        let names = Names::start().await.unwrap();
        let config = ResolverConfig { servers: vec![names.address], ..ResolverConfig::default() };
        let resolver = SystemResolver::new(&config).unwrap();
        assert_eq!(resolver.mx("example.org").await, Answer::NoSuchName);
        assert_eq!(resolver.ptr("192.0.2.1".parse().unwrap()).await, Answer::NoSuchName);
        assert_eq!(no_such_name(b"short"), None);
    }
}
