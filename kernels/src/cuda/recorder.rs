//! A device that records its calls, so that a graph can repeat them.
//!
//! Launches, copies, products and collectives are recorded with their streams, arguments and addresses; a repeated call has the same
//! ones. Work of the host can't be recorded. Two equal recordings show that the work repeats.

use super::attention::{Attention, Pass};
use super::collective::{Collective, GroupName, Membership};
use super::device::{About, Device, Event, Graph, InUse, StopFlag};
use super::error::DeviceError;
use super::fp8::{Fp8Operands, Fp8Product};
use super::launch::{Address, Launch, Number};
use super::product::{Operands, Product};
use super::recorded::Recorded;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The calls between `begin` and `end`.
#[derive(Debug, Default)]
pub struct Recording {
    /// The calls in order.
    pub calls: Vec<Recorded>,
    /// Why a graph can't repeat them; `None` if it can.
    pub obstacle: Option<&'static str>,
    /// The recorded events in order; kept, so that no later event has the same address.
    events: Vec<Event>,
}

/// The recording under way, shared by a recorder and its owner; `None` between recordings.
#[derive(Debug, Clone, Default)]
pub struct RecordingLog(Rc<RefCell<Option<Recording>>>);

impl RecordingLog {
    /// Begins a recording, with that stream selected.
    pub fn begin(&self, selected: usize) {
        let calls = vec![Recorded::Select(selected)];
        *self.0.borrow_mut() = Some(Recording { calls, ..Recording::default() });
    }

    /// Ends the recording and hands it over; an empty one if none has begun.
    pub fn end(&self) -> Recording {
        self.0.borrow_mut().take().unwrap_or_default()
    }

    fn add(&self, call: impl FnOnce() -> Recorded) {
        if let Some(recording) = &mut *self.0.borrow_mut() {
            recording.calls.push(call());
        }
    }

    fn obstacle(&self, what: &'static str) {
        if let Some(recording) = &mut *self.0.borrow_mut() {
            recording.obstacle.get_or_insert(what);
        }
    }
}

/// Enqueues recorded calls. All streams that they name begin behind stream 0, which waits for all of them at the end. Stream 0 is
/// selected afterwards, also after an error.
pub(super) fn enqueue(device: &mut dyn Device, recorded: &[Recorded]) -> Result<(), DeviceError> {
    let done = enqueue_all(device, recorded);
    device.select(0).and(done)
}

fn enqueue_all(device: &mut dyn Device, recorded: &[Recorded]) -> Result<(), DeviceError> {
    let named = recorded.iter().filter_map(|call| match call {
        Recorded::Select(stream) if *stream > 0 => Some(*stream),
        _ => None,
    });
    let others: BTreeSet<usize> = named.collect();
    device.select(0)?;
    let begin = device.record_event()?;
    for other in &others {
        device.select(*other)?;
        device.wait(&begin)?;
    }
    device.select(0)?;
    let mut events = Vec::new();
    for call in recorded {
        match call {
            Recorded::Select(stream) => device.select(*stream)?,
            Recorded::Event => events.push(device.record_event()?),
            Recorded::Wait(number) => device.wait(&events[*number])?,
            Recorded::Copy { to, from, bytes } => device.copy(*to, *from, *bytes)?,
            Recorded::Zero { at, bytes } => device.zero(*at, *bytes)?,
            Recorded::Launch(launch) => device.launch(launch)?,
            Recorded::Multiply(product, at) => device.multiply(*product, *at)?,
            Recorded::MultiplyFp8(product, at) => device.multiply_fp8(*product, *at)?,
            Recorded::Attend(attention, pass, workspace) => device.attend(attention, *pass, *workspace)?,
            Recorded::Collective(group, work, number) => device.collective(*group, *work, *number)?,
        }
    }
    for other in &others {
        device.select(*other)?;
        let end = device.record_event()?;
        device.select(0)?;
        device.wait(&end)?;
    }
    Ok(())
}

/// A device whose calls are recorded while a recording is under way.
pub struct Recorder {
    inner: Box<dyn Device>,
    log: RecordingLog,
}

impl Recorder {
    /// Records the calls of `inner` into `log`.
    pub fn new(inner: Box<dyn Device>, log: RecordingLog) -> Self {
        Self { inner, log }
    }
}

impl Device for Recorder {
    fn select(&mut self, stream: usize) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::Select(stream));
        self.inner.select(stream)
    }

    fn record_event(&mut self) -> Result<Event, DeviceError> {
        let event = self.inner.record_event()?;
        if let Some(recording) = &mut *self.log.0.borrow_mut() {
            recording.calls.push(Recorded::Event);
            recording.events.push(event.clone());
        }
        Ok(event)
    }

    fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        if let Some(recording) = &mut *self.log.0.borrow_mut() {
            match recording.events.iter().rposition(|other| other.is(event)) {
                Some(number) => recording.calls.push(Recorded::Wait(number)),
                None => drop(
                    recording.obstacle.get_or_insert("another rank is waited for in the middle of a step"),
                ),
            }
        }
        self.inner.wait(event)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.log.obstacle("memory is asked for in the middle of a step");
        self.inner.allocate(bytes)
    }

    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.log.obstacle("memory is asked for in the middle of a step");
        self.inner.allocate_on_host(bytes)
    }

    fn wait_on_host(&mut self, event: &Event) -> Result<(), DeviceError> {
        self.log.obstacle("the host waits in the middle of a step");
        self.inner.wait_on_host(event)
    }

    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.log.obstacle("the host computes in the middle of a step");
        self.inner.on_host(at, bytes, work)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.log.obstacle("the host writes in the middle of a step");
        self.inner.write(to, bytes)
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.log.obstacle("the host reads in the middle of a step");
        self.inner.read(from, bytes)
    }

    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::Copy { to, from, bytes });
        self.inner.copy(to, from, bytes)
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::Zero { at, bytes });
        self.inner.zero(at, bytes)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::Launch(launch.clone()));
        self.inner.launch(launch)
    }

    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::Multiply(product, at));
        self.inner.multiply(product, at)
    }

    fn supports_fp8(&self) -> bool {
        self.inner.supports_fp8()
    }

    fn multiply_fp8(&mut self, product: Fp8Product, at: Fp8Operands) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::MultiplyFp8(product, at));
        self.inner.multiply_fp8(product, at)
    }

    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String> {
        self.inner.fuses(attention, pass)
    }

    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::Attend(*attention, pass, workspace));
        self.inner.attend(attention, pass, workspace)
    }

    fn fuser(&self) -> String {
        self.inner.fuser()
    }

    fn stop_when(&mut self, flag: StopFlag) {
        self.inner.stop_when(flag);
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.log.obstacle("the host waits in the middle of a step");
        self.inner.finish()
    }

    fn mark(&mut self) -> Result<(), DeviceError> {
        self.log.obstacle("ops are timed");
        self.inner.mark()
    }

    fn marks(&mut self) -> Result<Vec<f64>, DeviceError> {
        self.inner.marks()
    }

    fn used(&self) -> Option<InUse> {
        self.inner.used()
    }

    fn about(&self) -> About {
        self.inner.about()
    }

    fn new_group(&mut self) -> Result<GroupName, DeviceError> {
        self.inner.new_group()
    }

    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError> {
        self.inner.enter(group, membership)
    }

    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError> {
        self.log.add(|| Recorded::Collective(group, work, number));
        self.inner.collective(group, work, number)
    }

    fn capture(&mut self, recorded: &[Recorded]) -> Result<Graph, DeviceError> {
        self.inner.capture(recorded)
    }

    fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError> {
        self.inner.replay(graph)
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        self.inner.clear()
    }
}
