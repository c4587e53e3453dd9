//! The scanner of `bpf/objects/head.h`, loaded into the kernel.

use std::path::Path;

use http1::range::ByteRange;
use http1::version::VersionCheck;
use http1::{BodyLength, Method, Protocol};
use libbpf_rs::{MapCore as _, MapFlags, Object, ObjectBuilder, ProgramInput};
use objects::head::{RequestSummary, ResponseSummary};

use crate::lib_headers::compile;

/// Ethernet, IPv4 and TCP without options.
const HEADERS_LEN: usize = 54;
/// `LENGTH_UNKNOWN`
const LENGTH_UNKNOWN: u64 = u64::MAX;

/// `enum head_verdict`, with the summary of a whole head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict<T> {
    Whole(T),
    Partial,
    Doubt,
}

pub(super) struct Scanner {
    pub(super) object: Object,
}

impl Scanner {
    pub(super) fn load() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let object = place.path().join("head.bpf.o");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bpf/head.bpf.c");
        compile(Path::new(source), &object);
        let mut builder = ObjectBuilder::default();
        let open = builder.open_file(&object).expect("the compiled object");
        Self {
            object: open.load().expect("this kernel takes the programs"),
        }
    }

    /// Scans the first `len` bytes of the payload of a frame.
    pub(super) fn request(&self, payload: &[u8], len: usize) -> Verdict<RequestSummary> {
        self.set_input(len, 0, 0);
        let returned = self.run("request", payload);
        let (code, verdict) = self.found_request();
        assert_eq!(code, returned, "the verdict is returned, too");
        verdict
    }

    pub(super) fn response(
        &self,
        payload: &[u8],
        len: usize,
        method: Method,
        check: VersionCheck,
    ) -> Verdict<ResponseSummary> {
        self.set_input(len, method_number(method), check_number(check));
        let returned = self.run("response", payload);
        let (code, verdict) = self.found_response();
        assert_eq!(code, returned, "the verdict is returned, too");
        verdict
    }

    /// Prepares the program `sent`, which finds offset and length in the segment.
    pub(super) fn expect_segment(&self, response_check: Option<VersionCheck>) {
        let check = response_check.map_or(0, check_number);
        self.write_input([0, 0, 0, check, response_check.is_some().into(), u32::MAX]);
    }

    /// The bytes of payload of the last segment that were not in fragments.
    pub(super) fn linear_payload(&self) -> u32 {
        let input = self.map_value("inputs");
        u32::from_ne_bytes(input[20..24].try_into().expect("4 bytes"))
    }

    pub(super) fn found_request(&self) -> (u32, Verdict<RequestSummary>) {
        let bytes = self.map_value("requests");
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let len = u32::from_ne_bytes(bytes[8..12].try_into().expect("4 bytes"));
        let [verdict, method, body, _, low, high] = bytes[12..18] else {
            panic!("24 bytes, not {}", bytes.len());
        };
        let flags = u16::from_ne_bytes([low, high]);
        let has = |flag: u16| flags & flag != 0;
        let summary = RequestSummary {
            len: len as usize,
            method: [Method::Get, Method::Head, Method::Other][usize::from(method)],
            protocol: protocol(has(1)),
            body: body_length(body, word(0)),
            has_close: has(2),
            has_range: has(4),
            has_ranges: has(8),
            has_suffix: has(128),
            has_credentials: has(16),
            has_upgrade: has(32),
            has_expect: has(64),
            has_inputs: has(256),
        };
        (verdict.into(), verdict_of(verdict, &bytes, 12, summary))
    }

    pub(super) fn found_response(&self) -> (u32, Verdict<ResponseSummary>) {
        let bytes = self.map_value("responses");
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
        let [verdict, body, flags, ..] = bytes[40..48] else {
            panic!("48 bytes, not {}", bytes.len());
        };
        let has = |flag: u8| flags & flag != 0;
        let summary = ResponseSummary {
            len: half(36).into(),
            status: half(38),
            protocol: protocol(has(1)),
            body: body_length(body, word(0)),
            part: ByteRange::new(word(8), word(16)).filter(|_| has(4)),
            has_parts: has(8),
            complete_len: Some(word(24)).filter(|len| *len != LENGTH_UNKNOWN),
            version: u32::from_ne_bytes(bytes[32..36].try_into().expect("4 bytes")),
            is_comparable: has(16),
            has_close: has(2),
            has_inputs: has(32),
        };
        (verdict.into(), verdict_of(verdict, &bytes, 40, summary))
    }

    fn set_input(&self, len: usize, method: u32, check: u32) {
        let len = u32::try_from(len).expect("a small number");
        let offset = u32::try_from(HEADERS_LEN).expect("a small number");
        self.write_input([offset, len, method, check, 0, 0]);
    }

    /// `struct head_input`
    fn write_input(&self, words: [u32; 6]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let map = self.map("inputs");
        map.update(&[0; 4], &bytes, MapFlags::ANY)
            .expect("an array");
    }

    fn run(&self, name: &str, payload: &[u8]) -> u32 {
        let mut frame = vec![0; HEADERS_LEN];
        (frame[12], frame[14]) = (8, 0x45);
        frame.extend_from_slice(payload);
        let mut programs = self.object.progs_mut();
        let program = programs
            .find(|program| program.name() == name)
            .expect("a program");
        let input = ProgramInput {
            data_in: Some(&frame),
            ..ProgramInput::default()
        };
        let output = program.test_run(input).expect("the program runs");
        output.return_value
    }

    fn map(&self, name: &str) -> libbpf_rs::Map<'_> {
        let mut maps = self.object.maps();
        maps.find(|map| map.name() == name).expect("a map")
    }

    fn map_value(&self, name: &str) -> Vec<u8> {
        let value = self.map(name).lookup(&[0; 4], MapFlags::ANY);
        value.expect("a lookup").expect("an element")
    }
}

/// The verdict with this number, which is at `at`. All other bytes are 0 unless the head is whole.
fn verdict_of<T>(number: u8, bytes: &[u8], at: usize, summary: T) -> Verdict<T> {
    if number == 0 {
        return Verdict::Whole(summary);
    }
    let mut others = bytes.to_vec();
    others[at] = 0;
    assert!(others.iter().all(|byte| *byte == 0), "{bytes:?}");
    match number {
        1 => Verdict::Partial,
        2 => Verdict::Doubt,
        number => panic!("there is no verdict {number}"),
    }
}

fn protocol(is_http10: bool) -> Protocol {
    match is_http10 {
        true => Protocol::Http10,
        false => Protocol::Http11,
    }
}

fn body_length(body: u8, len: u64) -> BodyLength {
    match body {
        0 => BodyLength::Bytes(len),
        1 => BodyLength::Chunked,
        2 => BodyLength::UntilClose,
        body => panic!("there is no kind {body} of bodies"),
    }
}

/// `enum head_method`
fn method_number(method: Method) -> u32 {
    match method {
        Method::Get => 0,
        Method::Head => 1,
        Method::Other => 2,
    }
}

/// `enum version_check`
fn check_number(check: VersionCheck) -> u32 {
    match check {
        VersionCheck::Etag => 0,
        VersionCheck::Modified => 1,
        VersionCheck::Length => 2,
        VersionCheck::Off => 3,
    }
}
