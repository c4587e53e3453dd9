//! The hidden verb: our own binary as the first process of a room.

use serve::{RoomPurpose, run_room};

use crate::{arguments::Room, exit::Outcome};

pub(crate) fn run(room: Room) -> Outcome {
    let purpose = RoomPurpose {
        criu: room.criu,
        image: room.image,
        number: room.number,
        serves: room.serves,
        command: room.command,
    };
    if run_room(&purpose) {
        Outcome::Done
    } else {
        Outcome::Internal
    }
}
