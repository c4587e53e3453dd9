//! The paper's figures in numbers. The values of the paper's curves are not in the text.

/// Median and mean improvement of five users on ten machines (section 6.1).
pub(super) const BASELINE: (f64, f64) = (1.72, 8.28);

/// Median improvements by the machines' speed, as many machines as are needed (section 6.2).
pub(super) fn by_speed(speed: f64) -> Option<f64> {
    [(1.0, 1.7), (8.0, 5.1), (16.0, 3.3)]
        .into_iter()
        .find(|(known, _)| (known - speed).abs() < f64::EPSILON)
        .map(|(_, improvement)| improvement)
}

/// Table 2: fast machines of ten.
pub(super) const FAST: [usize; 6] = [0, 2, 4, 6, 8, 10];

/// Table 2: the number of users, and the median improvements for each number of fast machines.
pub(super) const TABLE_2: [(usize, [f64; 6]); 6] = [
    (1, [1.72, 2.88, 2.81, 2.79, 2.76, 2.73]),
    (2, [1.71, 2.74, 2.70, 2.66, 2.65, 2.61]),
    (4, [1.68, 2.62, 2.69, 2.67, 2.66, 2.64]),
    (6, [1.70, 2.50, 2.65, 2.68, 2.67, 2.66]),
    (8, [1.71, 2.38, 2.62, 2.69, 2.71, 2.70]),
    (10, [1.69, 2.24, 2.52, 2.66, 2.70, 2.69]),
];

/// Aborted commands for each mandated command (table 1), and the largest total extra load (section 4.4).
pub(super) const ABORTED: f64 = 0.39;
pub(super) const EXTRA_LOAD: f64 = 1.44;

/// Kilobytes that an optimistic make of average size conceals (section 4.4).
pub(super) const CONCEALED_KB: f64 = 81.0;

/// Costs of a file on a SUN-3/50, milliseconds (section 3.4), by the figures' names in results.json.
pub(super) const COSTS: [(&str, &str, &str); 4] = [
    ("make.open_read", "first open to read", "18 ms"),
    ("make.open_read.again", "open to read, again", "10 ms"),
    ("make.open_write", "first open to write", "8 ms"),
    (
        "make.mandate",
        "mandate, for each file that was opened",
        "8 ms (read), 31 ms (written)",
    ),
];
