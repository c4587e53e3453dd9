//! Seeded simulator: network, endpoints, crashes
