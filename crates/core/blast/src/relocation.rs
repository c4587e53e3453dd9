//! Copies of misplaced packets (section 2 of the paper).
//!
//! One call receives several packets at predicted positions. A wrong prediction leaves a packet at the position of
//! another packet. As in the paper, nothing is rearranged while packets arrive: the receiver acknowledges first, and
//! then copies. Misplaced packets can lie at each other's positions, so the order of the copies matters.

use std::collections::HashMap;

use crate::{PacketId, flaws::Flaws};

/// Memory that holds the payload of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spot {
    /// The position of this packet in the transfer.
    At(PacketId),
    /// A buffer of the receiver, by number.
    Buffer(usize),
    /// The buffer that breaks a circle of packets. Nothing is received there.
    Spare,
}

/// Result of a reception at one spot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// The spot. Each spot is used once in a call.
    pub spot: Spot,
    /// The packet, if the receiver lacked it. `None`: a duplicate, a foreign or forged packet.
    pub packet: Option<PacketId>,
}

/// One copy of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// From here.
    pub from: Spot,
    /// To here.
    pub to: Spot,
}

/// Appends the copies that bring the packets of one call to their positions, in order. A packet that was predicted
/// needs no copy. Each packet occurs once.
pub fn plan_relocations(landed: &[Landed], plan: &mut Vec<Relocation>) {
    plan_with_flaws(landed, plan, Flaws::default());
}

/// [`plan_relocations`], with mistakes.
#[cfg(feature = "flaws")]
pub fn plan_relocations_with(landed: &[Landed], plan: &mut Vec<Relocation>, flaws: Flaws) {
    plan_with_flaws(landed, plan, flaws);
}

fn plan_with_flaws(landed: &[Landed], plan: &mut Vec<Relocation>, flaws: Flaws) {
    if !flaws.copies() {
        return;
    }
    let misplaced = landed.iter().filter_map(|it| {
        let to = Spot::At(it.packet?);
        (to != it.spot).then_some(Relocation { from: it.spot, to })
    });
    let start = plan.len();
    plan.extend(misplaced);
    if flaws.orders_copies() {
        order(plan, start);
    }
}

/// Orders the copies of `plan` from `start` on: a copy goes to a spot only after the packet there has left. Each spot
/// is the source of at most one copy, and the target of at most one: the copies are chains and circles.
fn order(plan: &mut Vec<Relocation>, start: usize) {
    let copies = plan.split_off(start);
    let numbered = copies.iter().enumerate();
    let mut leaving: HashMap<Spot, usize> = numbered.map(|(at, it)| (it.from, at)).collect();
    for first in &copies {
        if leaving.remove(&first.from).is_none() {
            continue;
        }
        let mut chain = vec![*first];
        let mut to = first.to;
        while let Some(at) = leaving.remove(&to) {
            chain.push(copies[at]);
            to = copies[at].to;
        }
        if to == first.from {
            // A circle: the first packet waits in the spare buffer.
            plan.push(Relocation {
                from: first.from,
                to: Spot::Spare,
            });
            chain[0].from = Spot::Spare;
        }
        plan.extend(chain.into_iter().rev());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn id(number: usize) -> PacketId {
        PacketId {
            blast: 7,
            packet: u16::try_from(number).expect("few"),
        }
    }

    proptest! {
        /// The spots are those of packets 0 to 7 and some buffers; at each any packet, or none, has arrived.
        #[test]
        fn each_packet_reaches_its_position(
            arrived in Just((0..16_usize).collect::<Vec<_>>()).prop_shuffle(),
            lost in prop::collection::vec(any::<bool>(), 12),
        ) {
            let spot = |number: usize| match number {
                0..8 => Spot::At(id(number)),
                _ => Spot::Buffer(number),
            };
            let landed: Vec<_> = (0..12)
                .map(|number| Landed {
                    spot: spot(number),
                    packet: (!lost[number]).then(|| id(arrived[number])),
                })
                .collect();
            let mut plan = Vec::new();
            plan_relocations(&landed, &mut plan);
            let mut memory: HashMap<_, _> = landed.iter().map(|it| (it.spot, it.packet)).collect();
            for relocation in &plan {
                let payload = memory[&relocation.from];
                memory.insert(relocation.to, payload);
            }
            for packet in landed.iter().filter_map(|it| it.packet) {
                prop_assert_eq!(memory[&Spot::At(packet)], Some(packet));
            }
            let right = landed.iter().filter(|it| it.packet.map(Spot::At) == Some(it.spot)).count();
            let fresh = landed.iter().filter(|it| it.packet.is_some()).count();
            // A circle has at least two packets.
            prop_assert!(plan.len() <= (fresh - right) * 3 / 2);
        }
    }
}
