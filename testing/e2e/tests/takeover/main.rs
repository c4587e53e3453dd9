//! Another host goes on.

mod clock;
mod compared;
mod deaths;
mod hosts;
mod matrix;
mod moves;
mod phases;
mod silence;
mod stream;
mod two_names;
