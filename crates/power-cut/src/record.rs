use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{PoisonError, RwLock},
};

use crate::{
    Error, Log,
    child::{ACKS, FOLDER, LOG},
};

/// The library that is preloaded into the recorded process.
const SHIM: &str = include_str!("shim.c");
/// Bytes of a failed process' output that the error includes.
const OUTPUT_BYTES_MAX: usize = 4_096;

/// Runs a test of this test binary again as a recorded process, where [`crate::child`] returns `Some`.
///
/// `test` is the test's full name, as the test binary lists it. A C compiler, `cc`, must be installed.
///
/// # Errors
/// When the recorder can't be compiled, or the process fails.
pub fn record(test: &str) -> Result<Log, Error> {
    let work = tempfile::tempdir().map_err(Error::io("create", env::temp_dir()))?;
    // Without symbolic links: the recorder compares paths by prefix.
    let work_path = work.path().canonicalize().map_err(Error::io("find", work.path()))?;
    let shim = compile(&work_path)?;
    let (folder, log) = (work_path.join("recorded"), work_path.join("log"));
    fs::create_dir(&folder).map_err(Error::io("create", &folder))?;
    let binary = env::current_exe().map_err(Error::io("find", "the test binary"))?;
    let mut command = Command::new(&binary);
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]);
    command.env("LD_PRELOAD", &shim).env(FOLDER, &folder).env(LOG, &log).env(ACKS, work_path.join("acks"));
    let output = run(&mut command).map_err(Error::io("run", &binary))?;
    check_ran(test, &output)?;
    let bytes = fs::read(&log).map_err(Error::io("read", &log))?;
    Log::parse(bytes)
}

/// A process that is being started briefly shares every open file of this one, and with them their locks: a check that
/// closes a store and opens it again would find it locked. So no process is started during a check.
pub(crate) static STARTING: RwLock<()> = RwLock::new(());

fn run(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
        command.spawn()
    };
    child?.wait_with_output()
}

fn compile(work: &Path) -> Result<PathBuf, Error> {
    let (source, shim) = (work.join("shim.c"), work.join("shim.so"));
    fs::write(&source, SHIM).map_err(Error::io("write", &source))?;
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"]).arg(&shim).arg(&source);
    let output = run(&mut command).map_err(Error::io("run", "cc"))?;
    if !output.status.success() {
        return Err(Error::Compile(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(shim)
}

fn check_ran(test: &str, output: &Output) -> Result<(), Error> {
    let out = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && !out.contains("1 passed") {
        return Err(Error::Child(format!("there is no test {test}")));
    }
    if !output.status.success() {
        let output_text = format!("{out}{}", String::from_utf8_lossy(&output.stderr));
        let from = output_text.len().saturating_sub(OUTPUT_BYTES_MAX);
        let end: String =
            output_text.char_indices().filter(|(index, _)| *index >= from).map(|(_, c)| c).collect();
        return Err(Error::Child(format!("{}\n{end}", output.status)));
    }
    Ok(())
}
