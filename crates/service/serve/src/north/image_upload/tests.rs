//! Property: whichever process dies at whichever time, a whole record at the logger is a complete image and all later
//! determinants, and reaches at least to the last output.

use std::{collections::VecDeque, fs};

use checkpoint::Store;
use journal::Determinants;
use proptest::prelude::*;
use protocol::control::{Edition, KeptImage};

use super::*;

const RECORD_NUMBER: u64 = 7;
const FREE_BYTES: u64 = u64::MAX;
/// More than may be under way at a time.
const IMAGE_BYTES: usize = 300_000;
const LOG_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
enum Input {
    /// The server records this many bytes, and the processes send the bytes to the logger.
    Append(usize),
    /// [`Input::Append`], but no byte arrives at the logger.
    AppendLocally(usize),
    /// An image is made of all that was noted.
    Make,
    /// This many messages arrive at the logger.
    Send(usize),
    /// This many answers arrive here.
    Receive(usize),
    /// This many messages and answers arrive.
    Pass(usize),
    ServerDies,
    ServeDies,
    LoggerDies,
    /// The control stream ends, and a new control stream begins.
    Break,
}

fn step() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => (1..5000usize).prop_map(Input::Append),
        2 => (1..5000usize).prop_map(Input::AppendLocally),
        4 => Just(Input::Make),
        3 => (1..8usize).prop_map(Input::Send),
        2 => (1..8usize).prop_map(Input::Receive),
        2 => (1..8usize).prop_map(Input::Pass),
        4 => Just(Input::Pass(20)),
        1 => Just(Input::ServerDies),
        1 => Just(Input::ServeDies),
        2 => Just(Input::LoggerDies),
        1 => Just(Input::Break),
    ]
}

fn note(at: usize) -> u8 {
    (at * 7 % 251).to_le_bytes()[0]
}

fn notes(from: u64, to: u64) -> Vec<u8> {
    let range = [from, to].map(|at| usize::try_from(at).expect("short"));
    (range[0]..range[1]).map(note).collect()
}

/// The active host and a logger.
struct Model {
    _directory: tempfile::TempDir,
    store: Store,
    uploads: Uploads,
    logger_copy: super::super::logger_copy::LoggerCopy,
    /// Length of the record, length at the logger, and length at the time of the last output.
    head: u64,
    stable: u64,
    said: u64,
    base: u64,
    last: Option<Image>,
    /// Ends of the images, by number.
    made: Vec<u64>,
    logger: Determinants,
    up: VecDeque<Request>,
    down: VecDeque<ImageReply>,
}

impl Model {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::new(directory.path().to_owned()).expect("a store");
        let mut model = Self {
            _directory: directory,
            store,
            uploads: Uploads::default(),
            logger_copy: Default::default(),
            head: 0,
            stable: 0,
            said: 0,
            base: 0,
            last: None,
            made: Vec::new(),
            logger: Determinants::default(),
            up: VecDeque::new(),
            down: VecDeque::new(),
        };
        model.greet();
        model
    }

    fn take(&mut self, step: Input) {
        match step {
            Input::Append(bytes) => {
                self.note(bytes);
                self.ship();
            }
            Input::AppendLocally(bytes) => self.note(bytes),
            Input::Make => self.make(),
            Input::Send(count) => (0..count).for_each(|_| self.send()),
            Input::Receive(count) => (0..count).for_each(|_| self.receive()),
            Input::Pass(count) => self.pass(count),
            Input::ServerDies => {
                self.uploads.stop_new();
                self.compare(); // before the start of the next server
            }
            Input::ServeDies => {
                self.uploads = Uploads::default();
                self.logger_copy.begin(RECORD_NUMBER, &[(0, self.said)]);
                self.greet();
            }
            Input::LoggerDies => {
                self.logger = Determinants::default();
                self.greet();
            }
            Input::Break => self.greet(),
        }
    }

    fn note(&mut self, bytes: usize) {
        self.head = (self.head + bytes as u64).min(LOG_BYTES as u64);
    }

    /// As the processes send determinants. Output waits until the logger has all determinants.
    fn ship(&mut self) {
        let from = self.stable.max(self.base);
        let bytes = notes(from, self.head);
        let length = self
            .logger
            .append(RECORD_NUMBER, 0, from, &bytes, FREE_BYTES);
        self.stable = length.expect("room").expect("the record");
        if self.stable == self.head {
            self.said = self.head;
        }
    }

    fn make(&mut self) {
        if self.uploads.is_under_way() || self.head == self.base {
            return;
        }
        let number = self.made.len() as u64 + 1;
        let image = image(&self.store, number);
        self.made.push(self.head);
        let made = NewImage::of(image, self.head);
        self.uploads
            .begin(made, RECORD_NUMBER)
            .expect("it is whole");
    }

    fn pass(&mut self, count: usize) {
        for _ in 0..count {
            self.send();
            self.receive();
        }
    }

    fn send(&mut self) {
        let requests = self.uploads.requests(1).ok();
        self.up.extend(requests.expect("it can be read"));
        if let Some(request) = self.up.pop_front() {
            self.down.extend(answer(&mut self.logger, &request));
        }
    }

    fn receive(&mut self) {
        if let Some(said) = self.down.pop_front() {
            let uploaded = self.uploads.on_reply(said);
            if self.handle(uploaded) {
                self.compare();
            }
        }
    }

    /// Is any message due afterwards?
    fn handle(&mut self, uploaded: Uploaded) -> bool {
        match uploaded {
            Uploaded::NotYet => false,
            Uploaded::Again => true,
            Uploaded::New(made) => {
                let before = self.last.take();
                self.base = made.end;
                self.last = made.used();
                before.map(|image| fs::remove_dir_all(image.directory));
                true
            }
            Uploaded::Failed(why) | Uploaded::Never(why) => panic!("{why}"),
        }
    }

    /// There is another control stream.
    fn greet(&mut self) {
        self.up.clear();
        self.down.clear();
        self.logger.drop_upload();
        self.uploads.restart();
        self.compare();
    }

    /// Like `compare_determinants`.
    fn compare(&mut self) {
        loop {
            self.logger.begin(RECORD_NUMBER);
            let said = self
                .logger_copy
                .add(RECORD_NUMBER, &[(0, self.stable.max(self.base))]);
            self.logger.was_said(RECORD_NUMBER, &said);
            let there = there(&self.logger);
            self.stable = there.length(0);
            let here = Here {
                record: RECORD_NUMBER,
                base: self.base,
                last: self.last.as_ref(),
            };
            let uploaded = self.uploads.compare(&there, here);
            self.handle(uploaded);
            let from = there.length(0);
            if from < self.base || from >= self.head {
                return;
            }
            let to = self.head.min(from + 2000);
            let told = self
                .logger
                .append(RECORD_NUMBER, 0, from, &notes(from, to), FREE_BYTES);
            assert_eq!(told, Ok(Some(to)));
        }
    }

    /// Checks the view of another host, and the state here.
    fn check(&self) {
        if let Some(last) = &self.last {
            last.check().expect("it is what it was");
            assert_eq!(self.made[number(last)], self.base);
        }
        let base = self.logger.image().map_or(0, journal::Image::base);
        let length = there(&self.logger).length(0);
        assert!(self.logger.read(0, base, usize::MAX) == notes(base, length));
        if let Some(image) = self.logger.image() {
            let index = usize::try_from(image.number() - 1).expect("small");
            assert_eq!(self.made[index], image.base());
            let bytes = image.read(0, usize::MAX);
            let pages = pages(image.number());
            assert!(bytes.windows(pages.len()).any(|part| part == pages));
        }
        if self.logger.is_whole() {
            assert!(length >= self.said, "{length} of {}", self.said);
        }
    }
}

fn number(image: &Image) -> usize {
    usize::try_from(image.number - 1).expect("small")
}

fn pages(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; IMAGE_BYTES]
}

fn image(store: &Store, number: u64) -> Image {
    let image = store.begin(number).expect("an image");
    let (pages, sum) = (pages(number), crc32fast::hash);
    let line = format!("{:08x} {} pages\n", sum(&pages), pages.len());
    let manifest = format!("{line}{:08x}\n", sum(line.as_bytes()));
    fs::write(image.directory.join("pages"), pages).expect("written");
    fs::write(image.directory.join("manifest"), manifest).expect("written");
    image
}

/// The logger's reply.
fn there(logger: &Determinants) -> Streams {
    Streams {
        edition: logger.record().map(|record| Edition { record, history: 0 }),
        is_whole: logger.is_whole(),
        image: logger.image().map(|image| KeptImage {
            number: image.number(),
            length: image.length(),
            base: image.base(),
            processes: image.processes(),
        }),
        streams: logger.streams().collect(),
    }
}

fn answer(logger: &mut Determinants, request: &Request) -> Option<ImageReply> {
    let (record, image, is) = match *request {
        Request::TellImage {
            record,
            image,
            length,
            from,
            ref bytes,
        } => {
            let taken = logger.take_image(record, (image, length), from, bytes, FREE_BYTES);
            (record, image, taken.map(ImageState::There))
        }
        Request::CommitImage {
            record,
            image,
            base,
            processes,
        } => {
            let kept = logger.commit_image(record, image, base, processes);
            (record, image, kept.map(|()| ImageState::Kept))
        }
        _ => {
            logger.drop_upload();
            return None;
        }
    };
    let image = (record, image);
    let state = is.unwrap_or_else(|why| ImageState::Refused(why.to_string()));
    Some(ImageReply { image, state })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn record_survives_any_crash_order(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.take(step);
            model.check();
        }
        // After the last death, the logger gets everything.
        model.note(1);
        model.pass(100);
        model.ship();
        model.check();
        prop_assert!(!model.uploads.is_under_way());
        prop_assert!(model.logger.is_whole());
        prop_assert_eq!(model.said, model.head);
        if let Some(last) = &model.last {
            prop_assert!(model.logger.image().is_some_and(|there| there.number() >= last.number));
        }
    }
}
