//! A device that can note what it is told, so that all of it can be told again.
//!
//! What is noted are launches, copies, products and collectives with the order of the streams, as they are: a number among a
//! launch's arguments is the same whenever it is told again, and so is an address. What the host must take part in cannot be
//! noted; two recordings of what should be the same work say whether it is.

use super::attention::{Attention, Pass};
use super::collective::{Collective, GroupName, Membership};
use super::device::{About, Device, Graph, InUse, Moment, StopFlag};
use super::eight::{EightOperands, EightProduct};
use super::error::DeviceError;
use super::launch::{Address, Launch, Number};
use super::product::{Operands, Product};
use super::recorded::Told;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// What was noted between two calls.
#[derive(Debug, Default)]
pub struct Recording {
    /// All of it, in order.
    pub told: Vec<Told>,
    /// Why it cannot be told again, if so.
    pub obstacle: Option<&'static str>,
    /// In their order; kept, so that none is taken for another one.
    moments: Vec<Moment>,
}

/// What a recorder notes into.
#[derive(Debug, Clone, Default)]
pub struct Notes(Rc<RefCell<Option<Recording>>>);

impl Notes {
    /// Everything from now on; that stream is selected.
    pub fn begin(&self, selected: usize) {
        let told = vec![Told::Select(selected)];
        *self.0.borrow_mut() = Some(Recording { told, ..Recording::default() });
    }

    /// All since then.
    pub fn end(&self) -> Recording {
        self.0.borrow_mut().take().unwrap_or_default()
    }

    fn add(&self, told: impl FnOnce() -> Told) {
        if let Some(recording) = &mut *self.0.borrow_mut() {
            recording.told.push(told());
        }
    }

    fn obstacle(&self, what: &'static str) {
        if let Some(recording) = &mut *self.0.borrow_mut() {
            recording.obstacle.get_or_insert(what);
        }
    }
}

/// Tells a device what was recorded. All streams that it names begin behind stream 0, which is behind all of them at the end.
/// It is selected then, also where something fails in between.
pub(super) fn tell(device: &mut dyn Device, told: &[Told]) -> Result<(), DeviceError> {
    let done = tell_all(device, told);
    device.select(0).and(done)
}

fn tell_all(device: &mut dyn Device, told: &[Told]) -> Result<(), DeviceError> {
    let named = told.iter().filter_map(|told| match told {
        Told::Select(stream) if *stream > 0 => Some(*stream),
        _ => None,
    });
    let others: BTreeSet<usize> = named.collect();
    device.select(0)?;
    let begin = device.moment()?;
    for other in &others {
        device.select(*other)?;
        device.wait(&begin)?;
    }
    device.select(0)?;
    let mut moments = Vec::new();
    for told in told {
        match told {
            Told::Select(stream) => device.select(*stream)?,
            Told::Moment => moments.push(device.moment()?),
            Told::Wait(number) => device.wait(&moments[*number])?,
            Told::Copy { to, from, bytes } => device.copy(*to, *from, *bytes)?,
            Told::Zero { at, bytes } => device.zero(*at, *bytes)?,
            Told::Launch(launch) => device.launch(launch)?,
            Told::Multiply(product, at) => device.multiply(*product, *at)?,
            Told::MultiplyEight(product, at) => device.multiply_eight(*product, *at)?,
            Told::Attend(attention, pass, workspace) => device.attend(attention, *pass, *workspace)?,
            Told::Collective(group, work, number) => device.collective(*group, *work, *number)?,
        }
    }
    for other in &others {
        device.select(*other)?;
        let end = device.moment()?;
        device.select(0)?;
        device.wait(&end)?;
    }
    Ok(())
}

/// A device, and what it is told while that is noted.
pub struct Recorder {
    inner: Box<dyn Device>,
    notes: Notes,
}

impl Recorder {
    /// Of a device.
    pub fn new(inner: Box<dyn Device>, notes: Notes) -> Self {
        Self { inner, notes }
    }
}

impl Device for Recorder {
    fn select(&mut self, stream: usize) -> Result<(), DeviceError> {
        self.notes.add(|| Told::Select(stream));
        self.inner.select(stream)
    }

    fn moment(&mut self) -> Result<Moment, DeviceError> {
        let moment = self.inner.moment()?;
        if let Some(recording) = &mut *self.notes.0.borrow_mut() {
            recording.told.push(Told::Moment);
            recording.moments.push(moment.clone());
        }
        Ok(moment)
    }

    fn wait(&mut self, moment: &Moment) -> Result<(), DeviceError> {
        if let Some(recording) = &mut *self.notes.0.borrow_mut() {
            match recording.moments.iter().rposition(|other| other.is(moment)) {
                Some(number) => recording.told.push(Told::Wait(number)),
                None => drop(
                    recording.obstacle.get_or_insert("another rank is waited for in the middle of a step"),
                ),
            }
        }
        self.inner.wait(moment)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.notes.obstacle("memory is asked for in the middle of a step");
        self.inner.allocate(bytes)
    }

    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.notes.obstacle("memory is asked for in the middle of a step");
        self.inner.allocate_on_host(bytes)
    }

    fn wait_here(&mut self, moment: &Moment) -> Result<(), DeviceError> {
        self.notes.obstacle("the host waits in the middle of a step");
        self.inner.wait_here(moment)
    }

    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.notes.obstacle("the host computes in the middle of a step");
        self.inner.on_host(at, bytes, work)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.notes.obstacle("the host writes in the middle of a step");
        self.inner.write(to, bytes)
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.notes.obstacle("the host reads in the middle of a step");
        self.inner.read(from, bytes)
    }

    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.notes.add(|| Told::Copy { to, from, bytes });
        self.inner.copy(to, from, bytes)
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        self.notes.add(|| Told::Zero { at, bytes });
        self.inner.zero(at, bytes)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.notes.add(|| Told::Launch(launch.clone()));
        self.inner.launch(launch)
    }

    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError> {
        self.notes.add(|| Told::Multiply(product, at));
        self.inner.multiply(product, at)
    }

    fn multiplies_eight(&self) -> bool {
        self.inner.multiplies_eight()
    }

    fn multiply_eight(&mut self, product: EightProduct, at: EightOperands) -> Result<(), DeviceError> {
        self.notes.add(|| Told::MultiplyEight(product, at));
        self.inner.multiply_eight(product, at)
    }

    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String> {
        self.inner.fuses(attention, pass)
    }

    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError> {
        self.notes.add(|| Told::Attend(*attention, pass, workspace));
        self.inner.attend(attention, pass, workspace)
    }

    fn fuser(&self) -> String {
        self.inner.fuser()
    }

    fn stop_when(&mut self, flag: StopFlag) {
        self.inner.stop_when(flag);
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.notes.obstacle("the host waits in the middle of a step");
        self.inner.finish()
    }

    fn mark(&mut self) -> Result<(), DeviceError> {
        self.notes.obstacle("ops are timed");
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
        self.notes.add(|| Told::Collective(group, work, number));
        self.inner.collective(group, work, number)
    }

    fn make_ready(&mut self, told: &[Told]) -> Result<Graph, DeviceError> {
        self.inner.make_ready(told)
    }

    fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError> {
        self.inner.replay(graph)
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        self.inner.clear()
    }
}
