//! A minimal Redis client for measurements: the memory in use and the remaining keys.

use anyhow::{Context, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// The most elements of an answer, and bytes of one, far above those of these commands.
const PARTS_MAX: usize = 100_000;
const PART_BYTES_MAX: usize = 1 << 20;
/// Keys that Redis scans for one answer of SCAN.
const SCAN_COUNT: &str = "1000";

/// A connection.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

/// The parts of a URL: `redis://[[user]:password@]host[:port][/database]`.
#[derive(Debug, PartialEq, Eq)]
struct RedisUrl<'a> {
    host: &'a str,
    port: u16,
    user: &'a str,
    password: Option<&'a str>,
    database: &'a str,
}

impl<'a> RedisUrl<'a> {
    fn of(url: &'a str) -> anyhow::Result<Self> {
        const WHAT: &str =
            "memory in Redis is measured at redis://[user:password@]host[:port][/database] only";
        let rest = url.strip_prefix("redis://").context(WHAT)?;
        let (secret, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (user, password) = secret.split_once(':').unwrap_or((secret, ""));
        let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
        ensure!(!host.is_empty(), WHAT);
        let password = (!password.is_empty()).then_some(password);
        let host = host.trim_matches(['[', ']']);
        Ok(Self { host, port: port.parse().context(WHAT)?, user, password, database })
    }
}

impl Client {
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        let redis = RedisUrl::of(url)?;
        let stream = TcpStream::connect((redis.host, redis.port)).await.context("can't connect to Redis")?;
        let mut client = Self { stream: BufReader::new(stream) };
        if let Some(password) = redis.password {
            let mut words = vec!["AUTH"];
            words.extend((!redis.user.is_empty()).then_some(redis.user));
            words.push(password);
            client.ask(&words).await?;
        }
        if !redis.database.is_empty() {
            client.ask(&["SELECT", redis.database]).await?;
        }
        Ok(client)
    }

    /// Bytes that Redis has in use in all.
    pub(super) async fn used_memory(&mut self) -> anyhow::Result<u64> {
        let texts = self.ask(&["INFO", "memory"]).await?;
        let lines = texts.iter().flat_map(|text| text.lines());
        let used = lines.filter_map(|line| line.strip_prefix("used_memory:")).next();
        used.and_then(|bytes| bytes.trim().parse().ok()).context("Redis does not report its memory")
    }

    /// Removes all keys with a prefix and returns their number.
    pub(super) async fn remove_all(&mut self, prefix: &str) -> anyhow::Result<u64> {
        let pattern = format!("{prefix}*");
        let mut cursor = "0".to_owned();
        let mut removed = 0;
        loop {
            let mut found = self.ask(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", SCAN_COUNT]).await?;
            ensure!(!found.is_empty(), "Redis sent an empty answer to SCAN");
            cursor = found.remove(0);
            if !found.is_empty() {
                removed += found.len() as u64;
                let words: Vec<&str> =
                    std::iter::once("UNLINK").chain(found.iter().map(String::as_str)).collect();
                self.ask(&words).await?;
            }
            if cursor == "0" {
                return Ok(removed);
            }
        }
    }

    /// Runs a command and returns all texts and numbers of the answer, in order, with nested lists flattened.
    async fn ask(&mut self, words: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.write_all(request.as_bytes()).await?;
        let mut parts = Vec::new();
        let mut missing = 1;
        while missing > 0 {
            missing -= 1;
            let line = self.line().await?;
            let (kind, rest) = line.split_at_checked(1).context("Redis sent an empty line")?;
            match kind {
                "+" | ":" => parts.push(rest.to_owned()),
                "*" => missing += size(rest, PARTS_MAX)?,
                "$" => parts.push(self.text(size(rest, PART_BYTES_MAX)?).await?),
                "-" => bail!("Redis refused {}: {rest}", words.first().unwrap_or(&"")),
                _ => bail!("not an answer of Redis: {line}"),
            }
        }
        Ok(parts)
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).await?;
        ensure!(read > 0, "Redis closed the connection");
        Ok(line.trim_end().to_owned())
    }

    async fn text(&mut self, len: usize) -> anyhow::Result<String> {
        let mut bytes = vec![0; len + 2]; // and the end of the line
        self.stream.read_exact(&mut bytes).await?;
        bytes.truncate(len);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// A length or a number of elements; -1 is null.
fn size(text: &str, max: usize) -> anyhow::Result<usize> {
    let size: i64 = text.parse().with_context(|| format!("not a length: {text}"))?;
    let size = usize::try_from(size.max(0))?;
    ensure!(size <= max, "an answer of Redis is too long: {size}");
    Ok(size)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn urls_are_read() {
        let redis = RedisUrl::of("redis://me:secret@[::1]:7000/3").unwrap();
        assert_eq!((redis.host, redis.port, redis.user, redis.database), ("::1", 7_000, "me", "3"));
        assert_eq!(redis.password, Some("secret"));
        let plain = RedisUrl::of("redis://localhost").unwrap();
        assert_eq!((plain.port, plain.password, plain.database), (6_379, None, ""));
        assert!(RedisUrl::of("rediss://localhost").is_err() && RedisUrl::of("redis://").is_err());
    }

    #[tokio::test]
    async fn answers_of_all_kinds_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let server = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 1_000];
            for answer in [
                "$41\r\n# Memory\r\nused_memory:4711\r\nrss:123456789\r\n",
                "*2\r\n$1\r\n0\r\n*2\r\n$2\r\na1\r\n$2\r\na2\r\n",
                ":2\r\n",
                "-NOAUTH say who you are\r\n",
            ] {
                assert!(stream.read(&mut asked).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let ask = async {
            let mut client = Client::open(&url).await.unwrap();
            assert_eq!(client.used_memory().await.unwrap(), 4_711);
            assert_eq!(client.remove_all("a").await.unwrap(), 2);
            assert!(client.used_memory().await.unwrap_err().to_string().contains("NOAUTH"));
        };
        tokio::join!(server, ask);
    }
}
