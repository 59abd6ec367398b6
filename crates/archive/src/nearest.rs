//! Where an archive is when there is none at the place that somebody named.

#[cfg(test)]
mod tests {
    use restante_core::{MessageHash, Timestamp};

    use super::*;
    use crate::{Config, Message, open};

    fn message(n: u8) -> Message {
        Message {
            message_hash: MessageHash([n; 32]),
            channel: "chan".into(),
            topic: "topic".into(),
            timestamp: Timestamp(i64::from(n)),
            body: "body".into(),
        }
    }

    async fn make(url: EngineUrl, messages: u8) {
        let opened = open(Config::new(url)).await.unwrap();
        opened.archive.append((0..messages).map(message).collect()).await.unwrap();
        opened.upkeep.close().await.unwrap();
    }

    async fn read(url: EngineUrl) -> Result<u64, Error> {
        let opened = open(Config { read_only: true, ..Config::new(url) }).await?;
        Ok(opened.upkeep.stats().await?.messages)
    }

    #[tokio::test]
    async fn a_place_without_an_archive_is_an_error_that_names_the_nearest() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b/empty")).unwrap();
        fs::write(at("a/b/file"), "text").unwrap();
        let archive = EngineUrl::Log(at("a/b/archive"));
        make(archive.clone(), 3).await;
        for wrong in ["a", "a/b", "a/b/empty", "a/b/file", "a/b/archve", "a/b/archive/x", "."] {
            for url in [EngineUrl::Log(at(wrong)), EngineUrl::Sqlite(at(wrong).join("missing.db"))] {
                let error = read(url.clone()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound, "{url}: {error}");
                assert!(error.to_string().ends_with(&format!("the nearest one is {archive}")), "{error}");
            }
        }
        assert_eq!(read(archive).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn an_archive_in_a_file_is_named_too() {
        let folder = tempfile::tempdir().unwrap();
        let archive = EngineUrl::Sqlite(folder.path().join("archive.db"));
        make(archive.clone(), 1).await;
        let error = read(EngineUrl::Log(folder.path().to_owned())).await.unwrap_err();
        assert!(error.to_string().ends_with(&format!("the nearest one is {archive}")), "{error}");
    }

    #[tokio::test]
    async fn where_none_is_near_the_error_says_what_to_name() {
        let error = read(EngineUrl::Log("/proc/self/fdinfo".into())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("name the folder"), "{error}");
    }

    /// A server that was never given a message has an archive all the same.
    #[tokio::test]
    async fn an_archive_without_messages_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let archive = EngineUrl::Log(folder.path().join("archive"));
        make(archive.clone(), 0).await;
        assert_eq!(read(archive).await.unwrap(), 0);
    }
}
