//! Ranks of other processes: what they say of themselves, and what is said to them.

use super::supervise::Run;
use super::{Message, RankEnd, StepMessage};
use crate::comm::heartbeat::Patience;
use crate::comm::transport::{Route, Tag};
use crate::error::{Fault, RunError};
use crate::train::run::processes::{read_end, read_message, written_message};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

impl Run {
    /// For each rank elsewhere a thread that tells it now and then how the rank here is, whatever that is doing.
    pub fn speakers(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>, RunError> {
        let Some(own) = self.here.own.first().copied() else { return Ok(Vec::new()) };
        let elsewhere =
            (0..self.program.ranks.len()).filter(|rank| self.here.transport.heard(*rank).is_some());
        let speaker = |to: usize| {
            let run = Arc::clone(self);
            let interval = Patience::new(run.settings.patience).interval();
            let speak = move || {
                while !run.silent.load(Ordering::Relaxed) {
                    run.here.transport.say(to, &run.watch.rank(own).sign());
                    std::thread::park_timeout(interval);
                }
                // That it has ended, so that nobody takes it for one that hangs.
                run.here.transport.say(to, &run.watch.rank(own).sign());
            };
            let thread = std::thread::Builder::new().name(format!("signs for rank {to}")).spawn(speak);
            thread.map_err(|error| RunError::Threads(error.to_string()))
        };
        elsewhere.map(speaker).collect::<Result<_, _>>().inspect_err(|_| self.stop())
    }

    /// Hears what a rank in another process says, as if it ran here.
    pub fn hear(&self, rank: usize, reports: &Sender<Message>) {
        let end = self.heard(rank, reports).map_err(|fault| self.error_of(rank, fault));
        self.watch.rank(rank).end();
        let _ = reports.send(Message::End { rank, end: Box::new(end) });
    }

    fn heard(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, Fault> {
        let transport = &self.here.transport;
        let route = Route { from: rank, to: 0, tag: Tag::Report };
        let lost = || Fault::Lost { rank, how: "what it says of its steps cannot be read".into() };
        for _ in self.beginning.step + 1..=self.settings.steps {
            let message = read_message(rank, &transport.receive(route)?).ok_or_else(lost)?;
            let _ = reports.send(Message::Step(message));
        }
        read_end(&transport.receive(route)?).ok_or_else(lost)
    }

    /// Tells rank 0, which is elsewhere, of a step.
    pub fn pass_on(&self, message: StepMessage) {
        let route = Route { from: message.rank, to: 0, tag: Tag::Report };
        self.here.transport.send(route, written_message(&message));
    }
}
