//! Storage of lease decisions in a file: each decision that a host knows outlives the logger.
//!
//! A separate thread waits for the disk. The file is replaced as a whole, and is small. The file changes when
//! another host serves, or when a standby comes or goes.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread,
    time::Duration,
};

use lease::Record;
use serde::{Deserialize, Serialize};

const FILE: &str = "leases.json";
const NEW: &str = "leases.json.new";
/// The feature `next-version` raises the version.
const VERSION: u32 = OLDEST + cfg!(feature = "next-version") as u32;
/// The oldest version that is read. No older version was published.
const OLDEST: u32 = 1;

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "leases.json",
    version: VERSION,
    oldest: OLDEST,
};
/// Time before the next attempt after a failed write.
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The beginning of a page, in every version.
#[derive(Debug, Deserialize)]
struct StoredVersion {
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredLeases {
    version: u32,
    services: Vec<StoredLease>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredLease {
    service: String,
    epoch: u32,
    holder: Option<(u64, u64)>,
    leased: bool,
    term_us: u64,
    /// Of the next version, for tests.
    #[cfg(feature = "next-version")]
    #[serde(default)]
    next: u32,
}

impl From<Record> for StoredLease {
    fn from(record: Record) -> Self {
        Self {
            service: record.service,
            epoch: record.epoch,
            holder: record.holder,
            leased: record.leased,
            term_us: u64::try_from(record.term.as_micros()).unwrap_or(u64::MAX),
            #[cfg(feature = "next-version")]
            next: record.epoch,
        }
    }
}

impl From<StoredLease> for Record {
    fn from(line: StoredLease) -> Self {
        Self {
            service: line.service,
            epoch: line.epoch,
            holder: line.holder,
            leased: line.leased,
            term: Duration::from_micros(line.term_us),
        }
    }
}

/// The file, and the thread that writes it.
pub(super) struct LeaseStore {
    /// `None` only during the end.
    orders: Option<Sender<(u64, Vec<Record>)>>,
    asked: u64,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The newest stored state.
    kept: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl LeaseStore {
    /// Opens the file in the directory, and returns the stored records.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, Vec<Record>)> {
        let records = read(&directory.join(FILE))?;
        let (orders, received) = channel();
        let shared = Arc::new(Shared::default());
        let (theirs, directory) = (Arc::clone(&shared), directory.to_owned());
        let thread = thread::Builder::new()
            .name("leases".into())
            .spawn(move || run(&directory, &received, &theirs))?;
        let store = Self {
            orders: Some(orders),
            asked: 0,
            shared,
            thread: Some(thread),
        };
        Ok((store, records))
    }

    /// Stores these records in place of all earlier ones. Returns the number of this state.
    pub(super) fn keep(&mut self, records: Vec<Record>) -> u64 {
        self.asked += 1;
        // The thread ends only by a panic: afterwards no state is stored, and no host gets a grant.
        if let Some(orders) = &self.orders {
            let _ = orders.send((self.asked, records));
        }
        self.asked
    }

    /// The newest stored state.
    pub(super) fn kept(&self) -> u64 {
        self.shared.kept.load(Ordering::Acquire)
    }

    /// The reason why the last write failed.
    pub(super) fn failure(&self) -> Option<String> {
        let trouble = self.shared.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LeaseStore {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a running thread could overwrite the file of the next store
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<Record>> {
    let mut text = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => {
            let mut file = file?;
            file.read_to_end(&mut text)?;
            file.sync_all()?;
        }
    }
    // Without a sync the page before may come back after a power failure, although this page is used now.
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    let records = parse(&text).map_err(|why| {
        let why = format!("{} holds the grants of services, and {why}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, why)
    })?;
    Ok(records)
}

/// The records of a page, or the fault for the operator.
fn parse(text: &[u8]) -> Result<Vec<Record>, String> {
    let damaged = |error| format!("cannot be read ({error}): remove the file if no host serves");
    let StoredVersion { version } = serde_json::from_slice(text).map_err(damaged)?;
    // Before the rest: the lines of another version may differ.
    if !(OLDEST..=VERSION).contains(&version) {
        let read = FORMAT.reads();
        return Err(format!(
            "has version {version}, and this program reads {read}: start the version of outlive that wrote it"
        ));
    }
    let page: StoredLeases = serde_json::from_slice(text).map_err(damaged)?;
    Ok(page.services.into_iter().map(Record::from).collect())
}

fn run(directory: &Path, orders: &Receiver<(u64, Vec<Record>)>, shared: &Shared) {
    while let Ok(mut newest) = orders.recv() {
        loop {
            let ends = loop {
                match orders.try_recv() {
                    Ok(newer) => newest = newer,
                    Err(error) => break error == TryRecvError::Disconnected,
                }
            };
            let (state, records) = &newest;
            let written = write(directory, records);
            let trouble = written.err().map(|error| error.to_string());
            let failed = trouble.is_some();
            *shared
                .trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = trouble;
            if !failed {
                shared.kept.store(*state, Ordering::Release);
                break;
            }
            if ends {
                return;
            }
            thread::sleep(WRITE_RETRY_DELAY);
        }
    }
}

fn page(records: &[Record]) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&StoredLeases {
        version: VERSION,
        services: records.iter().cloned().map(StoredLease::from).collect(),
    })
}

/// At a power failure either the old or the new file is there.
fn write(directory: &Path, records: &[Record]) -> io::Result<()> {
    let new: PathBuf = directory.join(NEW);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(&page(records)?)?;
    file.sync_all()?;
    fs::rename(&new, directory.join(FILE))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(epoch: u32) -> Record {
        Record {
            service: "web".into(),
            epoch,
            holder: Some((u64::MAX, 7)),
            leased: true,
            term: Duration::from_millis(250),
        }
    }

    #[test]
    fn what_is_kept_is_there_in_the_next_life() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, nothing) = LeaseStore::open(directory.path()).unwrap();
        assert_eq!((nothing, store.kept()), (Vec::new(), 0));
        store.keep(vec![record(1)]);
        let state = store.keep(vec![record(2)]);
        while store.kept() < state {
            thread::sleep(Duration::from_millis(1));
        }
        let (_, again) = LeaseStore::open(directory.path()).unwrap();
        assert_eq!(again, vec![record(2)]);
    }

    #[test]
    fn nothing_is_kept_where_nothing_can_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, _) = LeaseStore::open(directory.path()).unwrap();
        fs::create_dir(directory.path().join(NEW)).unwrap();
        let state = store.keep(vec![record(1)]);
        while store.failure().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(store.kept(), 0);
        fs::remove_dir(directory.path().join(NEW)).unwrap();
        while store.kept() < state {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(store.failure(), None);
    }

    #[test]
    fn a_page_that_is_none_is_not_believed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "rubbish").unwrap();
        assert!(LeaseStore::open(directory.path()).is_err());
    }

    /// A change here is a change of the format.
    #[test]
    fn pages_of_all_versions_are_read() {
        let page_1 = r#"{"version":1,"services":[{"service":"web","epoch":2,"holder":[18446744073709551615,7],"leased":true,"term_us":250000}]}"#;
        let page_2 = r#"{"version":2,"services":[{"service":"web","epoch":2,"holder":[18446744073709551615,7],"leased":true,"term_us":250000,"next":2}]}"#;
        let pages = [page_1, page_2];
        let own = pages[usize::try_from(VERSION - OLDEST).unwrap()];
        assert_eq!(String::from_utf8(page(&[record(2)]).unwrap()).unwrap(), own);
        for (version, page) in (OLDEST..=VERSION).zip(pages) {
            assert_eq!(
                parse(page.as_bytes()),
                Ok(vec![record(2)]),
                "version {version}"
            );
        }
    }

    /// Lines of a later version are not parsed.
    #[test]
    fn page_of_next_version_is_refused_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let next = VERSION + 1;
        for version in [0, next] {
            let text = format!(r#"{{"version":{version},"lines":7}}"#);
            fs::write(directory.path().join(FILE), &text).unwrap();
            let opened = LeaseStore::open(directory.path());
            let why = opened.map(|_| ()).unwrap_err().to_string();
            assert!(
                why.contains(&format!("has version {version}, and this program reads")),
                "{why}"
            );
            assert_eq!(
                fs::read_to_string(directory.path().join(FILE)).unwrap(),
                text
            );
        }
    }

    proptest! {
        /// A page of version 1 lacks the last field.
        #[test]
        fn page_of_version_1_is_read_as_same_records(records in prop::collection::vec(any_record(), 0..5)) {
            let mut own: serde_json::Value = serde_json::from_slice(&page(&records).unwrap()).unwrap();
            own["version"] = 1.into();
            for line in own["services"].as_array_mut().unwrap() {
                line.as_object_mut().unwrap().remove("next");
            }
            prop_assert_eq!(parse(own.to_string().as_bytes()), Ok(records));
        }
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let holder = any::<Option<(u64, u64)>>();
        let all = (
            any::<String>(),
            any::<u32>(),
            holder,
            any::<bool>(),
            any::<u32>(),
        );
        all.prop_map(|(service, epoch, holder, leased, term)| Record {
            service,
            epoch,
            holder,
            leased,
            term: Duration::from_micros(term.into()),
        })
    }
}
