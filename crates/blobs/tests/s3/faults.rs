//! A storage that is down, slow or busy, or is reached over a network that cuts connections.

use std::time::Duration;

use restante_blobs::{Blobs, Opened, S3Keys, Upkeep, open};
use restante_core::{ErrorKind, nonzero};

use crate::{
    common::{TestStore, bytes, put, read_all, s3::storage},
    proxy::{BUSY, Mode, Proxy},
};

/// Lengths that are put in one request from memory, in one from a file, and in parts.
const LENGTHS: [usize; 4] = [10, 300_000, 2_000_000, 9_000_000];

/// A store behind a proxy, which retries for a short time only but waits long for an answer: the machine may be busy.
async fn behind_proxy(store: &TestStore) -> (Proxy, Opened) {
    let proxy = Proxy::before(&storage(store.engine.name()).unwrap().url).await;
    let mut config = store.config.clone();
    config.s3.endpoint = proxy.url.clone();
    config.s3.retry_ms = 1_000;
    config.s3.answer_timeout_ms = nonzero!(30_000);
    (proxy, open(config).await.unwrap())
}

/// The store contains nothing that was not put.
async fn is_sound(upkeep: &dyn Upkeep) {
    assert_eq!(upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn is_unavailable(blobs: &dyn Blobs, id: restante_blobs::BlobId) {
    let error = blobs.put(&mut bytes(9, 100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(blobs.size(id).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(blobs.touch(&[id]).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(read_all(blobs, id).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

pub(crate) async fn a_storage_that_is_gone_is_an_error_until_it_is_back(mut store: TestStore) {
    store.config.s3.cache_bytes_max = 0;
    let (proxy, opened) = behind_proxy(&store).await;
    let id = put(&*opened.blobs, &bytes(1, 100)).await.id;
    for mode in [Mode::Refuse, BUSY] {
        proxy.set(mode);
        is_unavailable(&*opened.blobs, id).await;
        assert_eq!(opened.upkeep.list(None, 10).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(
            opened.upkeep.remove(&[id], store.config.clock.now()).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
        proxy.set(Mode::Pass);
        assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), bytes(1, 100));
        put(&*opened.blobs, &bytes(9, 100)).await;
        opened.upkeep.health().unwrap();
    }
    is_sound(&*opened.upkeep).await;
}

pub(crate) async fn a_storage_that_does_not_answer_is_an_error(mut store: TestStore) {
    store.config.s3.cache_bytes_max = 0;
    let (proxy, patient) = behind_proxy(&store).await;
    let mut config = store.config.clone();
    config.s3.endpoint = proxy.url.clone();
    config.s3.retry_ms = 0;
    let id = put(&*patient.blobs, &bytes(1, 100)).await.id;
    // Opening may take as long as it needs; after that there are no answers.
    config.s3.answer_timeout_ms = nonzero!(2_000);
    let impatient = loop {
        match open(config.clone()).await {
            Ok(opened) => break opened,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    proxy.set(Mode::Silent);
    is_unavailable(&*impatient.blobs, id).await;
    proxy.set(Mode::Pass);
    assert_eq!(read_all(&*patient.blobs, id).await.unwrap(), bytes(1, 100));
    is_sound(&*patient.upkeep).await;
}

pub(crate) async fn a_slow_storage_is_waited_for(store: TestStore) {
    let (proxy, opened) = behind_proxy(&store).await;
    proxy.set(Mode::Slow(Duration::from_millis(100)));
    for len in LENGTHS {
        let id = put(&*opened.blobs, &bytes(1, len)).await.id;
        assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), bytes(1, len));
    }
    is_sound(&*opened.upkeep).await;
}

pub(crate) async fn a_request_for_fewer_requests_is_followed(store: TestStore) {
    let (proxy, opened) = behind_proxy(&store).await;
    let answers = [BUSY, Mode::Answer("429 Too Many Requests", "TooManyRequests")];
    for (number, answer) in (0..).zip(answers) {
        proxy.set_for(answer, 3);
        let id = put(&*opened.blobs, &bytes(number, 100)).await.id;
        assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), bytes(number, 100));
        proxy.set(answer);
        let error = opened.blobs.put(&mut bytes(9, 100)).await.unwrap_err();
        assert!(error.to_string().contains("fewer requests") && error.is_transient(), "{error}");
        proxy.set(Mode::Pass);
        put(&*opened.blobs, &bytes(10 + number, 100)).await;
    }
    is_sound(&*opened.upkeep).await;
}

/// The storage refuses requests that a server with a wrong clock has signed. The clock of this machine stays as it is, so the refusal
/// is simulated.
pub(crate) async fn a_clock_that_is_wrong_is_named(store: TestStore) {
    let (proxy, opened) = behind_proxy(&store).await;
    proxy.set(Mode::Answer("403 Forbidden", "RequestTimeTooSkewed"));
    let error = opened.blobs.put(&mut bytes(1, 100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the clocks of this machine and of the storage differ"), "{error}");
    proxy.set(Mode::Pass);
    put(&*opened.blobs, &bytes(1, 100)).await;
    is_sound(&*opened.upkeep).await;
}

pub(crate) async fn a_put_that_is_cut_is_repeated(store: TestStore) {
    let (proxy, opened) = behind_proxy(&store).await;
    for (n, len) in (0..).zip(LENGTHS) {
        for limit in [0, 300, 1_000, len / 2 + 500] {
            proxy.set_for(Mode::CutRequest(limit), 2);
            let blob = bytes(100 * n + limit as u32, len);
            let answer = put(&*opened.blobs, &blob).await;
            proxy.set(Mode::Pass);
            assert_eq!(
                read_all(&*opened.blobs, answer.id).await.unwrap(),
                blob,
                "{len} bytes cut at {limit}"
            );
        }
    }
    is_sound(&*opened.upkeep).await;
}

pub(crate) async fn a_put_whose_answer_is_lost_is_resolved(store: TestStore) {
    let (proxy, opened) = behind_proxy(&store).await;
    for (n, len) in (0..).zip(LENGTHS) {
        for connections in [1, 2, 3] {
            proxy.set_for(Mode::CutAnswer, connections);
            let blob = bytes(10 * n + connections as u32, len);
            let answer = put(&*opened.blobs, &blob).await;
            proxy.set(Mode::Pass);
            assert_eq!((answer.bytes, answer.is_new), (len as u64, true), "{len} bytes");
            assert_eq!(read_all(&*opened.blobs, answer.id).await.unwrap(), blob, "{len} bytes");
            proxy.set_for(Mode::CutAnswer, connections);
            assert!(!put(&*opened.blobs, &blob).await.is_new, "{len} bytes again");
            proxy.set(Mode::Pass);
        }
    }
    is_sound(&*opened.upkeep).await;
}

pub(crate) async fn a_put_that_fails_is_whole_or_absent_and_can_be_repeated(store: TestStore) {
    let (proxy, opened) = behind_proxy(&store).await;
    for (n, len) in (0..).zip(LENGTHS) {
        let modes = [Mode::CutRequest(200), Mode::CutRequest(len / 2 + 200), Mode::CutAnswer];
        for (number, mode) in (0..).zip(modes) {
            let blob = bytes(10 * n + number, len);
            proxy.set(mode);
            let error = opened.blobs.put(&mut blob.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            proxy.set(Mode::Pass);
            is_sound(&*opened.upkeep).await;
            let answer = put(&*opened.blobs, &blob).await;
            assert_eq!(read_all(&*opened.blobs, answer.id).await.unwrap(), blob, "{len} bytes");
        }
    }
}

pub(crate) async fn a_read_that_is_cut_goes_on(mut store: TestStore) {
    store.config.s3.cache_bytes_max = 0;
    let (proxy, opened) = behind_proxy(&store).await;
    let blob = bytes(1, 5_000_000);
    let id = put(&*opened.blobs, &blob).await.id;
    let mut source = opened.blobs.read(id, 0..u64::MAX).await.unwrap();
    let mut all = source.next().await.unwrap().unwrap().to_vec();
    proxy.set(Mode::Pass); // existing connections end
    while let Some(chunk) = source.next().await.unwrap() {
        all.extend_from_slice(&chunk);
    }
    assert!(all == blob, "{} bytes", all.len());
}

pub(crate) async fn the_cache_answers_while_the_storage_is_gone(store: TestStore) {
    let (proxy, opened) = behind_proxy(&store).await;
    let blob = bytes(1, 50_000);
    let id = put(&*opened.blobs, &blob).await.id;
    // It is written in the background.
    while opened.upkeep.stats().await.unwrap().disk_bytes == 0 {
        tokio::task::yield_now().await;
    }
    proxy.set(Mode::Refuse);
    assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), blob);
    assert_eq!(crate::common::read(&*opened.blobs, id, 10..20).await.unwrap(), blob[10..20]);
}

pub(crate) async fn wrong_keys_and_settings_are_named(store: TestStore) {
    let refused = async |change: fn(&mut restante_blobs::Config), hint: &str| {
        let mut config = store.config.clone();
        change(&mut config);
        let error = open(config).await.map(drop).unwrap_err();
        assert!(error.to_string().contains(hint) && !error.to_string().contains("wrong-secret"), "{error}");
    };
    refused(
        |config| {
            config.s3_keys = Some(S3Keys { access_key: "nobody".into(), secret_key: "wrong-secret".into() })
        },
        "blobs.s3.access_key",
    )
    .await;
    refused(|config| config.s3_keys.as_mut().unwrap().secret_key = "wrong-secret".into(), "the secret key")
        .await;
    refused(|config| config.s3_keys = None, "blobs.s3").await;
    refused(|config| config.s3.endpoint = "127.0.0.1:1".into(), "blobs.s3.endpoint").await;
    refused(|config| config.blob_bytes_max = nonzero!((5 << 30) + 1), "longest blob").await;
    refused(
        |config| {
            config.s3.endpoint = "http://127.0.0.1:1".into();
            config.s3.retry_ms = 0;
        },
        "is it running",
    )
    .await;
}

pub(crate) async fn encryption_is_asked_for(store: TestStore) {
    let proxy = Proxy::before(&storage(store.engine.name()).unwrap().url).await;
    let mut config = store.config.clone();
    config.s3.endpoint = proxy.url.clone();
    config.s3.retry_ms = 0;
    config.s3.encryption = "kms:my-key".parse().unwrap();
    // It does not matter whether this storage supports it.
    let _outcome = open(config).await.map(drop);
    let sent = proxy.sent().to_lowercase();
    assert!(sent.contains("x-amz-server-side-encryption: aws:kms"), "{sent}");
    assert!(sent.contains("x-amz-server-side-encryption-aws-kms-key-id: my-key"), "{sent}");
}
