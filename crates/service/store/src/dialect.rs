//! The protocol of a store.

use std::fmt;

use crate::{Failure, Operation, Outcome};

/// The answer is not of the protocol: the connection cannot be used any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProtocolError(pub(crate) &'static str);

/// An operation is over, or waits for more replies.
pub(crate) type Progress = Option<Result<Outcome, Failure>>;

/// A protocol: replies come in the order of the requests.
pub(crate) trait Dialect: fmt::Debug {
    /// A reply.
    type Reply;
    /// The replies that an operation still waits for, and the outcome so far.
    type Expected: fmt::Debug;

    /// Appends the first requests of a connection. The outcome is [`Outcome::Probed`].
    fn greet(&mut self, out: &mut Vec<u8>) -> Self::Expected;

    /// Appends the requests of an operation. `number`: differs between the operations of a connection.
    ///
    /// # Errors
    /// The store has no such operation.
    fn request(
        &mut self,
        operation: &Operation,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Result<Self::Expected, Failure>;

    /// The first reply, and its length. `None`: the reply is not complete.
    ///
    /// # Errors
    /// The bytes are no reply.
    fn reply(input: &[u8]) -> Result<Option<(Self::Reply, usize)>, ProtocolError>;

    /// Takes the next reply of an operation.
    ///
    /// # Errors
    /// The reply does not belong to the operation.
    fn accept(
        &mut self,
        expected: &mut Self::Expected,
        reply: Self::Reply,
    ) -> Result<Progress, ProtocolError>;
}
