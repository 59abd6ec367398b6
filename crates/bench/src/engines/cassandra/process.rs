//! The Java program of a node on this machine. Cassandra does not report the size of its heap to clients, but its command line
//! has it.

use std::{fs, path::Path};

/// The command lines of all processes that can be read, their arguments separated by zero bytes.
pub(super) fn command_lines() -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let read = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
    let lines = processes.flatten().filter_map(read);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}

/// The largest size of the heap in 2^20 bytes, of the node with that folder of commit logs, or of the only node.
pub(super) fn heap_mib(command_lines: &[String], commit_log_folder: Option<&str>) -> Option<u64> {
    let is_node = |line: &&String| line.split('\0').any(|argument| argument.ends_with("CassandraDaemon"));
    let nodes: Vec<&String> = command_lines.iter().filter(is_node).collect();
    let is_ours = |line: &&&String| {
        let argument = line.split('\0').find_map(|argument| argument.strip_prefix("-Dcassandra.storagedir="));
        argument
            .zip(commit_log_folder)
            .is_some_and(|(storage, folder)| Path::new(folder).starts_with(storage))
    };
    let ours = nodes.iter().find(is_ours).or(match nodes.as_slice() {
        [only] => Some(only),
        _ => None,
    })?;
    // The last one counts.
    ours.split('\0').rev().find_map(|argument| argument.strip_prefix("-Xmx")).and_then(mib)
}

/// 2^20 bytes of a size in Java's form: "1024m", "8G", "1073741824".
fn mib(size: &str) -> Option<u64> {
    let digits = size.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match size.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => Some(number >> 20),
        "k" => Some(number >> 10),
        "m" => Some(number),
        "g" => number.checked_mul(1 << 10),
        "t" => number.checked_mul(1 << 20),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &[&str]) -> String {
        arguments.join("\0")
    }

    #[test]
    fn the_heap_is_that_of_the_node_with_these_commit_logs() {
        let lines = [
            line(&["bash", "-c", "java -Xmx1g CassandraDaemon && true"]),
            line(&[
                "java",
                "-Xmx8G",
                "-Dcassandra.storagedir=/one",
                "org.apache.cassandra.service.CassandraDaemon",
            ]),
            line(&["java", "-Xmx1g", "-Xmx512m", "-Dcassandra.storagedir=/two", "a.CassandraDaemon", ""]),
        ];
        assert_eq!(heap_mib(&lines, Some("/one/commitlog")), Some(8_192));
        assert_eq!(heap_mib(&lines, Some("/two/commitlog")), Some(512));
        assert_eq!(heap_mib(&lines, Some("/onefold/commitlog")), None);
        assert_eq!(heap_mib(&lines[..2], Some("/data/commitlog")), Some(8_192));
        assert_eq!(heap_mib(&lines[..1], None), None);
    }

    #[test]
    fn sizes_are_those_of_java() {
        for (size, expected) in
            [("1073741824", Some(1_024)), ("2048k", Some(2)), ("31G", Some(31_744)), ("1x", None), ("", None)]
        {
            assert_eq!(mib(size), expected, "{size}");
        }
    }
}
