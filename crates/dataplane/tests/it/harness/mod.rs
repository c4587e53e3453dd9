//! The kernel's programs and the model, driven with one vocabulary.

mod both;
mod kernel;
mod segments;

pub(crate) use both::{Both, Out, other_key};
pub(crate) use kernel::{Frame, Kernel, Leased, Pinned, settings};
pub(crate) use segments::*;

pub(crate) use ssw::Verdict::{self, Next, RedirectIngress};
pub(crate) const DROP: Verdict = Verdict::Drop;
