//! The record of a service's connections: instream, outstream heads, turns, bounds
