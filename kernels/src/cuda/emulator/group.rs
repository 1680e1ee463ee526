//! Collectives among emulators of a process, as NCCL's among GPUs: every member brings its numbers, and goes on when all have.

use super::order::Clock;
use crate::cuda::collective::{GroupName, Membership};
use crate::cuda::launch::DeviceError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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
