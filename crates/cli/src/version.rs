//! `outlive version`: the program, and the formats by which programs and hosts understand each other.

use serde::Serialize;
use serve::JSON_VERSION;
use types::Format;

use crate::{
    arguments::Version,
    commands::{json, line},
    exit::Outcome,
};

/// All formats. The order is that of the table in `CONTRIBUTING.md`.
const FORMATS: [Format; 13] = [
    dataplane::FORMAT,
    dataplane::BALANCE_FORMAT,
    protocol::mirror::FORMAT,
    protocol::link::FORMAT,
    protocol::control::FORMAT,
    protocol::pool::FORMAT,
    protocol::bulk::FORMAT,
    dataplane::ENCAPSULATION_FORMAT,
    channel::FORMAT,
    wal::FORMAT,
    logger::LEASES_FORMAT,
    north_abi::layout::FORMAT,
    serve::FORMAT,
];

#[derive(Serialize)]
struct Listed {
    /// A single word for scripts.
    name: String,
    version: u32,
    oldest: u32,
}

#[derive(Serialize)]
struct Page {
    version: u32,
    program: &'static str,
    formats: Vec<Listed>,
}

pub(crate) fn version(options: &Version) -> Outcome {
    let program = env!("CARGO_PKG_VERSION");
    if options.json {
        let listed = FORMATS.map(|format| Listed {
            name: format.name.to_lowercase().replace([' ', '.'], "_"),
            version: format.version,
            oldest: format.oldest,
        });
        json(&Page {
            version: JSON_VERSION,
            program,
            formats: listed.into(),
        });
        return Outcome::Done;
    }
    line(&format!("outlive {program}"));
    line("");
    line(&format!("{:<34}{:<9}reads", "format", "writes"));
    for format in FORMATS {
        let read = format.reads();
        line(&format!("{:<34}{:<9}{read}", format.name, format.version));
    }
    Outcome::Done
}
