//! Segments that arrive on two processors at the same moment.

use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use objects::flow::Flow;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Lab;
use crate::harness::{Frame, Spec};

impl Lab {
    /// Each segment of the client arrives on two processors at once. Returns the connection afterwards. Without the
    /// model, which has one processor.
    pub(in crate::objects) fn race(&self, specs: &[Spec]) -> Flow {
        let arrived = AtomicUsize::new(0);
        thread::scope(|scope| {
            for processor in 0..2 {
                let (program, arrived) = (self.programs[0].as_fd(), &arrived);
                let frames: Vec<Frame> = specs.iter().map(|spec| self.frame_of(spec)).collect();
                scope.spawn(move || {
                    let mut processors = CpuSet::new();
                    processors.set(processor);
                    sched_setaffinity(None, &processors).expect("two processors");
                    for (index, mut frame) in frames.into_iter().enumerate() {
                        arrived.fetch_add(1, Ordering::AcqRel);
                        while arrived.load(Ordering::Acquire) < 2 * (index + 1) {
                            std::hint::spin_loop();
                        }
                        frame.run(program).expect("the packet is run");
                    }
                });
            }
        });
        let flow = self.plane.flow(self.key).expect("readable");
        flow.expect("the flow is known")
    }

    fn frame_of(&self, spec: &Spec) -> Frame {
        let mut frame = Frame::of(&spec.packet(self.key.client(), self.key.server()));
        frame.ifindex = self.interface;
        frame
    }
}
