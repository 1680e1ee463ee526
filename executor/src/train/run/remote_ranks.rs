//! Ranks of other processes: their reports, and the reports and statuses that this process sends them.

use super::messages::{Message, RankEnd, Report, StepMessage};
use super::supervise::Run;

use crate::comm::heartbeat::Watchdog;
use crate::comm::transport::{Envelope, Tag};
use crate::error::{Fault, RunError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

impl Run {
    /// A thread for each rank of another process, which sends it the status of the rank here, whatever that is doing.
    pub fn heartbeat_threads(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>, RunError> {
        let Some(local) = self.here.ranks.first().copied() else { return Ok(Vec::new()) };
        let remote =
            (0..self.program.ranks.len()).filter(|rank| self.here.transport.peer_status(*rank).is_some());
        let start = |to: usize| {
            let run = Arc::clone(self);
            let interval = Watchdog::new(run.settings.patience).interval();
            let beat = move || {
                let send = || run.here.transport.send_status(to, &run.heartbeats.rank(local).to_bytes());
                while !run.ends_heartbeats.load(Ordering::Relaxed) {
                    send();
                    std::thread::park_timeout(interval);
                }
                // Once more: a rank that has ended must not look like one that hangs.
                send();
            };
            let thread = std::thread::Builder::new().name(format!("heartbeat to rank {to}")).spawn(beat);
            thread.map_err(|error| RunError::Threads(error.to_string()))
        };
        remote.map(start).collect::<Result<_, _>>().inspect_err(|_| self.stop())
    }

    /// Passes on the reports of a rank in another process, as if it ran here.
    pub fn follow_remote(&self, rank: usize, reports: &Sender<Message>) {
        let end = self.remote_end(rank, reports).map_err(|fault| self.error_of(rank, fault));
        self.heartbeats.rank(rank).end();
        let _ = reports.send(Message::End { rank, end: Box::new(end) });
    }

    fn remote_end(&self, rank: usize, reports: &Sender<Message>) -> Result<RankEnd, Fault> {
        let transport = &self.here.transport;
        let envelope = Envelope { from: rank, to: 0, tag: Tag::Report };
        let lost = || Fault::Lost { rank, how: "what it says of its steps cannot be read".into() };
        loop {
            match Report::from_bytes(rank, &transport.receive_bytes(envelope)?).ok_or_else(lost)? {
                Report::Step(message) => drop(reports.send(Message::Step(message))),
                Report::End(end) => return Ok(end),
            }
        }
    }

    /// Reports a step to rank 0, which is in another process.
    pub fn report_to_leader(&self, message: StepMessage) {
        let envelope = Envelope { from: message.rank, to: 0, tag: Tag::Report };
        self.here.transport.send_bytes(envelope, Report::step_to_bytes(&message));
    }
}
