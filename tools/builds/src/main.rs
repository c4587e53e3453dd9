//! `make builds`.

#![forbid(unsafe_code)]

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    builds::main(&builds::Options::parse())
}
