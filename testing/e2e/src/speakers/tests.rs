use super::*;

const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 10]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 30]);

fn addresses() -> [IpAddr; 2] {
    ["10.0.0.110".parse().unwrap(), "fd00::110".parse().unwrap()]
}

fn frame(from: Mac, kind: [u8; 2], payload: Vec<u8>) -> Vec<u8> {
    let destination = [0xff; 6];
    [&destination[..], &from.0, &kind, &payload].concat()
}

fn ipv4_from(from: Mac, source: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[12..16].copy_from_slice(&source);
    frame(from, [0x08, 0x00], packet)
}

fn arp_of(from: Mac, sender: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0; 28];
    packet[14..18].copy_from_slice(&sender);
    frame(from, [0x08, 0x06], packet)
}

fn advertisement(from: Mac, source: &str, target: &str) -> Vec<u8> {
    let mut packet = vec![0; 72];
    packet[6] = ICMPV6_PROTOCOL;
    packet[8..24].copy_from_slice(&source.parse::<Ipv6Addr>().unwrap().octets());
    packet[40] = NEIGHBOUR_ADVERTISEMENT;
    packet[48..64].copy_from_slice(&target.parse::<Ipv6Addr>().unwrap().octets());
    frame(from, [0x86, 0xdd], packet)
}

/// A log with a frame a second.
fn speaker_log(frames: &[Vec<u8>]) -> SpeakerLog {
    let times = (0..).map(Duration::from_secs);
    SpeakerLog::of(times.zip(frames.iter().map(Vec::as_slice)), &addresses())
}

const SERVICE_IPV4: [u8; 4] = [10, 0, 0, 110];

#[test]
fn sent_segments_and_claims_count_as_speech() {
    for frame in [
        ipv4_from(MAC_A, SERVICE_IPV4),
        arp_of(MAC_A, SERVICE_IPV4),
        advertisement(MAC_A, "fd00::110", "fd00::1"),
        advertisement(MAC_A, "fe80::1", "fd00::110"),
    ] {
        assert_eq!(speaker(&frame, &addresses()), Some(MAC_A), "{frame:02x?}");
        // Truncated frames at every length.
        for length in 0..frame.len() {
            let _ = speaker(&frame[..length], &addresses());
        }
    }
    for frame in [
        ipv4_from(MAC_A, [10, 0, 0, 10]),
        arp_of(MAC_A, [10, 0, 0, 10]),
        advertisement(MAC_A, "fe80::1", "fd00::10"),
        frame(MAC_A, [0x88, 0xb5], vec![0; 80]),
    ] {
        assert_eq!(speaker(&frame, &addresses()), None, "{frame:02x?}");
    }
}

#[test]
fn consecutive_speakers_do_not_overlap() {
    let other = ipv4_from(MAC_B, [10, 0, 0, 30]);
    let (a, b) = (
        ipv4_from(MAC_A, SERVICE_IPV4),
        ipv4_from(MAC_B, SERVICE_IPV4),
    );
    let all = speaker_log(&[a.clone(), other, a.clone(), b.clone(), b, a]);
    all.assert_one_at_a_time(&[MAC_A, MAC_B, MAC_A]);
    all.assert_one_at_a_time(&[MAC_A, MAC_A, MAC_B, MAC_A]);
}

#[test]
#[should_panic(expected = "served, and there spoke")]
fn late_claim_is_detected() {
    let frames = [
        ipv4_from(MAC_A, SERVICE_IPV4),
        ipv4_from(MAC_B, SERVICE_IPV4),
        arp_of(MAC_A, SERVICE_IPV4),
        ipv4_from(MAC_B, SERVICE_IPV4),
    ];
    speaker_log(&frames).assert_one_at_a_time(&[MAC_A, MAC_B]);
}

#[test]
#[should_panic(expected = "served, and there spoke")]
fn early_advertisement_is_detected() {
    let early = advertisement(MAC_B, "fe80::1", "fd00::110");
    let frames = [
        ipv4_from(MAC_A, SERVICE_IPV4),
        early,
        ipv4_from(MAC_A, SERVICE_IPV4),
        ipv4_from(MAC_B, SERVICE_IPV4),
    ];
    speaker_log(&frames).assert_one_at_a_time(&[MAC_A, MAC_B]);
}

#[test]
#[should_panic(expected = "served, and there spoke")]
fn silent_speaker_is_detected() {
    speaker_log(&[ipv4_from(MAC_A, SERVICE_IPV4)]).assert_one_at_a_time(&[MAC_A, MAC_B]);
}

#[test]
#[should_panic(expected = "there spoke")]
fn segment_breaks_silence() {
    let frames = [
        ipv4_from(MAC_A, SERVICE_IPV4),
        ipv4_from(MAC_A, SERVICE_IPV4),
        ipv4_from(MAC_A, SERVICE_IPV4),
    ];
    let heard = speaker_log(&frames);
    let at = Duration::from_millis;
    heard.assert_silence(at(10), at(900));
    heard.assert_silence(at(10), at(1100));
}
