//! Compiles the BPF programs and generates the Rust side of `bpf/intf` from the result.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join("replay.bpf.o");
    let built = SkeletonBuilder::new()
        .source("bpf/replay.bpf.c")
        .obj(&object)
        .clang_args(["-mcpu=v3", "-nostdinc", "-Wall", "-Werror"])
        .build_and_generate(out.join("replay.skel.rs"));
    if let Err(error) = built {
        eprintln!("{error:?}");
        eprintln!(
            "the BPF programs need clang 14 or later and libelf: apt-get install clang libelf-dev"
        );
        std::process::exit(1);
    }
    println!("cargo:rerun-if-changed=bpf");
}
