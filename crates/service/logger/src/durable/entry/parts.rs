//! Parts of an entry.

use protocol::control::{Attach, ReplayMode, Resume};
use wire::SeqNumber;

pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

pub(super) fn numbers<const N: usize>(bytes: &mut &[u8]) -> Option<[SeqNumber; N]> {
    let mut numbers = [SeqNumber(0); N];
    for number in &mut numbers {
        *number = self::number(bytes)?;
    }
    Some(numbers)
}

pub(super) fn number(bytes: &mut &[u8]) -> Option<SeqNumber> {
    take(bytes).map(|number| SeqNumber(u32::from_le_bytes(number)))
}

pub(super) fn truth(bytes: &mut &[u8]) -> Option<bool> {
    match take(bytes)? {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

/// The optional value; `None` is encoded as zeros.
pub(super) fn known<T>(is_known: bool, numbers: [SeqNumber; 2], value: T) -> Option<Option<T>> {
    match is_known {
        true => Some(Some(value)),
        false => (numbers == [SeqNumber(0); 2]).then_some(None),
    }
}

/// Where the record of a connection begins.
pub(super) fn write_beginning(resume: &Resume, out: &mut Vec<u8>) {
    out.extend_from_slice(&resume.to_bytes());
    if cfg!(feature = "next-version") {
        out.extend_from_slice(&next(resume).to_le_bytes());
    }
}

pub(super) fn read_beginning(version: u32, bytes: &mut &[u8]) -> Option<Resume> {
    let resume = Resume::from_bytes(&take(bytes)?)?;
    if cfg!(feature = "next-version") && version > wal::OLDEST {
        let [SeqNumber(found)] = numbers(bytes)?;
        return (found == next(&resume)).then_some(resume);
    }
    Some(resume)
}

/// The additional field of the next version, for tests.
const fn next(resume: &Resume) -> u32 {
    !resume.client_isn.0
}

/// The service of a session, without the versions of the link: a host tells these again when the host attaches. All
/// numbers have a fixed length; the name of the service reaches to the end.
pub(super) fn write_attach(attach: &Attach, out: &mut Vec<u8>) {
    out.extend_from_slice(&attach.instance.to_le_bytes());
    out.push(attach.replay.code());
    out.extend_from_slice(&attach.per_connection.to_le_bytes());
    out.extend_from_slice(&attach.total.to_le_bytes());
    out.extend_from_slice(&attach.connections.to_le_bytes());
    out.extend_from_slice(&attach.udp_port.to_le_bytes());
    out.push(u8::from(attach.inherit));
    out.extend_from_slice(attach.service.as_bytes());
}

pub(super) fn read_attach(mut bytes: &[u8]) -> Option<Attach> {
    Some(Attach {
        instance: u64::from_le_bytes(take(&mut bytes)?),
        replay: ReplayMode::from_code(u8::from_le_bytes(take(&mut bytes)?))?,
        per_connection: u64::from_le_bytes(take(&mut bytes)?),
        total: u64::from_le_bytes(take(&mut bytes)?),
        connections: u32::from_le_bytes(take(&mut bytes)?),
        udp_port: u16::from_le_bytes(take(&mut bytes)?),
        inherit: truth(&mut bytes)?,
        service: String::from_utf8(bytes.to_vec()).ok()?,
        ..Attach::PLAIN
    })
}
