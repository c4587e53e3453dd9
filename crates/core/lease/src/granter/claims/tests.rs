use protocol::control::{LeaseRequest, Standing};

use super::*;
use crate::{Memory, Terms};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn granter() -> Granter {
    Granter::new(7, Memory::Kept(vec![]), Terms::default(), ms(0))
}

fn host(number: u8, service: &str) -> Claimant {
    Claimant {
        service: service.into(),
        host: number.into(),
        from: [10, 0, 0, number].into(),
    }
}

fn claim(who: &Claimant, address: &str) -> Claim {
    Claim {
        host: who.host,
        serves: false,
        shared: false,
        host_name: "host-a".into(),
        service: who.service.clone(),
        addresses: vec![
            "10.9.9.9:9".parse().unwrap(),
            format!("{address}:80").parse().unwrap(),
        ],
        determinants: 0,
    }
}

/// Claims `10.0.0.10:80`; tells whether that is granted.
fn claims(granter: &mut Granter, now: u64, who: &Claimant) -> bool {
    granter
        .claim(ms(now), who, &claim(who, "10.0.0.10"))
        .is_ok()
}

/// The newest instance of a host asks until the final answer.
fn asks(granter: &mut Granter, now: u64, who: &Claimant, standing: Standing) {
    for number in 1..=2 {
        let request = LeaseRequest {
            instance: who.host,
            host: who.host,
            number: now * 2 + number,
            life: 7,
            preference: 0,
            standing,
            service: who.service.clone(),
        };
        granter.decide(ms(now), &request);
    }
}

#[test]
fn claimed_address_refuses_other_service() {
    let mut granter = granter();
    let (web, site) = (host(3, "web"), host(4, "website"));
    assert!(claims(&mut granter, 0, &web));
    let refused = granter.claim(ms(1), &site, &claim(&site, "10.9.9.8"));
    let why = "10.9.9.9:9 is the address of the service web on the host 10.0.0.3";
    assert_eq!(refused.unwrap_err().to_string(), why);
    // The refused claim left no trace: the first claimant may claim again, a standby of that service, too, and another
    // port is another address.
    assert!(claims(&mut granter, 2, &web));
    assert!(claims(&mut granter, 2, &host(4, "web")));
    let mut other = claim(&site, "10.0.0.10");
    other.addresses = vec!["10.0.0.10:443".parse().unwrap()];
    assert_eq!(granter.claim(ms(3), &site, &other), Ok(None));
}

#[test]
fn serving_host_of_pair_is_named() {
    for serves in [3, 5] {
        let mut granter = granter();
        for number in [3, 5] {
            assert!(claims(&mut granter, 0, &host(number, "web")));
        }
        asks(&mut granter, 0, &host(serves, "web"), Standing::First);
        let site = host(4, "website");
        let refused = granter.claim(ms(1), &site, &claim(&site, "10.0.0.10"));
        assert_eq!(refused.unwrap_err().from, IpAddr::from([10, 0, 0, serves]));
    }
}

#[test]
fn renamed_service_on_same_host_is_accepted() {
    let mut granter = granter();
    assert!(claims(&mut granter, 0, &host(3, "web")));
    assert!(claims(&mut granter, 1, &host(3, "website")));
    // A copy of the machine has the same host number, and another address.
    let copy = Claimant {
        from: [10, 0, 0, 5].into(),
        ..host(3, "third")
    };
    assert!(!claims(&mut granter, 2, &copy));
}

#[test]
fn local_addresses_are_not_claimed() {
    for address in ["127.0.0.1", "[::1]", "169.254.0.1", "[fe80::1]"] {
        let mut granter = granter();
        for who in [host(3, "web"), host(4, "website")] {
            let mut claim = claim(&who, address);
            claim.addresses.remove(0);
            assert_eq!(granter.claim(ms(0), &who, &claim), Ok(None), "{address}");
        }
    }
}

#[test]
fn shared_addresses_never_conflict() {
    let mut granter = granter();
    let (web, site) = (host(3, "web"), host(4, "website"));
    let shared = Claim {
        shared: true,
        ..claim(&site, "10.0.0.10")
    };
    assert!(claims(&mut granter, 0, &web));
    assert_eq!(granter.claim(ms(1), &site, &shared), Ok(None));
    granter.withdraw(&web);
    assert!(claims(&mut granter, 2, &web));
}

#[test]
fn serving_claimant_is_warned() {
    let mut granter = granter();
    let (web, site) = (host(3, "web"), host(4, "website"));
    assert!(claims(&mut granter, 0, &web));
    let serves = Claim {
        serves: true,
        ..claim(&site, "10.0.0.10")
    };
    let beside = granter.claim(ms(1), &site, &serves).unwrap().unwrap();
    assert_eq!(
        (beside.service.as_str(), beside.from),
        ("web", [10, 0, 0, 3].into())
    );
    // Both have the address, and a third is refused while either lives.
    granter.withdraw(&web);
    assert!(!claims(&mut granter, 2, &host(5, "third")));
}

#[test]
fn claim_expires_with_silent_host() {
    let mut granter = granter();
    let (web, site) = (host(3, "web"), host(4, "website"));
    assert!(claims(&mut granter, 0, &web));
    granter.refresh(&web, ms(5_000));
    granter.refresh(&web, ms(4_000));
    assert!(!claims(&mut granter, 14_999, &site));
    assert!(claims(&mut granter, 15_000, &site));
    // The former owner comes back too late.
    granter.refresh(&web, ms(15_001));
    assert!(!claims(&mut granter, 15_002, &web));
    granter.withdraw(&site);
    assert!(claims(&mut granter, 15_003, &web));
}

/// A host with a standby is leased; a host without a standby sends without end, as far as the granter knows.
#[test]
fn claim_lasts_while_host_may_speak() {
    let (web, site) = (host(3, "web"), host(4, "website"));
    let (late, later) = (20_000, 20_260);
    for (standby, given_up) in [(false, false), (false, true), (true, false)] {
        let mut granter = granter();
        assert!(claims(&mut granter, 0, &web));
        asks(&mut granter, 0, &web, Standing::First);
        let holds = Standing::Holds {
            epoch: 1,
            speaks: true,
            leased: true,
            answered: u64::MAX,
        };
        if standby {
            asks(
                &mut granter,
                1,
                &host(5, "web"),
                Standing::Standby { effective_in: None },
            );
        }
        asks(&mut granter, late - 1, &web, holds);
        // The claim itself was not refreshed.
        assert!(!claims(&mut granter, late, &site));
        if given_up {
            assert!(granter.give_up(ms(later + 10_000), "web").is_ok());
        }
        let lives = !standby && !given_up;
        assert_eq!(claims(&mut granter, later + 10_000, &site), !lives);
    }
}
