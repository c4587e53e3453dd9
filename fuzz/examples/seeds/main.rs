//! Makes `seeds/`: inputs for the fuzz targets to begin with, each a real encoding. To be run again when a format changes:
//!
//!     cd fuzz && cargo run --example seeds
//!
//! The generated seeds have numbers for names. All other seeds, such as inputs that showed a defect, stay.

mod blast;
mod bulk;
mod logs;
mod messages;
mod pool;
mod store;

use std::{fs, path::Path};

use blast::blast_datagrams;
use bulk::{bulk_messages, connections};
use logs::{damaged_logs, entries, log_of_a_logger, one_of_each_kind, segments_of};
use messages::{
    control_socket, datagrams, frames, north, openings, packets, requests, responses, said,
    strangers, with_size,
};
use pool::pool_messages;
use store::{records, store_replies};

fn main() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let keep = |target: &str, all: Vec<Vec<u8>>| {
        let directory = seeds.join(target);
        fs::create_dir_all(&directory).expect("a directory");
        for seed in fs::read_dir(&directory).expect("it is there") {
            let seed = seed.expect("a seed");
            if seed
                .file_name()
                .to_str()
                .is_some_and(|name| name.parse::<u32>().is_ok())
            {
                fs::remove_file(seed.path()).expect("removed");
            }
        }
        for (number, bytes) in all.iter().enumerate() {
            fs::write(directory.join(format!("{number:02}")), bytes).expect("room");
        }
    };
    keep("packet", packets());
    keep("mirror_frame", frames());
    keep("link", datagrams());
    keep("blast", blast_datagrams());
    keep(
        "control",
        with_size(
            requests()
                .into_iter()
                .map(|request| said(&request))
                .chain(responses())
                .chain(openings())
                .collect(),
        ),
    );
    keep("pool", with_size(pool_messages()));
    keep("bulk", with_size(bulk_messages()));
    keep("connection", connections());
    keep("control_socket", control_socket());
    keep("channel", strangers());
    keep("north", north());
    keep("manifest", manifests());
    keep("pack", packs());
    let log = log_of_a_logger();
    keep("log_entry", one_of_each_kind(&log));
    keep(
        "log_entries",
        [0, 1, 2].map(|step| entries(&log, step)).to_vec(),
    );
    keep("segment", segments_of(&log));
    keep("damaged_log", damaged_logs(&log));
    keep("key_file", key_files());
    keep("program", programs());
    keep("record", records());
    keep("store_replies", store_replies());
}

fn manifest(files: &[(&str, &[u8])]) -> String {
    let mut text = String::new();
    for (name, bytes) in files {
        text += &format!("{:08x} {} {name}\n", crc32fast::hash(bytes), bytes.len());
    }
    let sum = crc32fast::hash(text.as_bytes());
    text + &format!("{sum:08x}\n")
}

const FILES: [(&str, &[u8]); 4] = [
    ("a b", b"kept"),
    ("core-10000.img", b"core"),
    ("empty", b""),
    ("pages-1.img", &[7; 64]),
];

fn manifests() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (1..=FILES.len())
        .map(|count| manifest(&FILES[..count]).into_bytes())
        .collect();
    for name in ["../x", "/etc/passwd", "a\r", "manifest"] {
        all.push(manifest(&[(name, b"x")]).into_bytes());
    }
    all.push(b"00000000 18446744073709551615 a".to_vec());
    all
}

fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, content) in files {
        bytes.extend(u16::try_from(name.len()).expect("short").to_le_bytes());
        bytes.extend((content.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(*content);
    }
    bytes
}

fn packs() -> Vec<Vec<u8>> {
    let text = manifest(&FILES);
    let whole = [packed(&FILES), packed(&[("manifest", text.as_bytes())])].concat();
    with_size(vec![
        packed(&FILES[..1]),
        packed(&FILES[..3]),
        whole.clone(),
        whole[..whole.len() - 3].to_vec(),
        [whole, packed(&[("more", b"x")])].concat(),
        packed(&[("../x", b"x")]),
        packed(&[("a", b"x"), ("a", b"y")]),
    ])
}

fn key_files() -> Vec<Vec<u8>> {
    let line = |name: &str, digits: &str| format!("{name}:{}\n", digits.repeat(32));
    let all = [
        line("web", "0a"),
        format!("# for the web\n\n  {}", line("web-1", "AF")),
        line("new", "01") + &line("old", "02"),
        line("twice", "01") + &line("twice", "02"),
        "# nothing\n".to_owned(),
        "web:12\n".to_owned(),
        line("a b", "00"),
    ];
    all.map(String::into_bytes).to_vec()
}

fn programs() -> Vec<Vec<u8>> {
    let header = |class: u8, data: u8, kind: u8, machine: u8, loads: u8| {
        let mut bytes = vec![0; 64 + 2 * 56];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, data, 1]);
        for (at, to) in [
            (16, kind),
            (18, machine),
            (20, 1),
            (32, 64),
            (52, 64),
            (54, 56),
            (56, 2),
        ] {
            bytes[at] = to;
        }
        (bytes[64], bytes[64 + 56]) = (6, loads);
        bytes
    };
    let mut all = vec![
        header(2, 1, 3, 62, 3),
        header(2, 1, 2, 62, 3),
        header(2, 1, 3, 62, 1),
        header(2, 1, 3, 183, 3),
        header(2, 1, 1, 62, 3),
        header(2, 2, 3, 62, 3),
        header(1, 1, 3, 3, 3),
    ];
    let real = fs::read("/bin/true").expect("a program");
    all.push(real[..1024].to_vec());
    for line in [
        "#!/bin/sh\n",
        "#! /usr/bin/env -S sh -e\n",
        "#!/bin/sh\r\n",
        "#! \n",
        "#!/bin/sh\0\n",
    ] {
        all.push(line.as_bytes().to_vec());
    }
    all
}
