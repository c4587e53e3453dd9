//! Pure model of the south side wrap: what lies between the server's TCP and its clients.

#![forbid(unsafe_code)]

mod fabricate;
mod flow;
mod tolerance;

pub use fabricate::{fabricated_syn, replayed_segment, resets_to_client, window_update};
pub use flow::{ClientHalf, Flow, Mode, ServerHalf, SpliceHalf, Unprotected, VerifyHalf};
pub use tolerance::{DEFAULT_FIELDS, EXPECT_CHUNK, Expect, expectations};
