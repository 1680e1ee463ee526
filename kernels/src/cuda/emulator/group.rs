//! Collectives and messages between emulators of a process, as NCCL's between GPUs. Each member of a collective contributes its array
//! and goes on when all have. A message is kept here from send to receive.

use super::order::{Clock, Name};
use crate::cuda::collective::{GroupName, Membership};
use crate::cuda::device::StopFlag;
use crate::cuda::error::DeviceError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One member's array, with the clock of its stream.
pub(super) type Contribution = (Vec<f32>, Clock);

/// Collectives that some members have not left, by group and number: the contributions, and how many members have left.
type Exchanges = BTreeMap<(GroupName, u64), (Vec<Option<Arc<Contribution>>>, usize)>;

static EXCHANGES: Mutex<Exchanges> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();

/// Time limit for the other members, which may have failed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A name unique in this process.
pub(super) fn new_name() -> GroupName {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let mut name = [0; 128];
    name[..8].copy_from_slice(&NAMES.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    name
}

/// How many members have entered each group.
static ENTERED: Mutex<BTreeMap<GroupName, usize>> = Mutex::new(BTreeMap::new());
static ENTERS: Condvar = Condvar::new();

/// How often a waiting member checks whether the run has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits while something is missing, at most `timeout` or until the run ends. The lock, and whether it is there.
fn wait_while<'a, T>(
    (changed, mut lock): (&Condvar, MutexGuard<'a, T>),
    (timeout, stop): (Duration, &StopFlag),
    is_missing: impl Fn(&T) -> bool,
) -> Result<(MutexGuard<'a, T>, bool), DeviceError> {
    let until = Instant::now() + timeout;
    while is_missing(&lock) {
        if stop.load(Ordering::Relaxed) {
            return Err(DeviceError::Stopped);
        }
        if Instant::now() >= until {
            return Ok((lock, false));
        }
        let pause = POLL_INTERVAL.min(timeout);
        lock = changed.wait_timeout(lock, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
    Ok((lock, true))
}

/// Waits until all members have entered a group, as NCCL waits to connect them.
pub(super) fn enter(group: &Membership, stop: &StopFlag) -> Result<(), DeviceError> {
    enter_within(group, (TIMEOUT, stop))
}

fn enter_within(group: &Membership, timeout: (Duration, &StopFlag)) -> Result<(), DeviceError> {
    let mut entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    *entered.entry(group.name).or_default() += 1;
    ENTERS.notify_all();
    let is_short = |entered: &BTreeMap<GroupName, usize>| entered[&group.name] < group.size;
    let (entered, _) = wait_while((&ENTERS, entered), timeout, is_short)?;
    match entered[&group.name] {
        came if came < group.size => {
            Err(DeviceError::Emulator(format!("{came} of {} members entered a group", group.size)))
        }
        _ => Ok(()),
    }
}

/// Refuses a group that not all members have entered: with NCCL the first send would block the host until its receive is enqueued, and
/// two ranks that enqueue them in opposite orders would deadlock.
fn require_entered(group: &Membership) -> Result<(), DeviceError> {
    let entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    match entered.get(&group.name).is_some_and(|came| *came >= group.size) {
        true => Ok(()),
        false => Err(DeviceError::Emulator("a group is used that not all members have entered".into())),
    }
}

/// Contributes to the group's collective of that number. All members' contributions.
pub(super) fn exchange(
    group: &Membership,
    number: u64,
    contribution: Contribution,
    stop: &StopFlag,
) -> Result<Vec<Arc<Contribution>>, DeviceError> {
    require_entered(group)?;
    let key = (group.name, number);
    let mut exchanges = EXCHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    exchanges.entry(key).or_insert_with(|| (vec![None; group.size], 0)).0[group.place] =
        Some(Arc::new(contribution));
    CHANGED.notify_all();
    let is_short = |exchanges: &Exchanges| exchanges[&key].0.iter().any(Option::is_none);
    let (mut exchanges, came) = wait_while((&CHANGED, exchanges), (TIMEOUT, stop), is_short)?;
    if !came {
        return Err(DeviceError::Emulator(format!("not all {} members came to a collective", group.size)));
    }
    let (brought, left) = exchanges.get_mut(&key).expect("nobody takes it away before all have left");
    let all = brought.iter().flatten().cloned().collect();
    *left += 1;
    if *left == group.size {
        exchanges.remove(&key);
    }
    Ok(all)
}

/// Messages not yet received, by pair and number, with the work that sends them.
type Messages = BTreeMap<(GroupName, u64), (Contribution, (Name, u64))>;

static MESSAGES: Mutex<Messages> = Mutex::new(BTreeMap::new());
static SENT: Condvar = Condvar::new();

fn messages() -> MutexGuard<'static, Messages> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends an array as the work `by`.
pub(super) fn send(
    pair: &Membership,
    number: u64,
    contribution: Contribution,
    by: (Name, u64),
) -> Result<(), DeviceError> {
    require_entered(pair)?;
    messages().insert((pair.name, number), (contribution, by));
    SENT.notify_all();
    Ok(())
}

/// Receives the message of the pair's other member.
pub(super) fn receive(pair: &Membership, number: u64, stop: &StopFlag) -> Result<Contribution, DeviceError> {
    require_entered(pair)?;
    let key = (pair.name, number);
    let is_missing = |messages: &Messages| !messages.contains_key(&key);
    let (mut messages, _) = wait_while((&SENT, messages()), (TIMEOUT, stop), is_missing)?;
    let sent = messages.remove(&key).map(|(brought, _)| brought);
    sent.ok_or_else(|| DeviceError::Emulator("nobody sent what was to be received".into()))
}

/// On a GPU a send is over only when it is received, so waiting for a send may deadlock if the receiver waits for later work. So nobody
/// may wait for a message that nobody has begun to receive.
///
/// # Panics
/// If work with the clock `known` does.
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

    /// The results of two members that each enter two groups in their order.
    fn enter_both(orders: [[Membership; 2]; 2], timeout: Duration) -> [Result<(), DeviceError>; 2] {
        let enter = |groups: [Membership; 2]| {
            let stop = StopFlag::default();
            groups.iter().try_for_each(|group| enter_within(group, (timeout, &stop)))
        };
        std::thread::scope(|scope| {
            orders
                .map(|groups| scope.spawn(move || enter(groups)))
                .map(|member| member.join().expect("entering does not panic"))
        })
    }

    #[test]
    fn nobody_uses_a_group_that_not_all_have_entered() {
        let ([one, other], stop) = (pair(), StopFlag::default());
        let work = || Order::new(1).work().0;
        let brought = || (vec![1.0], Clock::default());
        let refused = |used: Result<(), DeviceError>| used.unwrap_err().to_string();
        assert!(refused(send(&one, 0, brought(), work())).contains("not all members have entered"));
        assert!(refused(receive(&other, 0, &stop).map(drop)).contains("not all members have entered"));
        assert!(
            refused(exchange(&one, 0, brought(), &stop).map(drop)).contains("not all members have entered")
        );
        let alone = enter_within(&one, (Duration::ZERO, &stop)).unwrap_err().to_string();
        assert!(alone.contains("1 of 2 members"), "{alone}");
        assert!(send(&one, 0, brought(), work()).is_err());
        enter_within(&other, (Duration::ZERO, &stop)).unwrap();
        send(&one, 0, brought(), work()).unwrap();
        assert_eq!(receive(&other, 0, &stop).unwrap().0, [1.0]);
    }

    #[test]
    fn who_waits_for_others_when_the_run_ends_waits_no_longer() {
        let ([one, other], stop) = (pair(), StopFlag::default());
        stop.store(true, Ordering::Relaxed);
        assert_eq!(enter(&one, &stop), Err(DeviceError::Stopped));
        // All have entered then, and the other one comes to no collective.
        enter(&other, &stop).unwrap();
        let exchanged = exchange(&one, 0, (vec![1.0], Clock::default()), &stop);
        assert_eq!(exchanged.map(drop), Err(DeviceError::Stopped));
        assert_eq!(receive(&one, 1, &stop).map(drop), Err(DeviceError::Stopped));
    }

    #[test]
    fn groups_are_entered_in_one_order() {
        let ([a, b], [c, d]) = (pair(), pair());
        let in_one_order = enter_both([[a, c], [b, d]], Duration::from_secs(20));
        assert_eq!(in_one_order, [Ok(()), Ok(())]);
        // Both wait in the group that they enter first.
        let ([a, b], [c, d]) = (pair(), pair());
        let crossed = enter_both([[a, c], [d, b]], Duration::from_millis(50));
        assert!(crossed.iter().any(Result::is_err), "{crossed:?}");
    }
}
