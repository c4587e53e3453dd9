//! Packets that Linux sent, captured on an Ethernet device without checksum offload and, where the
//! name says "partial", on the loopback device.

/// A SYN of Linux: MSS 1460, SACK permitted, timestamps, window scale 10.
pub(crate) const V4_SYN: &[u8] = &hex::<60>(
    "4500003cc9b8400040065d010a0000010a000002c4b60050187dca8800000000a002faf09fbb0000\
     020405b40402080a4cada494000000000103030a",
);

/// The SYN-ACK.
pub(crate) const V4_SYN_ACK: &[u8] = &hex::<60>(
    "4500003c00004000400626ba0a0000020a0000010050c4b68cff7749187dca89a012fe88bd8f0000\
     020405b40402080ac0121a274cada4940103030a",
);

/// 18 bytes from the client: `GET / HTTP/1.0` and two line ends.
pub(crate) const V4_DATA: &[u8] = &hex::<70>(
    "45000046c9ba400040065cf50a0000010a000002c4b60050187dca898cff774a8018003f0bef0000\
     0101080a4cada494c0121a27474554202f20485454502f312e300d0a0d0a",
);

/// The client's FIN.
pub(crate) const V4_FIN: &[u8] = &hex::<52>(
    "45000034c9bc400040065d050a0000010a000002c4b60050187dca9b8cff774d8011003fea920000\
     0101080a4cada494c0121a27",
);

/// A SYN over IPv6: MSS 1440.
pub(crate) const V6_SYN: &[u8] = &hex::<80>(
    "6004970500280640fd000000000000000000000000000001fd000000000000000000000000000002\
     ab7800506bc425b200000000a002fd2073e80000020405a00402080a94d10af3000000000103030a",
);

/// 3 bytes from the server over IPv6.
pub(crate) const V6_DATA: &[u8] = &hex::<75>(
    "6009734c00230640fd000000000000000000000000000002fd000000000000000000000000000001\
     0050ab780a73f8996bc425c58018003ffb3f00000101080af21b358494d10af36f6b0a",
);

/// A multicast listener report: ICMPv6 behind a hop-by-hop extension header.
pub(crate) const V6_HOP_BY_HOP: &[u8] = &hex::<96>(
    "6000000000380001fe80000000000000c0c864fffe2dc9f4ff020000000000000000000000000016\
     3a000502000001008f00b6e10000000204000000ff0200000000000000000001ff2dc9f404000000\
     ff0200000000000000000001ff000001",
);

/// A router solicitation: ICMPv6.
pub(crate) const V6_ICMP: &[u8] = &hex::<56>(
    "6000000000103afffe80000000000000c0c864fffe2dc9f4ff020000000000000000000000000002\
     85009d58000000000101c2c8642dc9f4",
);

/// A SYN on the loopback device, which leaves the checksum unfinished.
pub(crate) const V4_SYN_PARTIAL: &[u8] = &hex::<60>(
    "4500003c530b40004006e9ae7f0000017f0000018df2cd3978434f6b00000000a002ffd7fe300000\
     0204ffd70402080adb5193d1000000000103030a",
);

/// Data on the loopback device over IPv6.
pub(crate) const V6_DATA_PARTIAL: &[u8] = &hex::<75>(
    "60093615002306400000000000000000000000000000000100000000000000000000000000000001\
     838d9ae83d1ab9016bfc214c80180040002b00000101080ae1ac8b1a51c6cf996f6b0a",
);

const fn hex<const N: usize>(text: &str) -> [u8; N] {
    let digits = text.as_bytes();
    assert!(digits.len() == 2 * N);
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        bytes[at] = digit(digits[2 * at]) << 4 | digit(digits[2 * at + 1]);
        at += 1;
    }
    bytes
}

const fn digit(character: u8) -> u8 {
    match character {
        b'0'..=b'9' => character - b'0',
        b'a'..=b'f' => character - b'a' + 10,
        _ => panic!("not a hexadecimal digit"),
    }
}
