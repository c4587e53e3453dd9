//! The south side wrap in the kernel: BPF programs, loader, maps, injection
