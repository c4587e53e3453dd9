//! Messages on the control stream.

use super::*;

#[test]
fn frames_come_by_the_control_stream() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    for flow in [1, 2] {
        link.connect(flow, 100);
        link.send(flow, 0, 50);
    }
    link.settle(NOW);
    let connection = &link.host.connections[&FlowId(1)];
    let mut said = Vec::new();
    let from = connection.server_isn + 1;
    wire::SegmentSpec {
        source: connection.key.server(),
        destination: connection.key.client(),
        seq: from,
        ack: SeqNumber(0),
        flags: wire::Flags::ACK,
        window: 1,
        options: &[],
        payload: b"answer",
    }
    .emit(&mut said, ChecksumMode::Full)
    .expect("a packet");
    let mut bytes = frame(FlowId(1), FrameKind::Outstream { from, asked: from }, &said);
    bytes.extend(frame(
        FlowId(2),
        FrameKind::Closed(CloseReason::Finished),
        &[],
    ));
    assert_eq!(link.ask(&Request::Frames { bytes }), []);
    let heads = Response::OutstreamHeads {
        flow: FlowId(1),
        ranges: vec![(from, b"answer".to_vec())],
        last: true,
    };
    let request = Request::OutstreamHeads { flow: FlowId(1) };
    assert_eq!(link.ask(&request), [heads]);
    let beginnings = Response::Beginnings {
        flow: FlowId(1),
        places: vec![],
        last: true,
    };
    let request = Request::Beginnings { flow: FlowId(1) };
    assert_eq!(link.ask(&request), [beginnings]);
    link.send(2, 50, 50);
    assert!(link.settle(NOW).is_empty());
    let unknown = Some(Response::Unknown { flow_low: 2 });
    assert_eq!(link.session().notice(), unknown);
    // Frames of the link are refused on the control stream: the opening would replace a record.
    let opened = FrameKind::Opened {
        client_isn: SeqNumber(0),
        server_isn: SeqNumber(0),
    };
    let bytes = frame(FlowId(1), opened, &[]);
    assert_eq!(link.ask(&Request::Frames { bytes }), []);
    assert_eq!(link.read(FlowId(1)).len(), 50);
    assert_eq!(link.session().statistics().malformed, 1);
    assert_eq!(link.ask(&Request::Barrier { token: 9 }), []);
    assert_eq!(link.out.drained(), Some((INSTANCE, 9)));
    assert_eq!(link.out.drained(), None);
}

#[test]
fn a_record_can_begin_in_the_middle() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.host.connect(1, 1000);
    link.send(1, 600, 400);
    assert!(link.settle(NOW).is_empty());
    let connection = &link.host.connections[&FlowId(1)];
    let resume = Resume {
        flow: connection.flow,
        key: connection.key,
        client_isn: connection.client_isn,
        server_isn: connection.server_isn,
        instream: connection.client_isn + 601,
        outstream: connection.server_isn + 1,
        handshake: protocol::link::Handshake::PLAIN,
    };
    assert_eq!(link.ask(&Request::Resume(resume)), []);
    link.send(1, 600, 400);
    link.settle(NOW);
    assert!(link.host.is_recorded());
    let read = Request::Read {
        flow: FlowId(1),
        from: resume.instream,
        max_len: 1000,
    };
    let [Response::Data { bytes, .. }] = &link.ask(&read)[..] else {
        panic!("recorded");
    };
    assert_eq!(*bytes, link.host.connections[&FlowId(1)].data[600..]);
}

#[test]
fn what_makes_no_sense_on_a_link_is_refused() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    for request in [Request::Shutdown, Request::Attach(attach(1, 1))] {
        let answer = link.ask(&request);
        assert!(
            matches!(answer[..], [Response::Error { .. }]),
            "{request:?}"
        );
    }
}

/// Without an answer the asker would wait.
#[test]
fn release_of_a_service_on_an_attached_stream_is_refused() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    let request = Request::GiveUp {
        service: "web".into(),
    };
    let answers = link.ask(&request);
    assert!(
        matches!(
            &answers[..],
            [Response::Error {
                code: protocol::control::ErrorCode::BadRequest,
                ..
            }]
        ),
        "{answers:?}"
    );
}
