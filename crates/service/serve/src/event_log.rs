//! Events on disk: `events.jsonl` in a directory of the service. Lines are only added. `outlive history` reads the
//! file.
//!
//! A thread writes: a slow or full disk must not hold up the service. Each line is a single `write`. A kill in the
//! middle leaves a line without an end; the next `serve` ends that line, and readers skip the line. A full file
//! replaces the file before.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

use serde::Serialize;

/// The file, and the full file before.
const FILE: &str = "events.jsonl";
const ROTATED_FILE: &str = "events.jsonl.1";
/// Size of a full file, bytes. There are two files.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Lines that wait for a slow disk: as many as are retained in memory.
const QUEUED_LINES_MAX: usize = 1000;
/// Time that the end of a service waits for a slow disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Why lines are not written, since that was asked last.
#[derive(Debug, Default)]
struct Failure {
    why: Option<String>,
    told: bool,
}

/// Destination of the events of a service.
#[derive(Debug)]
pub(crate) struct EventLog {
    lines: Option<SyncSender<Vec<u8>>>,
    failure: Arc<Mutex<Failure>>,
    /// Ends when everything is written.
    written: Receiver<()>,
}

impl EventLog {
    /// `None`: the thread could not be started.
    pub(crate) fn begin(directory: &Path, service: &str) -> Option<Self> {
        let (lines, to_write) = mpsc::sync_channel(QUEUED_LINES_MAX);
        let (done, written) = mpsc::channel();
        let failure = Arc::new(Mutex::new(Failure::default()));
        let noted = Arc::clone(&failure);
        let mut writer = Writer::new(directory.join(service));
        let name = "events".to_owned();
        let spawned = thread::Builder::new().name(name).spawn(move || {
            let _done: mpsc::Sender<()> = done;
            write_all(&mut writer, &to_write, &noted);
        });
        spawned.is_ok().then_some(Self {
            lines: Some(lines),
            failure,
            written,
        })
    }

    pub(crate) fn add(&mut self, what: &impl Serialize) {
        let Ok(mut line) = serde_json::to_vec(what) else {
            return;
        };
        line.push(b'\n');
        let sent = self.lines.as_ref().map(|lines| lines.try_send(line));
        if let Some(Err(TrySendError::Full(_))) = sent {
            note(&self.failure, Err("the disk does not answer".into()));
        }
    }

    /// Why lines are not written; returned only once, until lines are written again.
    pub(crate) fn failure(&mut self) -> Option<String> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let why = failure.why.clone().filter(|_| !failure.told)?;
        failure.told = true;
        Some(why)
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Err(RecvTimeoutError::Timeout) = self.written.recv_timeout(FLUSH_TIMEOUT) {
            tracing::warn!("the last events are not in the history: the disk does not answer");
        }
    }
}

fn note(of: &Mutex<Failure>, result: Result<(), String>) {
    let mut failure = of.lock().unwrap_or_else(PoisonError::into_inner);
    match result {
        Ok(()) => *failure = Failure::default(),
        Err(why) => failure.why = Some(why),
    }
}

fn write_all(writer: &mut Writer, lines: &Receiver<Vec<u8>>, failure: &Mutex<Failure>) {
    while let Ok(first) = lines.recv() {
        let mut result = writer.add(&first);
        for line in lines.try_iter() {
            result = result.and(writer.add(&line));
        }
        let result = result.and_then(|()| writer.sync());
        let told = result.map_err(|error| format!("{}: {error}", writer.directory.display()));
        note(failure, told);
    }
}

/// Writes lines, a single write for each line.
struct Writer {
    directory: PathBuf,
    file: Option<File>,
    most: u64,
}

impl Writer {
    fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            file: None,
            most: FILE_BYTES_MAX,
        }
    }

    /// A failed write may leave a part of the line: the next opening of the file ends the line.
    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => open(&self.directory)?,
        };
        let about = file.metadata()?;
        if about.nlink() == 0 {
            file = open(&self.directory)?; // the file was removed
        } else if about.len() >= self.most {
            fs::rename(self.directory.join(FILE), self.directory.join(ROTATED_FILE))?;
            file = open(&self.directory)?;
        }
        file.write_all(line)?;
        self.file = Some(file);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }
}

/// Opens the file for adding lines: a torn line is ended.
fn open(directory: &Path) -> io::Result<File> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)?;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(directory.join(FILE))?;
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// Add an event to an existing history, from a process that is not `serve`.
pub(crate) fn add_to(directory: &Path, service: &str, what: &impl Serialize) -> io::Result<()> {
    let mut writer = Writer::new(directory.join(service));
    let mut line = serde_json::to_vec(what).map_err(io::Error::other)?;
    line.push(b'\n');
    writer.add(&line)?;
    writer.sync()
}

/// The services that have a history.
#[must_use]
pub fn services(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let known = entries.filter(|entry| entry.path().join(FILE).exists());
    let mut names: Vec<String> = known
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Read the history of a service, oldest event first; each whole line goes to `each` until `each` returns `false`.
/// Returns the number of torn lines (no JSON).
///
/// # Errors
/// The history does not exist, or cannot be read.
pub fn read(
    directory: &Path,
    service: &str,
    mut each: impl FnMut(&str) -> bool,
) -> io::Result<u64> {
    let directory = directory.join(service);
    let mut cut_off = 0;
    for file in both(&directory)? {
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&line).is_ok();
            match std::str::from_utf8(&line) {
                Ok(text) if is_json => {
                    if !each(text) {
                        return Ok(cut_off);
                    }
                }
                _ if line.is_empty() => {}
                _ => cut_off += 1,
            }
        }
    }
    Ok(cut_off)
}

/// The file before, if present, and the newest file.
fn both(directory: &Path) -> io::Result<Vec<File>> {
    let newest = File::open(directory.join(FILE))?;
    let before = match File::open(directory.join(ROTATED_FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![newest]),
        Err(error) => return Err(error),
    };
    // The newest file may have become the file before just now.
    let is_one = before.metadata()?.ino() == newest.metadata()?.ino();
    Ok(if is_one {
        vec![newest]
    } else {
        vec![before, newest]
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn lines(directory: &Path) -> (Vec<String>, u64) {
        let mut lines = Vec::new();
        let cut_off = read(directory, "web", |line| {
            lines.push(line.to_owned());
            true
        });
        (lines, cut_off.expect("a history"))
    }

    #[test]
    fn truncated_line_loses_only_itself() {
        let directory = tempfile::tempdir().expect("a directory");
        let add = |number: u32| add_to(directory.path(), "web", &number).expect("written");
        let file = directory.path().join("web").join(FILE);
        add(100);
        for length in 0..4 {
            add(200);
            let whole = fs::read(&file).expect("readable");
            fs::write(&file, &whole[..whole.len() - 4 + length]).expect("written");
        }
        add(300);
        let (lines, cut_off) = lines(directory.path());
        // 2 and 20 are numbers, too; 200 lacks only the end of the line.
        assert_eq!(lines, ["100", "2", "20", "200", "300"]);
        assert_eq!(cut_off, 0);
        fs::write(&file, "{\"a\":1}\n{\"a\"").expect("written");
        add(400);
        let cut = self::lines(directory.path());
        assert_eq!(cut, (vec!["{\"a\":1}".into(), "400".into()], 1));
    }

    #[test]
    fn two_files_are_retained() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut writer = Writer::new(directory.path().join("web"));
        writer.most = 10;
        for number in 0..9 {
            writer
                .add(format!("{number}{number}\n").as_bytes())
                .expect("written");
        }
        let (lines, _) = lines(directory.path());
        assert_eq!(lines, ["44", "55", "66", "77", "88"]);
    }

    #[test]
    fn removed_file_is_recreated() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut writer = Writer::new(directory.path().join("web"));
        writer.add(b"1\n").expect("written");
        fs::remove_dir_all(directory.path().join("web")).expect("removed");
        writer.add(b"2\n").expect("written");
        assert_eq!(lines(directory.path()), (vec!["2".into()], 0));
    }

    /// The state that a reader sees between the two steps of a rotation.
    #[test]
    fn rotated_file_is_read_once() {
        let directory = tempfile::tempdir().expect("a directory");
        add_to(directory.path(), "web", &1).expect("written");
        let own = directory.path().join("web");
        fs::hard_link(own.join(FILE), own.join(ROTATED_FILE)).expect("a link");
        assert_eq!(lines(directory.path()), (vec!["1".into()], 0));
    }

    #[test]
    fn full_disk_warns_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let own = directory.path().join("web");
        fs::create_dir(&own).expect("a directory");
        symlink("/dev/full", own.join(FILE)).expect("a link");
        let mut log = EventLog::begin(directory.path(), "web").expect("a thread");
        log.add(&1);
        let why = loop {
            if let Some(why) = log.failure() {
                break why;
            }
            thread::yield_now();
        };
        assert!(why.contains("No space left on device"), "{why}");
        log.add(&2);
        assert_eq!(log.failure(), None);
        drop(log);
        fs::remove_file(own.join(FILE)).expect("there is room again");
        let mut log = EventLog::begin(directory.path(), "web").expect("a thread");
        log.add(&3);
        drop(log);
        assert_eq!(lines(directory.path()), (vec!["3".into()], 0));
    }
}
