//! Failures times moments of connections: a failure happens once, while clients of both families are in all moments.
//! Each client gets every byte, or a reset with a documented reason.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;

use e2e::Seed;
use e2e::pool::{Pool, pool_addresses};
use e2e::servers::signal_all;
use e2e::sockets::dial_from;
use lab::{Direction, Signal};

use crate::moments::{Client, Moment, add_medium_file, owner};

/// The member that fails first.
const FIRST_MEMBER: usize = 0;
/// Ports of connections that begin during the failure.
const FIRST_PORT: u16 = 23_000;
const CONNECTING_COUNT: u16 = 6;

/// Moments that a connection reaches without a fault of the network.
const OPEN: [Moment; 7] = [
    Moment::Connected,
    Moment::FirstBytes,
    Moment::Middle,
    Moment::Ended,
    Moment::Idle,
    Moment::LongHead,
    Moment::Asked,
];

/// A failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// All processes of a server are killed.
    Process,
    /// A host loses power.
    Host,
    /// The host that continues loses power, too.
    HostTwice,
    /// The balancer is killed, and starts again.
    Balancer,
    /// A member joins.
    Join,
}

impl Failure {
    fn pool(self, wave: &str) -> Pool {
        let members = match self {
            Self::HostTwice => 3,
            Self::Join => 1,
            Self::Process | Self::Host | Self::Balancer => 2,
        };
        let name = format!("{self:?}-{wave}").to_lowercase();
        let pool = Pool::of(&name, members);
        add_medium_file(&pool);
        pool
    }

    fn strike(self, pool: &mut Pool) {
        match self {
            Self::Process => signal_all(&pool.members[FIRST_MEMBER].server_pids(), Signal::KILL),
            Self::Host => pool.members[FIRST_MEMBER]
                .program
                .host
                .power_off()
                .expect("off"),
            Self::HostTwice => {
                pool.members[FIRST_MEMBER]
                    .program
                    .host
                    .power_off()
                    .expect("off");
                pool.await_members(2);
                pool.members[FIRST_MEMBER + 1]
                    .program
                    .host
                    .power_off()
                    .expect("off");
            }
            Self::Balancer => pool.balancer.restart(),
            Self::Join => pool.add_member(&[]),
        }
    }

    /// Whether connections of this member lose their server.
    fn hits(self, member: usize) -> bool {
        match self {
            Self::Process | Self::Host => member == FIRST_MEMBER,
            Self::HostTwice => member <= FIRST_MEMBER + 1,
            Self::Balancer | Self::Join => false,
        }
    }

    /// Part of the reason of a reset, if a reset is right.
    fn reset(self, client: &Client) -> Option<&'static str> {
        let is_hit = self.hits(client.member);
        (is_hit && client.moment == Moment::LongHead).then_some("not protected")
    }

    fn servers(pool: &Pool, signal: Signal) {
        for member in &pool.members {
            if member.program.host.is_on() {
                signal_all(&member.server_pids(), signal);
            }
        }
    }
}

/// For each moment and family a client of the victim, and a client of any member.
fn clients(pool: &Pool, moments: &[Moment]) -> Vec<Client> {
    let addresses = pool_addresses();
    let cells = moments
        .iter()
        .flat_map(|moment| addresses.map(|address| (*moment, address)));
    cells
        .flat_map(|(moment, address)| {
            [
                Client::at(pool, address, FIRST_MEMBER, moment),
                Client::connected(pool, address, moment),
            ]
        })
        .collect()
}

/// Each client gets everything, or the reset that the failure allows.
fn finish(pool: Pool, failure: Failure, clients: Vec<Client>) {
    let mut wrong = Vec::new();
    let mut resets = 0;
    for client in clients {
        let (moment, member, address) = (client.moment, client.member, client.address());
        let allowed = failure.reset(&client);
        match (client.finish(), allowed) {
            (Ok(()), _) => {}
            (Err(error), Some(reason)) if error.kind() == ErrorKind::ConnectionReset => {
                let is_known = is_refused(&pool, address, reason);
                resets += usize::from(is_known);
                // The host that told the client may have lost power before the event was written.
                assert!(
                    is_known || failure == Failure::HostTwice,
                    "{address}: {reason}"
                );
            }
            (Err(error), _) => {
                wrong.push(format!("{moment:?} of member {member}, {address}: {error}"))
            }
        }
    }
    let refused: Vec<_> = pool
        .members
        .iter()
        .flat_map(|member| member.program.events_of("refused"))
        .collect();
    assert!(wrong.is_empty(), "{failure:?}: {wrong:#?} {refused:#?}");
    assert_eq!(refused.len(), resets, "{failure:?}: {refused:#?}");
    pool.stop();
}

/// Whether a member tells that the client was reset, and why.
fn is_refused(pool: &Pool, client: SocketAddr, reason: &str) -> bool {
    let client = client.to_string();
    let refused = pool
        .members
        .iter()
        .flat_map(|member| member.program.events_of("refused"));
    let mut reasons = refused
        .filter(|event| event["client"] == client.as_str())
        .map(|event| event["reason"].to_string());
    reasons.any(|it| it.contains(reason))
}

/// The failure while all moments are reached.
fn open(failure: Failure) {
    let mut seed = Seed::choose("objects matrix");
    let mut pool = failure.pool("open");
    let mut clients = clients(&pool, &OPEN);
    for client in &mut clients {
        client.go(seed.between(1, 300_000));
    }
    Failure::servers(&pool, Signal::STOP);
    for client in clients.iter().filter(|it| it.moment == Moment::Asked) {
        client.ask();
        client.await_asked(&pool);
    }
    failure.strike(&mut pool);
    Failure::servers(&pool, Signal::CONT);
    finish(pool, failure, clients);
}

/// The failure while answers are lost: to a SYN, and to requests.
fn answers(failure: Failure) {
    let mut pool = failure.pool("answers");
    let mut clients = clients(&pool, &[Moment::AnswerLost, Moment::HalfClosed]);
    pool.scene
        .client
        .cut_one_way(Direction::ToHost)
        .expect("a cut");
    for client in &clients {
        client.ask();
        client.await_answer_sent(&pool);
    }
    let host = pool.scene.client.clone();
    let connected = thread::scope(|scope| {
        let ports = FIRST_PORT..FIRST_PORT + CONNECTING_COUNT;
        let connecting: Vec<_> = ports
            .map(|port| {
                let (host, address) = (&host, pool_addresses()[usize::from(port % 2)]);
                scope.spawn(move || dial_from(host, port, address).expect("a connection"))
            })
            .collect();
        for port in FIRST_PORT..FIRST_PORT + CONNECTING_COUNT {
            let ip = match pool_addresses()[usize::from(port % 2)] {
                SocketAddr::V4(_) => host.address().ipv4().into(),
                SocketAddr::V6(_) => host.address().ipv6().into(),
            };
            owner(&pool, SocketAddr::new(ip, port));
        }
        failure.strike(&mut pool);
        host.heal().expect("a whole link");
        let connected = connecting
            .into_iter()
            .map(|it| it.join().expect("no panic"));
        connected.collect::<Vec<_>>()
    });
    clients.extend(connected.into_iter().map(|it| Client::of(&pool, it)));
    finish(pool, failure, clients);
}

/// The failure while clients have everything, and no server knows.
fn acks(failure: Failure) {
    let mut pool = failure.pool("acks");
    let clients = clients(&pool, &[Moment::AckLost]);
    Failure::servers(&pool, Signal::STOP);
    for client in &clients {
        client.ask();
        client.await_asked(&pool);
    }
    let host = pool.scene.client.clone();
    host.cut_one_way(Direction::FromHost).expect("a cut");
    Failure::servers(&pool, Signal::CONT);
    for client in &clients {
        client.await_answer();
    }
    failure.strike(&mut pool);
    host.heal().expect("a whole link");
    finish(pool, failure, clients);
}

macro_rules! rows {
    ($($name:ident: $failure:ident,)*) => {
        $(mod $name {
            use super::Failure;

            #[test]
            fn open_connections_survive() {
                super::open(Failure::$failure);
            }

            #[test]
            fn lost_answers_are_repeated() {
                super::answers(Failure::$failure);
            }

            #[test]
            fn lost_acknowledgements_are_repeated() {
                super::acks(Failure::$failure);
            }
        })*
    };
}

rows! {
    process: Process,
    host: Host,
    host_after_host: HostTwice,
    balancer: Balancer,
    join: Join,
}
