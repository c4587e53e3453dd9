//! One protected service: wires supervision, data plane, logger and recovery together
