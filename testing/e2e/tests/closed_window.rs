//! A real client during an outage (FT-TCP IV.E.1): the server's host is dead, and the logger sends zero-window ACKs
//! from the record alone (`south_model::closed_window_ack`), and later a window update.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use e2e::EVENT_TIMEOUT;
use e2e::arrange::{run, wait_until};
use e2e::clients::{read_exactly, write};
use e2e::forge::Forger;
use e2e::servers::SERVER_PORT;
use lab::pcap::Packet;
use lab::{Capture, Host, Lab};
use protocol::control::{RecordSummary, Recorded, Resume};
use protocol::link::{Handshake, SynOptions};
use south_model::{closed_window_ack, restored_flow, window_update_ack};
use wire::{Flags, FlowId, FlowKey, IpPacket, Segment, SeqNumber, Timestamps};

/// Receive window of the next server, bytes.
const WINDOW_BYTES: u32 = 60_000;

const LATER_DATA: &[u8] = b"later";

/// A connection whose server is gone.
struct Orphaned {
    stream: TcpStream,
    holder: Forger,
    recorded: Recorded,
    summary: RecordSummary,
    /// When the record ends.
    since: Instant,
    client: Host,
    _lab: Lab,
}

/// The TCP segments of a capture, from the service or from the client.
fn segments(packets: &[Packet], from_service: bool) -> impl Iterator<Item = Segment<'_>> {
    packets.iter().filter_map(move |packet| {
        let ip = IpPacket::parse(packet.frame.get(14..)?).ok()?;
        let segment = Segment::of(&ip).ok()?;
        ((segment.source_port() == SERVER_PORT) == from_service).then_some(segment)
    })
}

fn times(segment: &Segment<'_>) -> Timestamps {
    segment.timestamps().expect("timestamps were agreed on")
}

/// The record that a logger has of the connection in this capture.
fn record(packets: &[Packet], key: FlowKey) -> (Recorded, RecordSummary) {
    let syn = segments(packets, false).next().expect("a SYN");
    let syn_ack = segments(packets, true).next().expect("a SYN-ACK");
    let last = segments(packets, false).last().expect("an ACK");
    assert!(syn.flags().contains(Flags::SYN) && syn_ack.flags().contains(Flags::SYN));
    let agreed = |segment: &Segment<'_>| wire::SynOptions::parse(segment.option_bytes());
    let scale = |segment: &Segment<'_>| agreed(segment).window_scale.unwrap_or(0);
    let (client_isn, server_isn) = (syn.seq(), syn_ack.seq());
    let handshake = Handshake {
        tsval: times(&syn_ack).value,
        syn_window: syn.window(),
        syn_flags: syn.flags().bits(),
        syn_options: SynOptions::new(syn.option_bytes()).expect("they were in a header"),
        window_scale: scale(&syn_ack),
        client_scale: scale(&syn),
        timestamps: true,
        sack: agreed(&syn_ack).sack_permitted,
        whole_segments: false,
    };
    let beginning = Resume {
        flow: FlowId(1),
        key,
        client_isn,
        server_isn,
        instream: client_isn + 1,
        outstream: server_isn + 1,
        handshake,
    };
    let heard = last.ack().distance_from(server_isn + 1).expect("in order");
    let recorded = Recorded {
        beginning,
        acknowledged: heard.into(),
        tsval: times(&last).value,
        tsecr: times(&last).echo,
    };
    let summary = RecordSummary {
        start: beginning.instream,
        stable_seq: last.end_seq(),
        client_fin: None,
        turn_instream: beginning.instream,
        turn_outstream: beginning.outstream,
        answers: [beginning.outstream; 2],
        outstream_end: None,
        doubt: last.end_seq(),
        ..RecordSummary::fresh(beginning.flow, client_isn, server_isn)
    };
    (recorded, summary)
}

impl Orphaned {
    /// A question was answered, and all is acknowledged.
    fn new(v6: bool) -> Self {
        let lab = Lab::new("closed-window").expect("a lab");
        let [server, client, holder] =
            ["server", "client", "holder"].map(|name| lab.add_host(name).expect("a host"));
        // Who is not answered gives up soon: after two retransmissions and a second and a half.
        client.sysctl("net.ipv4.tcp_retries2", "2").expect("set");
        let address: SocketAddr = match v6 {
            true => (server.address().ipv6(), SERVER_PORT).into(),
            false => (server.address().ipv4(), SERVER_PORT).into(),
        };
        let capture = client.capture("tcp").expect("a capture");
        let listener = server.enter(|| TcpListener::bind(address));
        let listener = listener.expect("it is on").expect("a listener");
        let connect = || TcpStream::connect_timeout(&address, EVENT_TIMEOUT);
        let stream = client.enter(connect).expect("it is on").expect("connected");
        let (accepted, _) = listener.accept().expect("a connection");
        for (from, to, what) in [
            (&stream, &accepted, b"what?"),
            (&accepted, &stream, b"that."),
        ] {
            write(from, what);
            assert_eq!(read_exactly(to, what.len()), what);
        }
        wait_until("all is acknowledged", || {
            run(&client, "ss -tnH").split_whitespace().nth(2) == Some("0")
        });
        let since = Instant::now();
        let packets = captured(capture);
        let key = FlowKey::new(stream.local_addr().expect("an address"), address);
        let (recorded, summary) = record(&packets, key);

        let (ip, mac) = (address.ip(), holder.mac("eth0").expect("it has eth0"));
        server.power_off().expect("power off");
        let neighbour = format!("ip neighbour replace {ip} lladdr {mac} dev eth0 nud permanent");
        run(&client, &neighbour);
        Self {
            stream,
            holder: Forger::on(&holder),
            recorded,
            summary,
            since,
            client,
            _lab: lab,
        }
    }

    /// Sends the client a zero window, and returns when the client has received the segment.
    fn close_window(&self) {
        let before = self.counter("segs_in:");
        let ack = closed_window_ack(&self.recorded, &self.summary, self.since.elapsed());
        self.holder.send(&ack.expect("a packet"));
        wait_until("it is told", || self.counter("segs_in:") > before);
    }

    /// Opens the client's window, as the next server does.
    fn open_window(&self) {
        let mut flow = restored_flow(&self.recorded, &self.summary, 0);
        let elapsed = u32::try_from(self.since.elapsed().as_millis()).expect("seconds");
        flow.server.tsval = flow.server.tsval.wrapping_add(elapsed);
        flow.splice.rcv_wnd_edge = flow.server.ack + WINDOW_BYTES;
        let word = window_update_ack(self.recorded.beginning.key, &flow);
        self.holder.send(&word.expect("a packet"));
    }

    fn capture(&self) -> Capture {
        self.client.capture("tcp").expect("a capture")
    }

    /// The state of the connection in the client's kernel.
    fn socket(&self) -> String {
        run(&self.client, "ss -tinoH")
    }

    /// The number of window probes, from the persist timer.
    fn questions(&self) -> u32 {
        let socket = self.socket();
        let timer = socket.split_once("timer:(persist,").map(|(_, timer)| timer);
        let tries = timer.and_then(|timer| timer.split([',', ')']).nth(1));
        tries.map_or(0, |tries| tries.parse().expect("a number"))
    }

    /// A number of the socket; of a pair the last number.
    fn counter(&self, name: &str) -> u32 {
        let socket = self.socket();
        let mut words = socket.split_whitespace();
        let value = words.find_map(|word| word.strip_prefix(name));
        let last = value.and_then(|value| value.rsplit('/').next());
        last.map_or(0, |number| number.parse().expect("a number"))
    }

    /// The number of retransmitted segments.
    fn retransmissions(&self) -> u32 {
        self.counter("retrans:")
    }

    fn is_open(&self) -> bool {
        self.socket().starts_with("ESTAB")
    }

    /// The next byte that the server expects.
    fn next(&self) -> SeqNumber {
        self.summary.stable_seq
    }
}

fn captured(capture: Capture) -> Vec<Packet> {
    let captured = capture.finish().expect("a capture");
    assert_eq!(captured.missed, Some(0));
    captured.packets
}

/// Data written during a zero window waits; the client sends window probes.
#[test]
fn zero_window_client_probes_and_waits() {
    for v6 in [false, true] {
        let orphaned = Orphaned::new(v6);
        let capture = orphaned.capture();
        orphaned.close_window();
        write(&orphaned.stream, LATER_DATA);
        wait_until("it asks", || orphaned.questions() >= 2);
        let closed = captured(capture);
        let ours = times(&segments(&closed, true).next().expect("ours")).value;
        let asked: Vec<Segment<'_>> = segments(&closed, false).collect();
        assert!(asked.len() >= 2, "{asked:?}");
        for question in asked {
            assert!(question.payload().is_empty(), "{question:?}");
            assert_eq!(question.seq() + 1, orphaned.next());
            assert_eq!(times(&question).echo, ours, "ours was the newest");
        }

        let capture = orphaned.capture();
        orphaned.open_window();
        wait_until("it goes on", || {
            !orphaned.socket().contains("timer:(persist")
        });
        let open = captured(capture);
        let sent = segments(&open, false).find(|segment| !segment.payload().is_empty());
        let sent = sent.expect("what was written");
        assert_eq!((sent.seq(), sent.payload()), (orphaned.next(), LATER_DATA));
    }
}

/// Data in flight to the dead host is retransmitted as long as zero-window ACKs arrive.
#[test]
fn client_with_unacked_data_does_not_time_out() {
    for v6 in [false, true] {
        let silence = Orphaned::new(v6);
        write(&silence.stream, LATER_DATA);
        let orphaned = Orphaned::new(v6);
        write(&orphaned.stream, LATER_DATA);
        orphaned.close_window();
        wait_until("who hears nothing gives up", || !silence.is_open());
        // More often than the client without any answer could before the timeout.
        wait_until("it insists", || orphaned.retransmissions() >= 5);
        assert!(orphaned.is_open(), "{}", orphaned.socket());
        let capture = orphaned.capture();
        let before = orphaned.retransmissions();
        orphaned.open_window();
        wait_until("it sends again", || orphaned.retransmissions() > before);
        let open = captured(capture);
        let sent = segments(&open, false).find(|segment| !segment.payload().is_empty());
        let sent = sent.expect("what was written");
        assert_eq!((sent.seq(), sent.payload()), (orphaned.next(), LATER_DATA));
    }
}

/// The record is behind the client: the client's ACK shows the client's position.
#[test]
fn client_beyond_record_responds() {
    for v6 in [false, true] {
        let mut orphaned = Orphaned::new(v6);
        let (had, known) = (orphaned.recorded.acknowledged, 2);
        orphaned.recorded.acknowledged = known;
        let capture = orphaned.capture();
        orphaned.close_window();
        let packets = captured(capture);
        let answer = segments(&packets, false).next().expect("an answer");
        assert!(answer.payload().is_empty(), "{answer:?}");
        assert_eq!(answer.seq(), orphaned.next());
        let beginning = orphaned.recorded.beginning.outstream;
        let had = u32::try_from(had).expect("a few bytes");
        assert_eq!(answer.ack(), beginning + had);
    }
}
