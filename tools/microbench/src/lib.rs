//! Only benchmarks are here: see `benches`.
