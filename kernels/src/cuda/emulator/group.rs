//! Collectives and messages among emulators of a process, as NCCL's among GPUs. Every member of a collective brings its numbers,
//! and goes on when all have. A message lies here from when it is sent until it is received.

use super::order::{Clock, Name};
use crate::cuda::collective::{GroupName, Membership};
use crate::cuda::device::StopFlag;
use crate::cuda::error::DeviceError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// How often a member that waits looks whether the run has ended.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// Waits while something is missing, and gives up when the run ends or after so long. The lock, and whether it came.
fn wait_while<'a, T>(
    (changed, mut lock): (&Condvar, MutexGuard<'a, T>),
    (patience, stop): (Duration, &StopFlag),
    is_missing: impl Fn(&T) -> bool,
) -> Result<(MutexGuard<'a, T>, bool), DeviceError> {
    let until = Instant::now() + patience;
    while is_missing(&lock) {
        if stop.load(Ordering::Relaxed) {
            return Err(DeviceError::Stopped);
        }
        if Instant::now() >= until {
            return Ok((lock, false));
        }
        let pause = LOOKS_EVERY.min(patience);
        lock = changed.wait_timeout(lock, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
    Ok((lock, true))
}

/// Waits until all members are in a group, as they are connected on a GPU.
pub(super) fn enter(group: &Membership, stop: &StopFlag) -> Result<(), DeviceError> {
    enter_within(group, (PATIENCE, stop))
}

fn enter_within(group: &Membership, patience: (Duration, &StopFlag)) -> Result<(), DeviceError> {
    let mut entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    *entered.entry(group.name).or_default() += 1;
    ENTERS.notify_all();
    let is_short = |entered: &BTreeMap<GroupName, usize>| entered[&group.name] < group.size;
    let (entered, _) = wait_while((&ENTERS, entered), patience, is_short)?;
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
pub(super) fn meet(
    group: &Membership,
    number: u64,
    own: Brought,
    stop: &StopFlag,
) -> Result<Vec<Arc<Brought>>, DeviceError> {
    require_entered(group)?;
    let key = (group.name, number);
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    meetings.entry(key).or_insert_with(|| (vec![None; group.size], 0)).0[group.place] = Some(Arc::new(own));
    CHANGED.notify_all();
    let is_short = |meetings: &Meetings| meetings[&key].0.iter().any(Option::is_none);
    let (mut meetings, came) = wait_while((&CHANGED, meetings), (PATIENCE, stop), is_short)?;
    if !came {
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
pub(super) fn receive(pair: &Membership, number: u64, stop: &StopFlag) -> Result<Brought, DeviceError> {
    require_entered(pair)?;
    let key = (pair.name, number);
    let is_missing = |messages: &Messages| !messages.contains_key(&key);
    let (mut messages, _) = wait_while((&SENT, messages()), (PATIENCE, stop), is_missing)?;
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
        let enter = |groups: [Membership; 2]| {
            let stop = StopFlag::default();
            groups.iter().try_for_each(|own| enter_within(own, (patience, &stop)))
        };
        std::thread::scope(|scope| {
            orders
                .map(|groups| scope.spawn(move || enter(groups)))
                .map(|own| own.join().expect("entering does not panic"))
        })
    }

    #[test]
    fn nobody_uses_a_group_that_not_all_have_entered() {
        let ([own, other], stop) = (pair(), StopFlag::default());
        let work = || Order::new(1).work().0;
        let brought = || (vec![1.0], Clock::default());
        let refused = |used: Result<(), DeviceError>| used.unwrap_err().to_string();
        assert!(refused(send(&own, 0, brought(), work())).contains("not all members have entered"));
        assert!(refused(receive(&other, 0, &stop).map(drop)).contains("not all members have entered"));
        assert!(refused(meet(&own, 0, brought(), &stop).map(drop)).contains("not all members have entered"));
        let alone = enter_within(&own, (Duration::ZERO, &stop)).unwrap_err().to_string();
        assert!(alone.contains("1 of 2 members"), "{alone}");
        assert!(send(&own, 0, brought(), work()).is_err());
        enter_within(&other, (Duration::ZERO, &stop)).unwrap();
        send(&own, 0, brought(), work()).unwrap();
        assert_eq!(receive(&other, 0, &stop).unwrap().0, [1.0]);
    }

    #[test]
    fn who_waits_for_others_when_the_run_ends_waits_no_longer() {
        let ([own, other], stop) = (pair(), StopFlag::default());
        stop.store(true, Ordering::Relaxed);
        assert_eq!(enter(&own, &stop), Err(DeviceError::Stopped));
        // All have entered then, and the other one comes to no collective.
        enter(&other, &stop).unwrap();
        let met = meet(&own, 0, (vec![1.0], Clock::default()), &stop);
        assert_eq!(met.map(drop), Err(DeviceError::Stopped));
        assert_eq!(receive(&own, 1, &stop).map(drop), Err(DeviceError::Stopped));
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
