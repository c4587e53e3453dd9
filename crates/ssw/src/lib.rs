//! Pure model of the south side wrap: what the BPF programs must do
