use restante_core::MessageHash;
use sha2::{Digest, Sha256};

/// The deterministic message hash of `14/WAKU2-MESSAGE`: SHA-256 over the pubsub topic, the payload, the content topic,
/// the meta field (nothing when it is absent) and the timestamp as eight big-endian bytes.
pub fn message_hash(
    pubsub_topic: &str,
    payload: &[u8],
    content_topic: &str,
    meta: &[u8],
    timestamp: i64,
) -> MessageHash {
    let digest = Sha256::new()
        .chain_update(pubsub_topic)
        .chain_update(payload)
        .chain_update(content_topic)
        .chain_update(meta)
        .chain_update(timestamp.to_be_bytes())
        .finalize();
    MessageHash(digest.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of `14/WAKU2-MESSAGE`.
    #[test]
    fn published_vectors_hold() {
        let payload = hex::decode("010203045445535405060708").unwrap();
        let secret = b"super-secret";
        let long: Vec<u8> = (0..64).collect();
        let vectors: [(&[u8], &[u8], &str); 4] = [
            (secret, &payload, "64cce733fed134e83da02b02c6f689814872b1a0ac97ea56b76095c3c72bfe05"),
            (&long, &payload, "7158b6498753313368b9af8f6e0a0a05104f68f972981da42a43bc53fb0c1b27"),
            (b"", &payload, "a2554498b31f5bcdfcbf7fa58ad1c2d45f0254f3f8110a85588ec3cf10720fd8"),
            (secret, b"", "483ea950cb63f9b9d6926b262bb36194d3f40a0463ce8446228350bd44e96de4"),
        ];
        for (meta, payload, expected) in vectors {
            let hash = message_hash(
                "/waku/2/default-waku/proto",
                payload,
                "/waku/2/default-content/proto",
                meta,
                0x1757_89bf_a23f_8400,
            );
            assert_eq!(hash, expected.parse().unwrap());
        }
    }
}
