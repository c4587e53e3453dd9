//! Whatever is said is read as it was written, in pieces too, and nothing else is read.

use super::*;
use crate::{Digest, DigestSeed, Versions};

fn flow() -> impl Strategy<Value = FlowId> {
    any::<u64>().prop_map(FlowId)
}

fn seq() -> impl Strategy<Value = SeqNumber> {
    any::<u32>().prop_map(SeqNumber)
}

fn reason() -> impl Strategy<Value = UnprotectedReason> {
    prop::sample::select(UnprotectedReason::ALL.to_vec())
}

pub(super) fn text() -> impl Strategy<Value = String> {
    any::<Vec<char>>().prop_map(String::from_iter)
}

fn edition() -> impl Strategy<Value = Option<Edition>> {
    let some = any::<(u64, u64)>().prop_map(|(record, history)| Edition { record, history });
    prop::option::of(some)
}

fn kept_image() -> impl Strategy<Value = Option<KeptImage>> {
    let some = any::<(u64, u64, u64, u32)>();
    let some = some.prop_map(|(number, length, base, processes)| KeptImage {
        number,
        length,
        base,
        processes,
    });
    prop::option::of(some)
}

fn request_of_an_image() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<([u64; 4], Vec<u8>)>().prop_map(|([record, image, length, from], bytes)| {
            Request::TellImage {
                record,
                image,
                length,
                from,
                bytes,
            }
        }),
        any::<([u64; 3], u32)>().prop_map(|([record, image, base], processes)| {
            Request::CommitImage {
                record,
                image,
                base,
                processes,
            }
        }),
        Just(Request::DropImage),
        text().prop_map(|service| Request::GiveUp { service }),
        claim::claim().prop_map(Request::Claim),
        any::<(u64, u64, u32)>().prop_map(|(image, from, max_len)| Request::ReadImage {
            image,
            from,
            max_len
        }),
        text().prop_map(|service| Request::StoredImage { service }),
        (text(), any::<(u64, u64, u32)>()).prop_map(|(service, (image, from, max_len))| {
            Request::ReadStoredImage {
                service,
                image,
                from,
                max_len,
            }
        }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (text(), versions()).prop_map(|(service, frames)| Request::Hello { service, frames }),
        Just(Request::Summaries),
        (flow(), seq(), any::<u32>()).prop_map(|(flow, from, max_len)| Request::Read {
            flow,
            from,
            max_len
        }),
        flow().prop_map(|flow| Request::OutstreamHeads { flow }),
        flow().prop_map(|flow| Request::Beginnings { flow }),
        flow().prop_map(|flow| Request::Digests { flow }),
        any::<[u64; 2]>().prop_map(|seed| Request::DigestSeed(DigestSeed(seed))),
        flow().prop_map(|flow| Request::Unprotect { flow }),
        Just(Request::Statistics),
        Just(Request::Shutdown),
        any::<bool>().prop_map(|hold| Request::HoldTurns { hold }),
        request_of_a_link(),
        request_of_an_image(),
    ]
}

fn versions() -> impl Strategy<Value = Versions> {
    any::<[u8; 2]>().prop_map(|[a, b]| Versions::new(a.min(b).max(1), a.max(b).max(1)).unwrap())
}

fn request_of_a_link() -> impl Strategy<Value = Request> {
    let replay = prop::sample::select(vec![ReplayMode::Connection, ReplayMode::Request]);
    let sizes = any::<(u64, u64, u64, u32, u16, bool)>();
    let attach = (sizes, replay, text()).prop_map(|(sizes, replay, service)| {
        let (instance, per_connection, total, connections, udp_port, inherit) = sizes;
        Request::Attach(Attach {
            instance,
            replay,
            per_connection,
            total,
            connections,
            udp_port,
            inherit,
            service,
            ..Attach::PLAIN
        })
    });
    let attach = (attach, versions(), versions());
    let attach = attach.prop_map(|(request, link, frames)| match request {
        Request::Attach(attach) => Request::Attach(Attach {
            link,
            frames,
            ..attach
        }),
        other => other,
    });
    prop_oneof![
        attach,
        any_resume().prop_map(Request::Resume),
        Just(Request::Connections),
        lease::request().prop_map(Request::Lease),
        Just(Request::Rekey),
        any::<Vec<u8>>().prop_map(|bytes| Request::Frames { bytes }),
        any::<u64>().prop_map(|token| Request::Barrier { token }),
        any::<u64>().prop_map(|session| Request::InUse { session }),
        any::<(Option<u64>, Vec<(u32, u64)>)>()
            .prop_map(|(record, said)| Request::Determinants { record, said }),
        any::<(u64, u32, u64, Vec<u8>)>().prop_map(|(record, process, from, bytes)| {
            Request::TellDeterminants {
                record,
                process,
                from,
                bytes,
            }
        }),
        (text(), edition(), any::<Vec<(u32, u64)>>()).prop_map(|(service, edition, streams)| {
            Request::Follow {
                service,
                edition,
                streams,
            }
        }),
        prop::collection::vec((flow(), seq()), 0..4).prop_map(|places| Request::Release { places }),
        any::<(u32, u64)>()
            .prop_map(|(process, length)| Request::CutDeterminants { process, length }),
        any::<(u32, u64, u32)>().prop_map(|(process, from, max_len)| {
            Request::ReadDeterminants {
                process,
                from,
                max_len,
            }
        }),
    ]
}

fn handshake() -> impl Strategy<Value = Handshake> {
    let options = prop::collection::vec(any::<u8>(), 0..=40);
    let agreed = any::<[bool; 3]>();
    (
        any::<(u32, u16, u8)>(),
        options,
        [0..=14u8, 0..=14u8],
        agreed,
    )
        .prop_map(
            |((tsval, syn_window, syn_flags), options, [window_scale, client_scale], agreed)| {
                let [timestamps, sack, whole_segments] = agreed;
                Handshake {
                    tsval,
                    syn_window,
                    syn_flags,
                    syn_options: SynOptions::new(&options).unwrap(),
                    window_scale,
                    client_scale,
                    timestamps,
                    sack,
                    whole_segments,
                }
            },
        )
}

fn any_resume() -> impl Strategy<Value = Resume> {
    let address = || any::<([u8; 16], u16)>().prop_map(std::net::SocketAddr::from);
    let key = (address(), address()).prop_map(|(client, server)| FlowKey::new(client, server));
    (flow(), key, any::<[u32; 4]>(), handshake()).prop_map(|(flow, key, numbers, handshake)| {
        let [client_isn, server_isn, instream, outstream] = numbers.map(SeqNumber);
        Resume {
            flow,
            key,
            client_isn,
            server_isn,
            instream,
            outstream,
            handshake,
        }
    })
}

fn recorded() -> impl Strategy<Value = Recorded> {
    let numbers = any::<(u64, u32, u32)>();
    (any_resume(), numbers).prop_map(|(beginning, (acknowledged, tsval, tsecr))| Recorded {
        beginning,
        acknowledged,
        tsval,
        tsecr,
    })
}

fn link_keys() -> impl Strategy<Value = LinkKeys> {
    any::<(bool, [u8; 16], [u8; 16])>().prop_map(|(slot, up, down)| LinkKeys {
        version: crate::link::VERSION,
        slot: if slot { KeySlot::One } else { KeySlot::Zero },
        up: LinkKey(up),
        down: LinkKey(down),
    })
}

fn summary() -> impl Strategy<Value = RecordSummary> {
    let numbers = any::<[u32; 9]>().prop_map(|numbers| numbers.map(SeqNumber));
    let optional = || prop::option::of(seq());
    (
        flow(),
        numbers,
        prop::option::of((seq(), seq()).prop_map(|(seq, heard)| ClientFin { seq, heard })),
        optional(),
        prop::option::of(reason()),
    )
        .prop_map(|(flow, numbers, client_fin, outstream_end, unprotected)| {
            let [
                client_isn,
                server_isn,
                start,
                stable_seq,
                turn_instream,
                turn_outstream,
                oldest,
                next,
                doubt,
            ] = numbers;
            RecordSummary {
                start,
                stable_seq,
                client_fin,
                turn_instream,
                turn_outstream,
                answers: [oldest, next],
                outstream_end,
                doubt,
                unprotected,
                ..RecordSummary::fresh(flow, client_isn, server_isn)
            }
        })
}

fn statistics() -> impl Strategy<Value = Statistics> {
    any::<[u64; 8]>().prop_map(|[a, b, c, d, held, e, f, g]| Statistics {
        flows: a,
        unprotected_flows: b,
        instream_bytes: c,
        outstream_bytes: d,
        held,
        frames: e,
        malformed_frames: f,
        unknown_flow_frames: g,
    })
}

fn response() -> impl Strategy<Value = Response> {
    let digest = any::<[u8; Digest::LEN]>().prop_map(Digest::from_bytes);
    let digests = prop::collection::vec(digest, 0..4);
    let code = prop::sample::select(vec![
        ErrorCode::UnknownFlow,
        ErrorCode::Unprotected,
        ErrorCode::NotKept,
        ErrorCode::BadRequest,
        ErrorCode::Internal,
        ErrorCode::StillServed,
        ErrorCode::StillWritten,
        ErrorCode::Taken,
        ErrorCode::NoCommonVersion,
    ]);
    let connections = prop::collection::vec(recorded(), 0..4);
    let summaries = prop::collection::vec(summary(), 0..4);
    let ranges = prop::collection::vec((seq(), any::<Vec<u8>>()), 0..4);
    let places = prop::collection::vec((seq(), seq()), 0..4);
    prop_oneof![
        any::<(u32, u8)>().prop_map(|(pid, frames)| Response::Hello { pid, frames }),
        (connections, any::<bool>())
            .prop_map(|(connections, last)| Response::Connections { connections, last }),
        any::<u64>().prop_map(|token| Response::Drained { token }),
        (summaries, any::<bool>())
            .prop_map(|(summaries, last)| Response::Summaries { summaries, last }),
        (flow(), seq(), any::<Vec<u8>>()).prop_map(|(flow, from, bytes)| Response::Data {
            flow,
            from,
            bytes
        }),
        (flow(), ranges, any::<bool>()).prop_map(|(flow, ranges, last)| Response::OutstreamHeads {
            flow,
            ranges,
            last
        }),
        (flow(), places, any::<bool>()).prop_map(|(flow, places, last)| Response::Beginnings {
            flow,
            places,
            last
        }),
        any::<[u64; 2]>().prop_map(|seed| Response::DigestSeed(DigestSeed(seed))),
        (flow(), digests, any::<bool>()).prop_map(|(flow, digests, last)| Response::Digests {
            flow,
            digests,
            last
        }),
        (flow(), reason()).prop_map(|(flow, reason)| Response::Unprotected { flow, reason }),
        statistics().prop_map(Response::Statistics),
        (code, text()).prop_map(|(code, message)| Response::Error { code, message }),
        (any::<(u32, bool, u64, u8)>(), link_keys()).prop_map(
            |((pid, kept, session, frames), keys)| Response::Attached {
                pid,
                kept,
                session,
                keys,
                frames,
            }
        ),
        link_keys().prop_map(Response::Keys),
        any::<u32>().prop_map(|flow_low| Response::Unknown { flow_low }),
        lease::answer().prop_map(Response::Lease),
        (edition(), kept_image(), any::<(bool, Vec<(u32, u64)>)>()).prop_map(
            |(edition, image, (is_whole, streams))| Response::Determinants {
                edition,
                is_whole,
                image,
                streams,
            }
        ),
        edition().prop_map(|edition| Response::Followed { edition }),
        kept_image().prop_map(|image| Response::StoredImage { image }),
        any::<(u32, u64, Vec<u8>)>().prop_map(|(process, from, bytes)| Response::Grown {
            process,
            from,
            bytes
        }),
        any::<Vec<u8>>().prop_map(|bytes| Response::DeterminantBytes { bytes }),
        of_an_image(),
    ]
}

fn of_an_image() -> impl Strategy<Value = Response> {
    prop_oneof![
        any::<[u64; 3]>().prop_map(|[record, image, there]| Response::ImageTaken {
            record,
            image,
            there
        }),
        any::<[u64; 2]>().prop_map(|[record, image]| Response::ImageKept { record, image }),
        (any::<[u64; 2]>(), text()).prop_map(|([record, image], why)| Response::ImageRefused {
            record,
            image,
            why
        }),
        any::<Vec<u8>>().prop_map(|bytes| Response::ImageBytes { bytes }),
        any::<u32>().prop_map(|epoch| Response::GivenUp { epoch }),
        text().prop_map(|beside| Response::Claimed { beside }),
        (text(), text(), any::<u32>()).prop_map(|(serves, stands_by, determinants)| {
            Response::Hosts {
                serves,
                stands_by,
                determinants,
            }
        }),
    ]
}

/// A message cut at each length is not there yet, and not an error.
fn cut_anywhere<M: Message + PartialEq + Clone + core::fmt::Debug>(message: &M) {
    let bytes = bytes_of(message);
    for len in 0..bytes.len() {
        let mut decoder = Decoder::<M>::new(Agreed::OWN);
        decoder.feed(&bytes[..len]);
        assert_eq!(decoder.pull(), Ok(None));
        assert_eq!(decoder.is_at_boundary(), len == 0);
        decoder.feed(&bytes[len..]);
        assert_eq!(decoder.pull().as_ref(), Ok(&Some(message).cloned()));
        assert!(decoder.is_at_boundary());
    }
    assert_eq!(pull::<M>(&bytes).unwrap().as_ref(), Some(message));
}

/// A message cut at each length, with a length field that says so, is refused by a reader of the same version.
fn message_cut_anywhere<M: Message>(message: &M) {
    let bytes = bytes_of(message);
    for len in 4..bytes.len() {
        let mut cut = bytes[..len].to_vec();
        cut[..4].copy_from_slice(&u32::try_from(len - 4).unwrap().to_le_bytes());
        let error = pull::<M>(&cut).err();
        assert!(
            matches!(error, Some(ControlError::Malformed(_))),
            "{error:?}"
        );
        properties::control_stream(&cut);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_request_is_read_as_it_was_written(message in request()) {
        cut_anywhere(&message);
        message_cut_anywhere(&message);
    }

    #[test]
    fn any_response_is_read_as_it_was_written(message in response()) {
        cut_anywhere(&message);
        message_cut_anywhere(&message);
    }

    /// The reader of `postcard` itself reads the same, but for its leniency.
    #[test]
    fn any_message_is_framed_postcard(message in request()) {
        let bytes = bytes_of(&message);
        let whole = postcard::to_allocvec(&message).unwrap();
        prop_assert_eq!(&bytes[4..], whole);
    }

    #[test]
    fn any_stream_is_the_same_in_pieces(
        messages in prop::collection::vec(response(), 0..6),
        cuts: Vec<prop::sample::Index>,
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            encode(message, Agreed::OWN, &mut stream).unwrap();
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut decoder = Decoder::<Response>::new(Agreed::OWN);
        let mut read = Vec::new();
        for piece in cuts.windows(2) {
            decoder.feed(&stream[piece[0]..piece[1]]);
            while let Some(message) = decoder.pull().unwrap() {
                read.push(message);
            }
        }
        prop_assert!(decoder.is_at_boundary());
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        properties::control_stream(&bytes);
    }

    #[test]
    fn any_damaged_stream(
        requests in prop::collection::vec(request(), 0..3),
        responses in prop::collection::vec(response(), 0..3),
        size: u8,
        damage: Vec<(prop::sample::Index, u8)>,
        is_opened: bool,
    ) {
        let mut stream = vec![size];
        if is_opened {
            stream.extend(Opening::of(Role::Asks).encode());
        }
        requests.iter().for_each(|message| encode(message, Agreed::OWN, &mut stream).unwrap());
        responses.iter().for_each(|message| encode(message, Agreed::OWN, &mut stream).unwrap());
        properties::control_stream(&stream);
        for (at, value) in damage.into_iter().take(2) {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        properties::control_stream(&stream);
    }
}
