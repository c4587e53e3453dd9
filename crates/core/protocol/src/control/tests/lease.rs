//! Messages about leases.

use super::{round_trip::text, *};

pub(super) fn lease_request() -> LeaseRequest {
    LeaseRequest {
        instance: 0x0102,
        host: 3,
        number: 4,
        life: 5,
        preference: 0x0607,
        standing: Standing::Holds {
            epoch: 8,
            speaks: true,
            leased: false,
            answered: 9,
        },
        service: "web".into(),
    }
}

pub(super) const LEASE_ANSWER: LeaseAnswer = LeaseAnswer {
    instance: 1,
    number: 2,
    life: 3,
    verdict: Verdict::Lease {
        epoch: 4,
        term_us: 0x0506,
        standby: true,
        former: Former::Other,
    },
};

pub(super) fn request() -> impl Strategy<Value = LeaseRequest> {
    let standing = prop_oneof![
        Just(Standing::First),
        any::<Option<u32>>().prop_map(|effective_in| Standing::Standby { effective_in }),
        any::<(u32, bool, bool, u64)>().prop_map(|(epoch, speaks, leased, answered)| {
            Standing::Holds {
                epoch,
                speaks,
                leased,
                answered,
            }
        }),
        any::<u32>().prop_map(|epoch| Standing::Released { epoch }),
    ];
    let numbers = any::<(u64, u64, u64, u64, u16)>();
    (numbers, standing, text()).prop_map(|(numbers, standing, service)| {
        let (instance, host, number, life, preference) = numbers;
        LeaseRequest {
            instance,
            host,
            number,
            life,
            preference,
            standing,
            service,
        }
    })
}

fn former() -> impl Strategy<Value = Former> {
    prop_oneof![
        Just(Former::Unknown),
        Just(Former::GivenUp),
        Just(Former::Other),
        Just(Former::Same),
    ]
}

pub(super) fn answer() -> impl Strategy<Value = LeaseAnswer> {
    let verdict = prop_oneof![
        Just(Verdict::Wait),
        (any::<(u32, u32, bool)>(), former()).prop_map(|((epoch, term_us, standby), former)| {
            Verdict::Lease {
                epoch,
                term_us,
                standby,
                former,
            }
        }),
        any::<u32>().prop_map(|epoch| Verdict::Free { epoch }),
        any::<(u32, bool, u32)>().prop_map(|(epoch, effective, again_us)| Verdict::Standby {
            epoch,
            effective,
            again_us
        }),
        any::<u32>().prop_map(|epoch| Verdict::Superseded { epoch }),
    ];
    (any::<(u64, u64, u64)>(), verdict).prop_map(|((instance, number, life), verdict)| {
        LeaseAnswer {
            instance,
            number,
            life,
            verdict,
        }
    })
}
