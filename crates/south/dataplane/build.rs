//! Compiles the BPF programs and generates the Rust side of `bpf/intf` from the result.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join("replay.bpf.o");
    let mut flags = vec!["-mcpu=v3", "-nostdinc", "-Wall", "-Werror"];
    let hold = SkeletonBuilder::new()
        .source("bpf/hold.bpf.c")
        .obj(out.join("hold.bpf.o"))
        .clang_args(&flags)
        .build();
    let balance = SkeletonBuilder::new()
        .source("bpf/balance.bpf.c")
        .obj(out.join("balance.bpf.o"))
        .clang_args(&flags)
        .build_and_generate(out.join("balance.skel.rs"));
    let balance_xdp = SkeletonBuilder::new()
        .source("bpf/balance_xdp.bpf.c")
        .obj(out.join("balance_xdp.bpf.o"))
        .clang_args(&flags)
        .build();
    if env::var_os("CARGO_FEATURE_NEXT_VERSION").is_some() {
        flags.push("-DOUTLIVE_NEXT_VERSION");
    }
    let replay = SkeletonBuilder::new()
        .source("bpf/replay.bpf.c")
        .obj(&object)
        .clang_args(&flags)
        .build_and_generate(out.join("replay.skel.rs"));
    let objects = SkeletonBuilder::new()
        .source("bpf/objects.bpf.c")
        .obj(out.join("objects.bpf.o"))
        .clang_args(&flags)
        .build_and_generate(out.join("objects.skel.rs"));
    if let Err(error) = hold.and(balance).and(balance_xdp).and(replay).and(objects) {
        eprintln!("{error:?}");
        eprintln!(
            "the BPF programs need clang 14 or later and libelf: apt-get install clang libelf-dev"
        );
        std::process::exit(1);
    }
    println!("cargo:rerun-if-changed=bpf");
}
