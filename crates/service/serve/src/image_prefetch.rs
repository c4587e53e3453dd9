//! Images for a standby. The standby fetches each image when the serving host has made it: at a takeover clients do
//! not wait for the transfer.
//!
//! A thread with a stream of its own to the logger, and at a quarter of the speed that logger and network have: the
//! serving host waits for the logger with each output.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use checkpoint::{Store, Unpack};
use protocol::control::{ControlError, KeptImage};

use crate::{
    clock,
    config::ServeConfig,
    error::{ServeError, SystemContext as _},
    images::Images,
    lease_client::LOGGER_CONNECT_TIMEOUT,
    logger_client::{LoggerClient, read_stored_image, stored_image},
    standby_eligibility,
};

/// Interval between two questions for a new image.
const QUESTION_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Pause before a logger of an older version is asked again.
const UPGRADE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Space that an image leaves for other files: the directory of a service may be in memory, with files that a takeover
/// writes.
const SPARE_BYTES: u64 = 64 << 20;
/// Bytes of a request. The serving host's next request may wait for one answer.
const PIECE_BYTES: u32 = 256 << 10;
/// Pause after a piece, by the time of the piece.
const PAUSE_FACTOR: u32 = 3;
/// Longest sleep between two looks at the end of the thread.
const STOP_CHECK_TIME: Duration = Duration::from_millis(10);

const PLACE: &str = "keep an image for a takeover";

/// Images that arrive ahead of a takeover. Drop ends the thread and removes the image.
pub(crate) struct ImagePrefetch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// An image that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefetchedImage {
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
}

struct Shared {
    logger: SocketAddr,
    key_file: PathBuf,
    service: String,
    store: Store,
    is_over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the image that is here as a whole.
    whole: Option<u64>,
    /// Number of the image that cannot be stored here.
    unfit: Option<u64>,
    news: Option<Result<PrefetchedImage, String>>,
}

impl ImagePrefetch {
    /// `None`: this host makes no checkpoints, or no logger has images.
    pub(crate) fn start(config: &ServeConfig, run_dir: &Path) -> Result<Option<Self>, ServeError> {
        let granter = standby_eligibility::granter(config);
        let (Some(logger), Some(link)) = (granter, &config.link) else {
            return Ok(None);
        };
        let Some(images) = Images::wanted(config, run_dir)? else {
            return Ok(None);
        };
        let shared = Arc::new(Shared {
            logger,
            key_file: link.key_file.clone(),
            service: config.name.clone(),
            store: images.into_store(),
            is_over: AtomicBool::new(false),
            state: Mutex::default(),
        });
        // Of a standby that was killed.
        shared.store.remove_arrivals().doing(PLACE)?;
        let fetching = Arc::clone(&shared);
        let thread = thread::Builder::new().name("images".to_owned());
        let thread = thread.spawn(move || fetching.run()).doing(PLACE)?;
        Ok(Some(Self {
            shared,
            thread: Some(thread),
        }))
    }

    /// The image that has arrived since the last question, or the reason why the image cannot be stored here.
    pub(crate) fn news(&self) -> Option<Result<PrefetchedImage, String>> {
        self.shared.state().news.take()
    }

    /// Ends the thread. The image with this number is an image of this host from now on; `false`: it is not here.
    pub(crate) fn take(mut self, number: u64) -> bool {
        self.end();
        self.shared.state().whole == Some(number) && self.shared.store.take_arrival(number).is_ok()
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ImagePrefetch {
    fn drop(&mut self) {
        self.end();
        let _ = self.shared.store.remove_arrivals(); // the next start removes the rest
    }
}

impl Shared {
    fn run(&self) {
        let mut stream = None;
        while !self.is_over.load(Ordering::Relaxed) {
            match self.step(&mut stream) {
                Ok(()) => self.pause(QUESTION_INTERVAL),
                // A logger of the version before has no images for standbys, but its next version has.
                Err(ServeError::LoggerProtocol(ControlError::NotSpoken { .. })) => {
                    stream = None;
                    self.pause(UPGRADE_CHECK_INTERVAL);
                }
                Err(error) => {
                    tracing::debug!(%error, "no image is fetched ahead");
                    stream = None;
                    self.pause(RETRY_DELAY);
                }
            }
        }
    }

    fn step(&self, stream: &mut Option<LoggerClient>) -> Result<(), ServeError> {
        let logger = match stream {
            Some(logger) => logger,
            None => {
                let called =
                    LoggerClient::call(self.logger, &self.key_file, LOGGER_CONNECT_TIMEOUT)?;
                stream.insert(called)
            }
        };
        match stored_image(logger, &self.service)? {
            Some(image) => self.want(logger, &image),
            None => {
                self.state().whole = None;
                self.store.remove_arrivals().doing(PLACE)
            }
        }
    }

    /// Fetches the image, unless the image is here or cannot be.
    fn want(&self, logger: &mut LoggerClient, image: &KeptImage) -> Result<(), ServeError> {
        let number = Some(image.number);
        {
            let state = self.state();
            if state.whole == number || state.unfit == number {
                return Ok(());
            }
        }
        let fetched = self
            .check_space(image)
            .and_then(|()| self.fetch(logger, image));
        if matches!(&fetched, Err(ServeError::System { what, .. }) if *what == PLACE) {
            let reason = fetched.as_ref().err().map(ToString::to_string);
            let _ = self.store.remove_arrivals();
            let mut state = self.state();
            state.unfit = number;
            state.news = reason.map(Err);
            return Ok(());
        }
        fetched
    }

    fn check_space(&self, image: &KeptImage) -> Result<(), ServeError> {
        let (needed, free) = (
            image.length + SPARE_BYTES,
            self.store.free_bytes().doing(PLACE)?,
        );
        match needed <= free {
            true => Ok(()),
            false => {
                let words = format!("{needed} bytes are needed, and {free} are free");
                Err(io::Error::new(io::ErrorKind::StorageFull, words)).doing(PLACE)
            }
        }
    }

    fn fetch(&self, logger: &mut LoggerClient, image: &KeptImage) -> Result<(), ServeError> {
        let begun = clock::now();
        self.state().whole = None;
        let place = self.store.begin_arrival(image.number).doing(PLACE)?;
        let mut unpack = Unpack::into(place);
        let mut from = 0;
        while from < image.length {
            let asked = clock::now();
            let bytes = read_stored_image(logger, &self.service, image.number, from, PIECE_BYTES)?;
            if bytes.is_empty() {
                return Ok(()); // the serving host has made another image
            }
            from += bytes.len() as u64;
            unpack.take(&bytes).doing(PLACE)?;
            self.pause((clock::now() - asked) * PAUSE_FACTOR);
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        unpack.finish().doing(PLACE)?;
        *self.state() = State {
            whole: Some(image.number),
            unfit: None,
            news: Some(Ok(PrefetchedImage {
                bytes: image.length,
                took: clock::now().saturating_sub(begun),
            })),
        };
        Ok(())
    }

    fn pause(&self, time: Duration) {
        let until = clock::now() + time;
        while !self.is_over.load(Ordering::Relaxed) {
            let left = until.saturating_sub(clock::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(STOP_CHECK_TIME));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
