//! Another host goes on.

mod deaths;
mod hosts;
mod matrix;
mod moves;
mod phases;
mod stream;
