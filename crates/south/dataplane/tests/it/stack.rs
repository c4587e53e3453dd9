//! Stack size of the programs. Kernels count differently. A kernel that counts all stack (Linux
//! 6.1) refuses a program whose nested functions have more than 512 bytes together; newer kernels
//! do not report this.

use std::collections::{BTreeMap, BTreeSet};

use libbpf_rs::{ObjectBuilder, libbpf_sys::bpf_insn};

/// `MAX_BPF_STACK` of the kernel, and the rounding of each function's part
/// (`check_max_stack_depth`).
const MOST: usize = 512;
const STEP: usize = 32;

// Of the instruction set (RFC 9669).
const FRAME: u8 = 10;
const CALL: u8 = 0x85;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const LOAD_WIDE: u8 = 0x18;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNCTION: u8 = 4;
const LOAD: u8 = 1;
const STORE: u8 = 2;
const STORE_REGISTER: u8 = 3;

/// Number of instructions in which the compiler adds an offset to the address of a frame.
const WITHIN: usize = 8;

/// A function of a program: bytes of stack, and the called functions, by first instruction.
#[derive(Default)]
struct Function {
    own: usize,
    calls: BTreeSet<usize>,
}

/// Where the function begins that this instruction calls, or passes on to be called.
fn callee(at: usize, instruction: &bpf_insn) -> Option<usize> {
    let calls = instruction.code == CALL && instruction.src_reg() == PSEUDO_CALL;
    let passes = instruction.code == LOAD_WIDE && instruction.src_reg() == PSEUDO_FUNCTION;
    (calls || passes).then(|| at.wrapping_add_signed(instruction.imm as isize + 1))
}

/// Bytes below the end of the frame that this instruction reaches, or the address that the
/// instruction makes with a later instruction.
fn reach(instruction: &bpf_insn, following: &[bpf_insn]) -> usize {
    let base = match instruction.code & 7 {
        LOAD => instruction.src_reg(),
        STORE | STORE_REGISTER => instruction.dst_reg(),
        _ => u8::MAX,
    };
    let lowest = if base == FRAME {
        i32::from(instruction.off)
    } else if instruction.code == MOVE && instruction.src_reg() == FRAME {
        let register = instruction.dst_reg();
        let moves = |one: &&bpf_insn| one.code == ADD && one.dst_reg() == register;
        let found = following.iter().take(WITHIN).find(moves);
        found.expect("an address is made in one place").imm
    } else {
        0
    };
    usize::try_from(-lowest).unwrap_or(0)
}

fn functions(program: &[bpf_insn]) -> BTreeMap<usize, Function> {
    let all = program.iter().enumerate();
    let called = all.clone().filter_map(|(at, one)| callee(at, one));
    let starts = called.chain([0]);
    let mut functions: BTreeMap<usize, Function> =
        starts.map(|start| (start, Function::default())).collect();
    for (at, instruction) in all {
        let (_, function) = functions.range_mut(..=at).next_back().expect("from 0 on");
        let reaches = reach(instruction, &program[at + 1..]);
        function.own = function.own.max(reaches);
        function.calls.extend(callee(at, instruction));
    }
    functions
}

fn depth(functions: &BTreeMap<usize, Function>, start: usize) -> usize {
    let function = &functions[&start];
    let below = function
        .calls
        .iter()
        .map(|callee| depth(functions, *callee));
    function.own.max(1).next_multiple_of(STEP) + below.max().unwrap_or(0)
}

#[test]
fn no_program_takes_more_stack_than_any_kernel_gives() {
    let replay = most_stack(concat!(env!("OUT_DIR"), "/replay.bpf.o"));
    assert!(replay > MOST / 2, "{replay}: not all of it is counted");
    let balance = most_stack(concat!(env!("OUT_DIR"), "/balance.bpf.o"));
    assert!(balance > MOST / 4, "{balance}: not all of it is counted");
    let balance_xdp = most_stack(concat!(env!("OUT_DIR"), "/balance_xdp.bpf.o"));
    assert!(
        balance_xdp > MOST / 4,
        "{balance_xdp}: not all of it is counted"
    );
    let objects = most_stack(concat!(env!("OUT_DIR"), "/objects.bpf.o"));
    assert!(objects > MOST / 2, "{objects}: not all of it is counted");
}

/// The most stack that a program of this object takes, no more than any kernel gives.
fn most_stack(built: &str) -> usize {
    let mut open = ObjectBuilder::default()
        .open_file(built)
        .expect("what was built");
    for mut map in open.maps_mut() {
        if map.max_entries() == 0 {
            map.set_max_entries(4096).expect("any size");
        }
    }
    let loaded = open.load().expect("this kernel takes it");
    let mut most = 0;
    for program in loaded.progs() {
        let functions = functions(program.insns());
        let depth = depth(&functions, 0);
        let name = program.name().to_string_lossy();
        assert!(depth <= MOST, "{name} takes {depth} bytes of stack");
        most = most.max(depth);
    }
    most
}
