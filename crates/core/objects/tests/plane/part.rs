//! A part of many scenarios, in the form of the simulator: `OUTLIVE_SIM_PART=3/8`. `make test` draws a part,
//! `make test-all` plays all.

/// Whether this run plays the scenario of this number.
pub(crate) fn is_drawn(number: u64) -> bool {
    let (part, parts) = part();
    number % parts == part
}

/// The run plays all scenarios: sums over all can be compared.
pub(crate) fn is_whole() -> bool {
    part().1 == 1
}

fn part() -> (u64, u64) {
    let Ok(text) = std::env::var("OUTLIVE_SIM_PART") else {
        return (0, 1);
    };
    let (part, parts) = text.split_once('/').expect("a part, like 3/8");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (part, parts) = (number(part), number(parts));
    assert!(part < parts, "OUTLIVE_SIM_PART={text}");
    (part, parts)
}
