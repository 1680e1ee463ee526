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

/// How many members have entered each group.
static ENTERED: Mutex<BTreeMap<GroupName, usize>> = Mutex::new(BTreeMap::new());
static ENTERS: Condvar = Condvar::new();

/// Waits until all members are in a group, as they are connected on a GPU.
pub(super) fn enter(group: &Membership) -> Result<(), DeviceError> {
    enter_within(group, PATIENCE)
}

fn enter_within(group: &Membership, patience: Duration) -> Result<(), DeviceError> {
    let mut entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    *entered.entry(group.name).or_default() += 1;
    ENTERS.notify_all();
    let is_short = |entered: &mut BTreeMap<GroupName, usize>| entered[&group.name] < group.size;
    let (entered, _) =
        ENTERS.wait_timeout_while(entered, patience, is_short).unwrap_or_else(PoisonError::into_inner);
    match entered[&group.name] {
        came if came < group.size => {
            Err(DeviceError::Emulator(format!("{came} of {} members entered a group", group.size)))
        }
        _ => Ok(()),
    }
}

/// Refuses a group in which not all have met: on a GPU its first message would be told only when its receiver is, and whoever
/// tells both in the other order would wait for ever.
fn require_entered(group: &Membership) -> Result<(), DeviceError> {
    let entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    match entered.get(&group.name).is_some_and(|came| *came >= group.size) {
        true => Ok(()),
        false => Err(DeviceError::Emulator("a group is used that not all members have entered".into())),
    }
}

/// What all members brought to a group's collective of that number.
pub(super) fn meet(group: &Membership, number: u64, own: Brought) -> Result<Vec<Arc<Brought>>, DeviceError> {
    require_entered(group)?;
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
pub(super) fn send(pair: &Membership, number: u64, own: Brought, by: (Name, u64)) -> Result<(), DeviceError> {
    require_entered(pair)?;
    messages().insert((pair.name, number), (own, by));
    SENT.notify_all();
    Ok(())
}

/// Receives what the other one of a pair has sent.
pub(super) fn receive(pair: &Membership, number: u64) -> Result<Brought, DeviceError> {
    require_entered(pair)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::emulator::order::Order;

    fn pair() -> [Membership; 2] {
        let name = new_name();
        [0, 1].map(|place| Membership { name, place, size: 2 })
    }

    /// What two members say of groups that each enters in its order.
    fn enter_both(orders: [[Membership; 2]; 2], patience: Duration) -> [Result<(), DeviceError>; 2] {
        let enter = |groups: [Membership; 2]| groups.iter().try_for_each(|own| enter_within(own, patience));
        std::thread::scope(|scope| {
            orders
                .map(|groups| scope.spawn(move || enter(groups)))
                .map(|own| own.join().expect("entering does not panic"))
        })
    }

    #[test]
    fn nobody_uses_a_group_that_not_all_have_entered() {
        let [own, other] = pair();
        let work = || Order::new(1).work().0;
        let brought = || (vec![1.0], Clock::default());
        let refused = |used: Result<(), DeviceError>| used.unwrap_err().to_string();
        assert!(refused(send(&own, 0, brought(), work())).contains("not all members have entered"));
        assert!(refused(receive(&other, 0).map(drop)).contains("not all members have entered"));
        assert!(refused(meet(&own, 0, brought()).map(drop)).contains("not all members have entered"));
        let alone = enter_within(&own, Duration::ZERO).unwrap_err().to_string();
        assert!(alone.contains("1 of 2 members"), "{alone}");
        assert!(send(&own, 0, brought(), work()).is_err());
        enter_within(&other, Duration::ZERO).unwrap();
        send(&own, 0, brought(), work()).unwrap();
        assert_eq!(receive(&other, 0).unwrap().0, [1.0]);
    }

    #[test]
    fn groups_are_entered_in_one_order() {
        let ([a, b], [c, d]) = (pair(), pair());
        let same = enter_both([[a, c], [b, d]], Duration::from_secs(20));
        assert_eq!(same, [Ok(()), Ok(())]);
        // Both wait in the group that they enter first.
        let ([a, b], [c, d]) = (pair(), pair());
        let crossed = enter_both([[a, c], [d, b]], Duration::from_millis(50));
        assert!(crossed.iter().any(Result::is_err), "{crossed:?}");
    }
}
