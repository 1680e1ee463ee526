//! Collectives and messages among emulators of a process, as NCCL's among GPUs. Every member of a collective brings its numbers,
//! and goes on when all have. A message lies here from when it is sent until it is received.

use super::order::{Clock, Name};
use crate::cuda::collective::{GroupName, Membership};
use crate::cuda::launch::DeviceError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What one member brings, and what its stream knew then.
pub(super) type Brought = (Vec<f32>, Clock);

/// The collectives that not all members have left, by the group and their number in it.
type Meetings = BTreeMap<(GroupName, u64), (Vec<Option<Arc<Brought>>>, usize)>;

static MEETINGS: Mutex<Meetings> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();

/// For how long the others are waited for: none comes who has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other group of this process has.
pub(super) fn new_name() -> GroupName {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let mut name = [0; 128];
    name[..8].copy_from_slice(&NAMES.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    name
}

/// What all members brought to a group's collective of that number.
pub(super) fn meet(group: &Membership, number: u64, own: Brought) -> Result<Vec<Arc<Brought>>, DeviceError> {
    let key = (group.name, number);
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    meetings.entry(key).or_insert_with(|| (vec![None; group.size], 0)).0[group.place] = Some(Arc::new(own));
    CHANGED.notify_all();
    let is_short = |meetings: &mut Meetings| meetings[&key].0.iter().any(Option::is_none);
    let (mut meetings, waited) =
        CHANGED.wait_timeout_while(meetings, PATIENCE, is_short).unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        return Err(DeviceError::Emulator(format!("not all {} members came to a collective", group.size)));
    }
    let (brought, left) = meetings.get_mut(&key).expect("nobody takes it away before all have left");
    let all = brought.iter().flatten().cloned().collect();
    *left += 1;
    if *left == group.size {
        meetings.remove(&key);
    }
    Ok(all)
}

/// The messages that nobody has received, by their pair and number in it, with the work that sends them.
type Messages = BTreeMap<(GroupName, u64), (Brought, (Name, u64))>;

static MESSAGES: Mutex<Messages> = Mutex::new(BTreeMap::new());
static SENT: Condvar = Condvar::new();

fn messages() -> MutexGuard<'static, Messages> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends what `by` has brought.
pub(super) fn send(pair: &Membership, number: u64, own: Brought, by: (Name, u64)) {
    messages().insert((pair.name, number), (own, by));
    SENT.notify_all();
}

/// Receives what the other one of a pair has sent.
pub(super) fn receive(pair: &Membership, number: u64) -> Result<Brought, DeviceError> {
    let key = (pair.name, number);
    let is_missing = |messages: &mut Messages| !messages.contains_key(&key);
    let (mut messages, _) =
        SENT.wait_timeout_while(messages(), PATIENCE, is_missing).unwrap_or_else(PoisonError::into_inner);
    let sent = messages.remove(&key).map(|(brought, _)| brought);
    sent.ok_or_else(|| DeviceError::Emulator("nobody sent what was to be received".into()))
}

/// Who waits until a message is sent, on a GPU, waits until it is received, too: for ever, if its receiver waits for what comes
/// behind. So nobody may wait for a message that nobody has begun to receive.
///
/// # Panics
/// If what waits for `known` does.
pub(super) fn check_received(known: &Clock) {
    let messages = messages();
    let sending = messages.values().map(|(_, by)| *by).find(|by| known.knows(*by));
    drop(messages);
    if let Some(((device, stream), _)) = sending {
        panic!("stream {stream} of device {device} sends what nobody receives yet, and is waited for");
    }
}
