//! Facts about the machine and its processes, as far as the system reports them.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use restante_core::{Clock, SystemClock};
use serde::Serialize;

/// What a reader needs to judge figures.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) kernel: String,
    pub(crate) filesystem: String,
    /// Average number of running processes over the last minute, at the start of the bench.
    pub(crate) load_average: Option<f64>,
    pub(crate) restante: &'static str,
    pub(crate) build: &'static str,
    pub(crate) date: String,
}

impl Machine {
    /// Describes this machine; `folder` is on the measured disk.
    pub fn look(folder: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let unknown = || "unknown".to_owned();
        let cpu = field(&read("/proc/cpuinfo"), "model name").map(str::to_owned);
        let memory = field(&read("/proc/meminfo"), "MemTotal").and_then(first_number);
        let load = read("/proc/loadavg");
        Self {
            cpu: cpu.unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_mb: memory.map(|kib| kib * 1_024 / 1_000_000),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            filesystem: filesystem(folder).unwrap_or_else(unknown),
            load_average: load.split(' ').next().and_then(|text| text.parse().ok()),
            restante: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            date: SystemClock.now().to_string(),
        }
    }

    /// The same as pairs of name and value, for tables.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let unknown = "unknown".to_owned();
        vec![
            ("processor", self.cpu.clone()),
            ("cores", self.cores.to_string()),
            ("memory", self.memory_mb.map_or_else(|| unknown.clone(), |mb| format!("{mb} MB"))),
            ("kernel", self.kernel.clone()),
            ("file system", self.filesystem.clone()),
            ("load at the start", self.load_average.map_or(unknown, |load| load.to_string())),
            ("restante", format!("{} ({} build)", self.restante, self.build)),
            ("date", self.date.clone()),
            ("units", "kB, MB and GB are powers of ten: 1 MB = 1,000,000 bytes".to_owned()),
        ]
    }
}

/// The value of `name:` in a table of the kernel.
fn field<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    for line in table.lines() {
        if let Some((key, value)) = line.split_once(':')
            && key.trim() == name
        {
            return Some(value.trim());
        }
    }
    None
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The type of a folder's file system: that of the longest mount point above it.
fn filesystem(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (_, Some(point), Some(kind)) = (words.next(), words.next(), words.next()) else { continue };
        let is_above = folder.starts_with(point);
        let is_longer = best.is_none_or(|(len, _)| point.len() >= len);
        if is_above && is_longer {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Private memory of a process in bytes: without mapped files, whose pages the system can drop.
pub(crate) fn private_memory(process: &str) -> Option<u64> {
    memory(process, "RssAnon")
}

/// Resident memory of a process in bytes, mapped files included.
pub(crate) fn resident_memory(process: &str) -> Option<u64> {
    memory(process, "VmRSS")
}

fn memory(process: &str, kind: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kib = field(&status, kind).and_then(first_number)?;
    Some(kib * 1_024)
}

/// Processor time of a process so far, in user mode and in the kernel, with all its threads.
pub(crate) fn processor_time(process: &str) -> Option<Duration> {
    const TICKS_PER_SECOND: f64 = 100.0; // USER_HZ, which Linux reports whatever its internal rate is
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain spaces; fields 14 and 15 are the twelfth and thirteenth after it (proc(5)).
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_secs_f64((user + system) as f64 / TICKS_PER_SECOND))
}

/// Bytes that this process has passed to write calls so far.
///
/// `write_bytes` of the same table counts whole folios of the page cache on newer kernels, so it is unusable.
pub(crate) fn bytes_written() -> Option<u64> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    field(&io, "wchar").and_then(first_number)
}

/// Bytes that the device below a folder has written so far, for all processes; `None` if there is no single device.
pub(crate) fn device_bytes_written(folder: &Path) -> Option<u64> {
    const SECTOR_BYTES: u64 = 512; // the kernel's unit for every device
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device).to_string(), rustix::fs::minor(device).to_string());
    let table = fs::read_to_string("/proc/diskstats").ok()?;
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_device = words.first() == Some(&&*major) && words.get(1) == Some(&&*minor);
        if is_device {
            let sectors: u64 = words.get(9)?.parse().ok()?;
            return Some(sectors * SECTOR_BYTES);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_parsed() {
        let table = "model name\t: Fast CPU: 3\nMemTotal:       1024 kB\n";
        assert_eq!(field(table, "model name"), Some("Fast CPU: 3"));
        assert_eq!(field(table, "MemTotal").and_then(first_number), Some(1_024));
        assert_eq!(field(table, "Mem"), None);
    }

    #[test]
    fn written_bytes_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let Some(before) = bytes_written() else { return };
        fs::write(folder.path().join("file"), vec![0; 100_000]).unwrap();
        assert!(bytes_written().unwrap() >= before + 100_000);
    }

    #[test]
    fn processor_time_is_counted() {
        let Some(before) = processor_time("self") else { return };
        // Until the kernel's clock, which ticks a hundred times a second, has counted it.
        while processor_time("self").unwrap() == before {
            std::hint::black_box((0..100_000_u64).sum::<u64>());
        }
        assert_eq!(processor_time("no such process"), None);
    }

    #[test]
    fn the_machine_is_described() {
        let machine = Machine::look(Path::new("."));
        assert!(machine.cores >= 1);
        assert!(machine.date.ends_with('Z'));
        assert_eq!(machine.facts().len(), 9);
    }
}
