//! The instructions of the programs: a change that is to move none moves no hash.
//!
//! A change of the programs writes the new hashes:
//! `INSTA_UPDATE=always cargo test -p dataplane --test it instructions`.

use std::{fmt::Write as _, fs, process::Command};

use object::{
    Endianness, Object as _, ObjectSection as _, SectionFlags, elf::SHF_EXECINSTR,
    read::elf::ElfFile64,
};

const OBJECT_FILE: &str = concat!(env!("OUT_DIR"), "/replay.bpf.o");
/// An instruction is 8 bytes long.
const INSTRUCTION_BYTES: usize = 8;
/// Other compilers make other instructions of the same source.
const COMPILER_VERSION: &str = "clang version 14.0.6";

#[test]
fn object_has_its_instructions() {
    let version = Command::new("clang").arg("--version").output();
    let version = version.expect("the programs were compiled with it").stdout;
    let version = String::from_utf8_lossy(&version);
    if !version.contains(COMPILER_VERSION) {
        println!("not tested: the hashes are of {COMPILER_VERSION}, and this is {version}");
        return;
    }
    let object = fs::read(OBJECT_FILE).expect("the object that was built");
    let object = ElfFile64::<Endianness>::parse(&*object).expect("an object");
    let mut text = String::new();
    for section in object.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else {
            continue;
        };
        if sh_flags & u64::from(SHF_EXECINSTR) != 0 {
            let (name, bytes) = (section.name(), section.data().expect("bytes"));
            let (count, hash) = (bytes.len() / INSTRUCTION_BYTES, crc32fast::hash(bytes));
            let _ = writeln!(text, "{hash:08x} {count:6} {}", name.expect("a name"));
        }
    }
    insta::assert_snapshot!(text);
}
