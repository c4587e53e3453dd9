//! Input in the determinants that the record lacks.

use super::*;

impl World {
    /// Mirrors a segment of the first client, with the read cursor `noted`.
    fn send_noted(&mut self, at: usize, noted: usize) {
        let connection = &self.host.connections[&FlowId(1)];
        let packet = connection.packet(at, 100, ChecksumMode::Full);
        let datagram = self.host.noted(connection, &packet, false, noted);
        self.batch(&[datagram]);
    }

    /// The bytes acknowledged to the first client.
    fn stable(&self) -> usize {
        self.host.connections[&FlowId(1)].stable
    }

    /// Start and end of the record.
    fn bounds(&self) -> (u32, u32) {
        let journal = self.sessions.get(INSTANCE).expect("attached").journal();
        let first = self.host.connections[&FlowId(1)].client_isn + 1;
        let places = [start(journal, FlowId(1)), journal.stable_seq(FlowId(1))];
        let [start, end] = places.map(|seq| {
            let seq = seq.expect("recorded");
            seq.distance_from(first).expect("after the SYN")
        });
        (start, end)
    }

    fn release(&mut self, to: u32) {
        let to = self.host.connections[&FlowId(1)].client_isn + 1 + to;
        let places = vec![(FlowId(1), to)];
        self.ask(&Request::Release { places });
    }
}

fn world() -> World {
    let mut world = World::new(1, ReplayMode::Connection);
    world.connect(5000);
    world.traffic();
    world.write_all();
    world.send_noted(0, 0);
    world.write_all();
    world
}

#[test]
fn a_record_begins_where_it_was_released_after_a_restart_too() {
    let mut world = world();
    let before = world.bounds().1;
    world.send_noted(4000, 4000);
    assert_eq!(world.bounds(), (4000, 4100));
    assert!(world.stable() < 4000, "it is not in the log yet");
    world.write_all();
    assert_eq!(world.stable(), 4100);
    world.die(true);
    assert_eq!(world.bounds(), (4000, 4100));
    world.release(4500);
    assert!(world.stable() < 4500);
    world.write_all();
    assert_eq!(world.stable(), 4500);
    world.die(true);
    assert_eq!(world.bounds(), (4500, 4500));
    assert!(before < 4000, "there was a hole");
}

#[test]
fn what_was_not_written_was_not_acknowledged() {
    let mut world = world();
    let before = world.bounds();
    world.send_noted(4000, 4000);
    world.die(true);
    // The storage may have kept the change or not.
    assert!([before, (4000, 4100)].contains(&world.bounds()));
    while !world.host.is_recorded() {
        world.note();
        world.traffic();
        world.write_all();
    }
    world.die(true);
}

#[test]
fn a_record_that_was_released_is_copied_from_where_it_begins() {
    let mut world = world();
    world.send_noted(4000, 4000);
    world.write_all();
    for _ in 0..20 {
        let busy = world.connect(3000);
        while !world.host.connections[&busy].is_recorded() {
            let datagrams = world.host.datagrams(700, 3000);
            // The first connection is silent.
            let datagrams = datagrams.into_iter().skip(1).collect::<Vec<_>>();
            world.batch(&datagrams);
            world.write_all();
        }
        world.close(busy);
        world.write_all();
    }
    let oldest = world.log.storage().list().expect("listed")[0];
    assert!(
        oldest > 0,
        "the segment where the record was released is gone"
    );
    assert_eq!(world.bounds(), (4000, 4100));
    world.die(true);
    assert_eq!(world.bounds(), (4000, 4100));
}
