//! The control stream of a member, spoken by the test: the server beside it is an ordinary web server.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use channel::{Channel, KeyRing, Received};
use e2e::EVENT_TIMEOUT;
use lab::Host;
use lease::{Speech, Terms, pool::MemberLease};
use protocol::control::{Decoder, Opening, Role, encode};
use protocol::pool::{
    BalancerMessage, Hello, MemberAddress, MemberMessage, MembershipState, Refused,
    STREAM_VERSIONS, Table,
};
use rustix::time::{ClockId, clock_gettime};

/// How long a read waits for the next message.
const READ_PATIENCE: Duration = Duration::from_millis(2);

/// What the member has messages_so_far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Messages {
    pub(crate) table: Option<Table>,
    pub(crate) refused: Vec<Refused>,
}

#[derive(Debug, Default)]
struct Shared {
    stops: AtomicBool,
    is_silent: AtomicBool,
    leaves: AtomicBool,
    messages_so_far: Mutex<Messages>,
}

/// A member that asks for leases until it is told to be silent.
pub(crate) struct Member {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("since the boot");
    Duration::new(
        seconds,
        u32::try_from(time.tv_nsec).expect("below a second"),
    )
}

impl Member {
    pub(crate) fn start(host: &Host, keys: &Path, balancer: SocketAddr, is_v6: bool) -> Self {
        let shared = Arc::new(Shared::default());
        let address = match is_v6 {
            true => host.address().ipv6().into(),
            false => host.address().ipv4().into(),
        };
        let session = Session {
            host: host.clone(),
            keys: KeyRing::load(keys).expect("keys"),
            balancer,
            shared: Arc::clone(&shared),
            hello: Hello {
                name: host.name().parse().expect("a name"),
                membership: rand::random(),
                state: MembershipState::New,
                address: MemberAddress::new(address).expect("an address"),
                claim_port: NonZeroU16::MAX,
                epoch: 0,
            },
            lease: MemberLease::new(Terms::of_pool()),
        };
        let thread = Some(thread::spawn(move || session.run()));
        Self { shared, thread }
    }

    /// The member asks no more; its stream stays open.
    pub(crate) fn fall_silent(&self) {
        self.shared.is_silent.store(true, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.shared.leaves.store(true, Ordering::Relaxed);
    }

    pub(crate) fn messages_so_far(&self) -> Messages {
        self.shared
            .messages_so_far
            .lock()
            .expect("no panic")
            .clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || thread::panicking(),
                "the member has panicked"
            );
        }
    }
}

struct Session {
    host: Host,
    keys: KeyRing,
    balancer: SocketAddr,
    shared: Arc<Shared>,
    hello: Hello,
    lease: MemberLease,
}

impl Session {
    fn stops(&self) -> bool {
        self.shared.stops.load(Ordering::Relaxed)
    }

    /// Connects again and again.
    fn run(mut self) {
        while !self.stops() {
            let (key, to) = (self.keys.first(), self.balancer);
            let connect = || Channel::connect(to, key, EVENT_TIMEOUT, READ_PATIENCE);
            match self.host.enter(connect).expect("the host is on") {
                Ok(channel) => self.serve(channel),
                Err(_) => thread::sleep(READ_PATIENCE),
            }
        }
    }

    /// Until the stream ends.
    fn serve(&mut self, mut channel: Channel<std::net::TcpStream>) {
        let mut messages = Decoder::<BalancerMessage>::at_opening(STREAM_VERSIONS);
        if self.hello.state != MembershipState::New {
            self.hello.state = match self.lease.speech().at(now()) {
                true => MembershipState::Speaks,
                false => MembershipState::Silent,
            };
        }
        self.lease.on_reconnect();
        if channel.say(&Opening::of(Role::Member).encode()).is_err() {
            return;
        }
        let mut greeted = false;
        while !self.stops() {
            match (channel.flush(), channel.receive()) {
                (Ok(()), Ok(Received::Plain(bytes))) => messages.feed(&bytes),
                (Ok(()), Ok(Received::Nothing)) => {}
                _ => return,
            }
            let Ok(agreed) = messages.open() else { return };
            let Some(agreed) = agreed else { continue };
            let mut say = |message: &MemberMessage| {
                let mut bytes = Vec::new();
                encode(message, agreed, &mut bytes).expect("a message");
                channel.say(&bytes).expect("the channel is open");
            };
            if !greeted {
                say(&MemberMessage::Hello(self.hello.clone()));
                greeted = true;
            }
            if self.shared.leaves.load(Ordering::Relaxed) && self.lease.speech() != Speech::Silent {
                self.lease.silence();
                say(&MemberMessage::Leave);
            }
            let asks = !self.shared.is_silent.load(Ordering::Relaxed);
            let is_due =
                asks && self.hello.state != MembershipState::New && self.lease.asks_at() <= now();
            if let Some((number, answered)) = is_due.then(|| self.lease.ask(now())).flatten() {
                say(&MemberMessage::LeaseRequest { number, answered });
            }
            while let Ok(Some(message)) = messages.pull() {
                self.take(message);
            }
        }
    }

    fn take(&mut self, message: BalancerMessage) {
        let mut messages_so_far = self.shared.messages_so_far.lock().expect("no panic");
        match message {
            BalancerMessage::Config(config) => {
                Terms::of_config(&config).expect("terms of a balancer");
                self.hello.state = MembershipState::Silent;
            }
            BalancerMessage::Lease { number, term_us } => {
                let term = Duration::from_micros(term_us.into());
                self.lease.on_grant(number, term);
            }
            BalancerMessage::Table(table) => {
                let newest = messages_so_far
                    .table
                    .as_ref()
                    .map_or(0, |table| table.epoch);
                assert!(table.epoch >= newest, "epochs grow");
                messages_so_far.table = Some(table);
            }
            BalancerMessage::Refused { reason } => messages_so_far.refused.push(reason),
            BalancerMessage::Granter { .. } => {}
        }
    }
}
