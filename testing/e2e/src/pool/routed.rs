//! A pool whose members are behind a router, each in another network segment than the balancer.

use std::net::IpAddr;

use lab::{Address, Host};

use super::Pool;
use crate::{Scene, arrange};

/// Number of the router in each segment.
const ROUTER_NUMBER: u8 = 254;
/// The segments of members. Client and balancer are in segment 0.
const MEMBER_SEGMENTS: [u8; 2] = [1, 2];

impl Pool {
    /// A pool with two members, which the balancer reaches at their IPv6 or IPv4 addresses.
    ///
    /// # Panics
    /// When a member does not join.
    #[must_use]
    pub fn routed(label: &str, is_v6: bool, more: &[&str]) -> Self {
        let scene = Scene::new(label);
        let router = scene
            .lab
            .add_host_at("router", ROUTER_NUMBER)
            .expect("a host");
        for segment in MEMBER_SEGMENTS {
            let address = Address::new(segment, ROUTER_NUMBER).expect("an address");
            let added = { &scene.lab }.add_link(&router, &format!("eth{segment}"), address);
            added.expect("a link");
        }
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.sysctl(key, "1").expect("a router");
        }
        let balancer = scene.lab.add_host_at("balancer", 2).expect("a host");
        for host in [&scene.client, &balancer] {
            for segment in MEMBER_SEGMENTS {
                let v6 = Address::new(segment, 1).expect("an address").ipv6();
                route(host, &format!("10.0.{segment}.0/24"), &format!("{v6}/64"));
            }
        }
        let mut this =
            Self::with_balancer(scene, balancer, &[&["--encapsulate", "udp"], more].concat());
        this.is_routed = true;
        for _ in MEMBER_SEGMENTS {
            this.add_member_behind_router(is_v6);
        }
        this
    }

    /// Starts a member, in the segments in turns, and waits until the whole pool knows the member.
    ///
    /// # Panics
    /// When the member does not join.
    pub fn add_member_behind_router(&mut self, is_v6: bool) {
        let number = u8::try_from(self.members.len()).expect("few members");
        let address = address_behind_router(number);
        let address = if is_v6 {
            IpAddr::from(address.ipv6())
        } else {
            IpAddr::from(address.ipv4())
        };
        self.add_member(&["--member-address", &address.to_string()]);
    }

    pub(super) fn host_behind_router(&self, name: &str, number: u8) -> Host {
        let address = address_behind_router(number);
        let host = self.scene.lab.add_host_in(name, address).expect("a host");
        route(&host, "default", "default");
        host
    }
}

fn address_behind_router(number: u8) -> Address {
    let segment = MEMBER_SEGMENTS[usize::from(number) % MEMBER_SEGMENTS.len()];
    Address::new(segment, 11 + number).expect("an address")
}

/// The way to a network is the router in the host's own segment.
fn route(host: &Host, v4: &str, v6: &str) {
    let router = Address::new(host.address().subnet(), ROUTER_NUMBER).expect("an address");
    arrange::run(host, &format!("ip route add {v4} via {}", router.ipv4()));
    arrange::run(
        host,
        &format!("ip -6 route replace {v6} via {}", router.ipv6()),
    );
}
