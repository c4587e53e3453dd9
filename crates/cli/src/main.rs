//! The `outlive` command.
fn main() {}
