//! The bodies of the messages: fields in the order of their declaration, except that the one of
//! variable length comes last and reaches to the end. So no count and no length has to be believed,
//! but those of the runs in [`Response::OutstreamHeads`], and of names in [`Request::Follow`],
//! [`Request::Claim`] and [`Response::Hosts`].

use super::claim::{decode_name, encode_name};
use super::cursor::{Cursor, Writer};
use super::stream::Message;
use super::{
    Attach, Claim, ControlError, Edition, ErrorCode, KeptImage, LeaseAnswer, LeaseRequest, OLDEST,
    RecordSummary, Recorded, Request, Response, Resume, Statistics,
};
use crate::Digest;

mod parts;

pub(super) use parts::until_the_end;
use parts::{encode_streams, stream};

mod request {
    pub(super) const HELLO: u8 = 0x01;
    pub(super) const FORMER_SUMMARIES: u8 = 0x02;
    pub(super) const READ: u8 = 0x03;
    pub(super) const OUTSTREAM_HEADS: u8 = 0x04;
    pub(super) const UNPROTECT: u8 = 0x05;
    pub(super) const STATISTICS: u8 = 0x06;
    pub(super) const SHUTDOWN: u8 = 0x07;
    pub(super) const HOLD_TURNS: u8 = 0x08;
    pub(super) const FORMER_ATTACH: u8 = 0x09;
    pub(super) const REKEY: u8 = 0x0a;
    pub(super) const FRAMES: u8 = 0x0b;
    pub(super) const BARRIER: u8 = 0x0c;
    pub(super) const RESUME: u8 = 0x0d;
    pub(super) const CONNECTIONS: u8 = 0x0e;
    pub(super) const LEASE: u8 = 0x0f;
    pub(super) const IN_USE: u8 = 0x10;
    pub(super) const DETERMINANTS: u8 = 0x11;
    pub(super) const READ_DETERMINANTS: u8 = 0x12;
    pub(super) const CUT_DETERMINANTS: u8 = 0x13;
    pub(super) const RELEASE: u8 = 0x14;
    pub(super) const FOLLOW: u8 = 0x15;
    pub(super) const TELL_DETERMINANTS: u8 = 0x16;
    pub(super) const TELL_IMAGE: u8 = 0x17;
    pub(super) const COMMIT_IMAGE: u8 = 0x18;
    pub(super) const DROP_IMAGE: u8 = 0x19;
    pub(super) const READ_IMAGE: u8 = 0x1a;
    pub(super) const BEGINNINGS: u8 = 0x1b;
    pub(super) const GIVE_UP: u8 = 0x1c;
    pub(super) const CLAIM: u8 = 0x1d;
    pub(super) const DIGESTS: u8 = 0x1e;
    pub(super) const SUMMARIES: u8 = 0x1f;
    pub(super) const ATTACH: u8 = 0x20;
    pub(super) const DIGEST_SEED: u8 = 0x21;
}

mod response {
    pub(super) const HELLO: u8 = 0x81;
    pub(super) const DRAINED: u8 = 0x82;
    pub(super) const FORMER_SUMMARIES: u8 = 0x83;
    pub(super) const DATA: u8 = 0x84;
    pub(super) const OUTSTREAM_HEADS: u8 = 0x85;
    pub(super) const UNPROTECTED: u8 = 0x86;
    pub(super) const STATISTICS: u8 = 0x87;
    pub(super) const ERROR: u8 = 0x88;
    pub(super) const ATTACHED: u8 = 0x89;
    pub(super) const KEYS: u8 = 0x8a;
    pub(super) const UNKNOWN: u8 = 0x8b;
    pub(super) const CONNECTIONS: u8 = 0x8c;
    pub(super) const LEASE: u8 = 0x8d;
    pub(super) const DETERMINANTS: u8 = 0x8e;
    pub(super) const DETERMINANT_BYTES: u8 = 0x8f;
    pub(super) const FOLLOWED: u8 = 0x90;
    pub(super) const GROWN: u8 = 0x91;
    pub(super) const IMAGE_TAKEN: u8 = 0x92;
    pub(super) const IMAGE_KEPT: u8 = 0x93;
    pub(super) const IMAGE_REFUSED: u8 = 0x94;
    pub(super) const IMAGE_BYTES: u8 = 0x95;
    pub(super) const BEGINNINGS: u8 = 0x96;
    pub(super) const GIVEN_UP: u8 = 0x97;
    pub(super) const CLAIMED: u8 = 0x98;
    pub(super) const HOSTS: u8 = 0x99;
    pub(super) const DIGESTS: u8 = 0x9a;
    pub(super) const SUMMARIES: u8 = 0x9b;
    pub(super) const DIGEST_SEED: u8 = 0x9c;
}

impl Message for Request {
    fn type_code(&self) -> u8 {
        match self {
            Self::Hello { .. } => request::HELLO,
            Self::Summaries => request::SUMMARIES,
            Self::FormerSummaries => request::FORMER_SUMMARIES,
            Self::Read { .. } => request::READ,
            Self::OutstreamHeads { .. } => request::OUTSTREAM_HEADS,
            Self::Beginnings { .. } => request::BEGINNINGS,
            Self::Digests { .. } => request::DIGESTS,
            Self::DigestSeed(_) => request::DIGEST_SEED,
            Self::Unprotect { .. } => request::UNPROTECT,
            Self::Statistics => request::STATISTICS,
            Self::Shutdown => request::SHUTDOWN,
            Self::HoldTurns { .. } => request::HOLD_TURNS,
            Self::Attach(_) => request::ATTACH,
            Self::FormerAttach(_) => request::FORMER_ATTACH,
            Self::Rekey => request::REKEY,
            Self::Frames { .. } => request::FRAMES,
            Self::Barrier { .. } => request::BARRIER,
            Self::Resume(_) => request::RESUME,
            Self::Connections => request::CONNECTIONS,
            Self::Lease(_) => request::LEASE,
            Self::GiveUp { .. } => request::GIVE_UP,
            Self::Claim(_) => request::CLAIM,
            Self::InUse { .. } => request::IN_USE,
            Self::Determinants { .. } => request::DETERMINANTS,
            Self::ReadDeterminants { .. } => request::READ_DETERMINANTS,
            Self::CutDeterminants { .. } => request::CUT_DETERMINANTS,
            Self::Release { .. } => request::RELEASE,
            Self::Follow { .. } => request::FOLLOW,
            Self::TellDeterminants { .. } => request::TELL_DETERMINANTS,
            Self::TellImage { .. } => request::TELL_IMAGE,
            Self::CommitImage { .. } => request::COMMIT_IMAGE,
            Self::DropImage => request::DROP_IMAGE,
            Self::ReadImage { .. } => request::READ_IMAGE,
        }
    }

    fn is_known(type_code: u8) -> bool {
        (request::HELLO..=request::DIGEST_SEED).contains(&type_code)
    }

    fn version(type_code: u8) -> u8 {
        match type_code {
            // Who attaches makes the segments of the link as they are now.
            request::CLAIM
            | request::DIGESTS
            | request::SUMMARIES
            | request::ATTACH
            | request::DIGEST_SEED => 8,
            _ => OLDEST,
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) -> Result<(), ControlError> {
        let mut body = Writer::new(out);
        match self {
            Self::Hello { service } => body.bytes(service.as_bytes()),
            Self::Summaries
            | Self::FormerSummaries
            | Self::Statistics
            | Self::Shutdown
            | Self::Rekey
            | Self::Connections
            | Self::DropImage => {}
            Self::HoldTurns { hold } => body.bool(*hold),
            Self::Attach(attach) | Self::FormerAttach(attach) => attach.encode(&mut body),
            Self::DigestSeed(seed) => body.seed(*seed),
            Self::Frames { bytes } => body.bytes(bytes),
            Self::Barrier { token } => body.u64(*token),
            Self::InUse { session } => body.u64(*session),
            Self::Determinants { record, said } => {
                body.optional_u64(*record);
                encode_streams(said, &mut body);
            }
            Self::TellDeterminants {
                record,
                process,
                from,
                bytes,
            } => {
                body.u64(*record);
                body.u32(*process);
                body.u64(*from);
                body.bytes(bytes);
            }
            Self::TellImage {
                record,
                image,
                length,
                from,
                bytes,
            } => {
                for number in [record, image, length, from] {
                    body.u64(*number);
                }
                body.bytes(bytes);
            }
            Self::CommitImage {
                record,
                image,
                base,
                processes,
            } => {
                for number in [record, image, base] {
                    body.u64(*number);
                }
                body.u32(*processes);
            }
            Self::ReadImage {
                image,
                from,
                max_len,
            } => {
                body.u64(*image);
                body.u64(*from);
                body.u32(*max_len);
            }
            Self::ReadDeterminants {
                process,
                from,
                max_len,
            } => {
                body.u32(*process);
                body.u64(*from);
                body.u32(*max_len);
            }
            Self::CutDeterminants { process, length } => {
                body.u32(*process);
                body.u64(*length);
            }
            Self::Follow {
                service,
                edition,
                streams,
            } => {
                encode_name(service, &mut body)?;
                Edition::encode(*edition, &mut body);
                encode_streams(streams, &mut body);
            }
            Self::Release { places } => {
                for (flow, to) in places {
                    body.flow(*flow);
                    body.seq(*to);
                }
            }
            Self::Resume(resume) => resume.encode(&mut body),
            Self::Lease(lease) => lease.encode(&mut body),
            Self::Claim(claim) => claim.encode(&mut body)?,
            Self::GiveUp { service } => body.bytes(service.as_bytes()),
            Self::Read {
                flow,
                from,
                max_len,
            } => {
                body.flow(*flow);
                body.seq(*from);
                body.u32(*max_len);
            }
            Self::OutstreamHeads { flow }
            | Self::Beginnings { flow }
            | Self::Digests { flow }
            | Self::Unprotect { flow } => {
                body.flow(*flow);
            }
        }
        Ok(())
    }

    fn decode_body(type_code: u8, body: &[u8]) -> Result<Self, ControlError> {
        let mut body = Cursor::new(body);
        let message = match type_code {
            request::HELLO => Self::Hello {
                service: body.text()?,
            },
            request::SUMMARIES => Self::Summaries,
            request::FORMER_SUMMARIES => Self::FormerSummaries,
            request::READ => Self::Read {
                flow: body.flow()?,
                from: body.seq()?,
                max_len: body.u32()?,
            },
            request::OUTSTREAM_HEADS => Self::OutstreamHeads { flow: body.flow()? },
            request::BEGINNINGS => Self::Beginnings { flow: body.flow()? },
            request::DIGESTS => Self::Digests { flow: body.flow()? },
            request::DIGEST_SEED => Self::DigestSeed(body.seed()?),
            request::UNPROTECT => Self::Unprotect { flow: body.flow()? },
            request::STATISTICS => Self::Statistics,
            request::SHUTDOWN => Self::Shutdown,
            request::HOLD_TURNS => Self::HoldTurns { hold: body.bool()? },
            request::ATTACH => Self::Attach(Attach::decode(&mut body)?),
            request::FORMER_ATTACH => Self::FormerAttach(Attach::decode(&mut body)?),
            request::REKEY => Self::Rekey,
            request::FRAMES => Self::Frames {
                bytes: body.remainder(),
            },
            request::BARRIER => Self::Barrier { token: body.u64()? },
            request::RESUME => Self::Resume(Resume::decode(&mut body)?),
            request::CONNECTIONS => Self::Connections,
            request::LEASE => Self::Lease(LeaseRequest::decode(&mut body)?),
            request::GIVE_UP => Self::GiveUp {
                service: body.text()?,
            },
            request::CLAIM => Self::Claim(Claim::decode(&mut body)?),
            request::IN_USE => Self::InUse {
                session: body.u64()?,
            },
            request::DETERMINANTS => Self::Determinants {
                record: body.optional_u64()?,
                said: until_the_end(&mut body, stream)?,
            },
            request::TELL_DETERMINANTS => Self::TellDeterminants {
                record: body.u64()?,
                process: body.u32()?,
                from: body.u64()?,
                bytes: body.remainder(),
            },
            request::TELL_IMAGE => Self::TellImage {
                record: body.u64()?,
                image: body.u64()?,
                length: body.u64()?,
                from: body.u64()?,
                bytes: body.remainder(),
            },
            request::COMMIT_IMAGE => Self::CommitImage {
                record: body.u64()?,
                image: body.u64()?,
                base: body.u64()?,
                processes: body.u32()?,
            },
            request::DROP_IMAGE => Self::DropImage,
            request::READ_IMAGE => Self::ReadImage {
                image: body.u64()?,
                from: body.u64()?,
                max_len: body.u32()?,
            },
            request::READ_DETERMINANTS => Self::ReadDeterminants {
                process: body.u32()?,
                from: body.u64()?,
                max_len: body.u32()?,
            },
            request::RELEASE => Self::Release {
                places: until_the_end(&mut body, |body| Ok((body.flow()?, body.seq()?)))?,
            },
            request::CUT_DETERMINANTS => Self::CutDeterminants {
                process: body.u32()?,
                length: body.u64()?,
            },
            request::FOLLOW => Self::Follow {
                service: decode_name(&mut body)?,
                edition: Edition::decode(&mut body)?,
                streams: until_the_end(&mut body, stream)?,
            },
            _ => return Err(ControlError::UnknownType(type_code)),
        };
        body.finish()?;
        Ok(message)
    }
}

impl Message for Response {
    fn type_code(&self) -> u8 {
        match self {
            Self::Hello { .. } => response::HELLO,
            Self::Drained { .. } => response::DRAINED,
            Self::Summaries { .. } => response::SUMMARIES,
            Self::FormerSummaries { .. } => response::FORMER_SUMMARIES,
            Self::Data { .. } => response::DATA,
            Self::OutstreamHeads { .. } => response::OUTSTREAM_HEADS,
            Self::Beginnings { .. } => response::BEGINNINGS,
            Self::Digests { .. } => response::DIGESTS,
            Self::DigestSeed(_) => response::DIGEST_SEED,
            Self::Unprotected { .. } => response::UNPROTECTED,
            Self::Statistics(_) => response::STATISTICS,
            Self::Error { .. } => response::ERROR,
            Self::Attached { .. } => response::ATTACHED,
            Self::Keys(_) => response::KEYS,
            Self::Unknown { .. } => response::UNKNOWN,
            Self::Connections { .. } => response::CONNECTIONS,
            Self::Lease(_) => response::LEASE,
            Self::GivenUp { .. } => response::GIVEN_UP,
            Self::Claimed { .. } => response::CLAIMED,
            Self::Hosts { .. } => response::HOSTS,
            Self::Determinants { .. } => response::DETERMINANTS,
            Self::DeterminantBytes { .. } => response::DETERMINANT_BYTES,
            Self::Followed { .. } => response::FOLLOWED,
            Self::Grown { .. } => response::GROWN,
            Self::ImageTaken { .. } => response::IMAGE_TAKEN,
            Self::ImageKept { .. } => response::IMAGE_KEPT,
            Self::ImageRefused { .. } => response::IMAGE_REFUSED,
            Self::ImageBytes { .. } => response::IMAGE_BYTES,
        }
    }

    fn is_known(type_code: u8) -> bool {
        (response::HELLO..=response::DIGEST_SEED).contains(&type_code)
    }

    fn version(type_code: u8) -> u8 {
        match type_code {
            response::CLAIMED
            | response::HOSTS
            | response::DIGESTS
            | response::SUMMARIES
            | response::DIGEST_SEED => 8,
            _ => OLDEST,
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) -> Result<(), ControlError> {
        let mut body = Writer::new(out);
        match self {
            Self::Hello { pid } => body.u32(*pid),
            Self::Drained { token } => body.u64(*token),
            Self::Summaries { summaries, last } => {
                body.bool(*last);
                for summary in summaries {
                    summary.encode(&mut body, true);
                }
            }
            Self::FormerSummaries { summaries, last } => {
                body.bool(*last);
                for summary in summaries {
                    summary.encode(&mut body, false);
                }
            }
            Self::Data { flow, from, bytes } => {
                body.flow(*flow);
                body.seq(*from);
                body.bytes(bytes);
            }
            Self::OutstreamHeads { flow, ranges, last } => {
                body.flow(*flow);
                body.bool(*last);
                for (seq, bytes) in ranges {
                    let len = u32::try_from(bytes.len());
                    body.seq(*seq);
                    body.u32(len.map_err(|_| ControlError::TooLong(bytes.len()))?);
                    body.bytes(bytes);
                }
            }
            Self::Beginnings { flow, places, last } => {
                body.flow(*flow);
                body.bool(*last);
                for (instream, outstream) in places {
                    body.seq(*instream);
                    body.seq(*outstream);
                }
            }
            Self::DigestSeed(seed) => body.seed(*seed),
            Self::Digests {
                flow,
                digests,
                last,
            } => {
                body.flow(*flow);
                body.bool(*last);
                for digest in digests {
                    body.bytes(&digest.to_bytes());
                }
            }
            Self::Unprotected { flow, reason } => {
                body.flow(*flow);
                body.u8(reason.code());
            }
            Self::Statistics(statistics) => statistics.encode(&mut body),
            Self::Error { code, message } => {
                body.u8(code.code());
                body.bytes(message.as_bytes());
            }
            Self::Attached {
                pid,
                kept,
                session,
                keys,
            } => {
                body.u32(*pid);
                body.bool(*kept);
                body.u64(*session);
                body.keys(keys);
            }
            Self::Keys(keys) => body.keys(keys),
            Self::Unknown { flow_low } => body.u32(*flow_low),
            Self::GivenUp { epoch } => body.u32(*epoch),
            Self::Claimed { beside } => body.bytes(beside.as_bytes()),
            Self::Hosts { serves, stands_by } => {
                encode_name(serves, &mut body)?;
                body.bytes(stands_by.as_bytes());
            }
            Self::Lease(lease) => lease.encode(&mut body),
            Self::Determinants {
                edition,
                is_whole,
                image,
                streams,
            } => {
                Edition::encode(*edition, &mut body);
                body.bool(*is_whole);
                KeptImage::encode(*image, &mut body);
                encode_streams(streams, &mut body);
            }
            Self::Followed { edition } => Edition::encode(*edition, &mut body),
            Self::Grown {
                process,
                from,
                bytes,
            } => {
                body.u32(*process);
                body.u64(*from);
                body.bytes(bytes);
            }
            Self::DeterminantBytes { bytes } | Self::ImageBytes { bytes } => body.bytes(bytes),
            Self::ImageTaken {
                record,
                image,
                there,
            } => {
                for number in [record, image, there] {
                    body.u64(*number);
                }
            }
            Self::ImageKept { record, image } => {
                body.u64(*record);
                body.u64(*image);
            }
            Self::ImageRefused { record, image, why } => {
                body.u64(*record);
                body.u64(*image);
                body.bytes(why.as_bytes());
            }
            Self::Connections { connections, last } => {
                body.bool(*last);
                for connection in connections {
                    connection.encode(&mut body);
                }
            }
        }
        Ok(())
    }

    fn decode_body(type_code: u8, body: &[u8]) -> Result<Self, ControlError> {
        let mut body = Cursor::new(body);
        let message = match type_code {
            response::HELLO => Self::Hello { pid: body.u32()? },
            response::DRAINED => Self::Drained { token: body.u64()? },
            response::SUMMARIES => Self::Summaries {
                last: body.bool()?,
                summaries: until_the_end(&mut body, |body| RecordSummary::decode(body, true))?,
            },
            response::FORMER_SUMMARIES => Self::FormerSummaries {
                last: body.bool()?,
                summaries: until_the_end(&mut body, |body| RecordSummary::decode(body, false))?,
            },
            response::DATA => Self::Data {
                flow: body.flow()?,
                from: body.seq()?,
                bytes: body.remainder(),
            },
            response::OUTSTREAM_HEADS => Self::OutstreamHeads {
                flow: body.flow()?,
                last: body.bool()?,
                ranges: until_the_end(&mut body, |body| {
                    let (seq, len) = (body.seq()?, body.u32()?);
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    Ok((seq, body.bytes(len)?.to_vec()))
                })?,
            },
            response::BEGINNINGS => Self::Beginnings {
                flow: body.flow()?,
                last: body.bool()?,
                places: until_the_end(&mut body, |body| Ok((body.seq()?, body.seq()?)))?,
            },
            response::DIGEST_SEED => Self::DigestSeed(body.seed()?),
            response::DIGESTS => Self::Digests {
                flow: body.flow()?,
                last: body.bool()?,
                digests: until_the_end(&mut body, |body| Ok(Digest::from_bytes(body.array()?)))?,
            },
            response::UNPROTECTED => Self::Unprotected {
                flow: body.flow()?,
                reason: body.reason()?,
            },
            response::STATISTICS => Self::Statistics(Statistics::decode(&mut body)?),
            response::ERROR => {
                let unknown = ControlError::Malformed("the error code is unknown");
                Self::Error {
                    code: ErrorCode::from_code(body.u8()?).ok_or(unknown)?,
                    message: body.text()?,
                }
            }
            response::ATTACHED => Self::Attached {
                pid: body.u32()?,
                kept: body.bool()?,
                session: body.u64()?,
                keys: body.keys()?,
            },
            response::KEYS => Self::Keys(body.keys()?),
            response::UNKNOWN => Self::Unknown {
                flow_low: body.u32()?,
            },
            response::CONNECTIONS => Self::Connections {
                last: body.bool()?,
                connections: until_the_end(&mut body, Recorded::decode)?,
            },
            response::LEASE => Self::Lease(LeaseAnswer::decode(&mut body)?),
            response::GIVEN_UP => Self::GivenUp { epoch: body.u32()? },
            response::CLAIMED => Self::Claimed {
                beside: body.text()?,
            },
            response::HOSTS => Self::Hosts {
                serves: decode_name(&mut body)?,
                stands_by: body.text()?,
            },
            response::DETERMINANTS => Self::Determinants {
                edition: Edition::decode(&mut body)?,
                is_whole: body.bool()?,
                image: KeptImage::decode(&mut body)?,
                streams: until_the_end(&mut body, stream)?,
            },
            response::DETERMINANT_BYTES => Self::DeterminantBytes {
                bytes: body.remainder(),
            },
            response::IMAGE_TAKEN => Self::ImageTaken {
                record: body.u64()?,
                image: body.u64()?,
                there: body.u64()?,
            },
            response::IMAGE_KEPT => Self::ImageKept {
                record: body.u64()?,
                image: body.u64()?,
            },
            response::IMAGE_REFUSED => Self::ImageRefused {
                record: body.u64()?,
                image: body.u64()?,
                why: body.text()?,
            },
            response::IMAGE_BYTES => Self::ImageBytes {
                bytes: body.remainder(),
            },
            response::FOLLOWED => Self::Followed {
                edition: Edition::decode(&mut body)?,
            },
            response::GROWN => Self::Grown {
                process: body.u32()?,
                from: body.u64()?,
                bytes: body.remainder(),
            },
            _ => return Err(ControlError::UnknownType(type_code)),
        };
        body.finish()?;
        Ok(message)
    }
}
