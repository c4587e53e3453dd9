//! The log service: takes the mirrored instream and answers for it
