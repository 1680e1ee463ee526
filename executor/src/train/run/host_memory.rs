//! Whether the memory of this host is enough for the ranks that run on it, asked before anything is allocated.

use crate::error::RunError;
use crate::train::settings::Settings;
use std::fs;
use std::ops::Range;
use trainwright_lower::memory::plan_memory;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::units::Bytes;

/// Refuses a plan some of whose `ranks`, which share this host, would not find memory.
///
/// # Errors
/// `Memory`. A host that does not say how much memory is available is taken to have enough, and GPUs say it themselves.
pub(crate) fn check(plan: &Plan, settings: &Settings, ranks: Range<usize>) -> Result<(), RunError> {
    needed(plan, settings, ranks.clone()).map_or(Ok(()), |needed| check_bytes(needed, ranks))
}

/// Refuses `ranks` that share this host if it has fewer bytes than they need.
///
/// # Errors
/// As `check`.
pub(crate) fn check_bytes(needed: Bytes, ranks: Range<usize>) -> Result<(), RunError> {
    match available_memory() {
        Some(available) if needed > available => {
            Err(RunError::Memory { ranks: ranks.len(), needed, available })
        }
        _ => Ok(()),
    }
}

/// What the ranks hold at their peaks; `None` if they compute on GPUs.
fn needed(plan: &Plan, settings: &Settings, ranks: Range<usize>) -> Option<Bytes> {
    let mut plan = plan.clone();
    if !settings.device.runs_cuda_kernels {
        // Processors compute everything in f32.
        plan.job.precision = Precision::Fp32;
    } else if settings.device.bare.is_none_or(|bare| !bare.are_emulated) {
        return None;
    }
    let by_pipeline_rank = plan_memory(&plan);
    // What libraries of GPUs hold is not needed here.
    let of_rank = |rank| {
        let memory = by_pipeline_rank.get(plan.mesh.coordinates(rank).pipeline)?;
        Some(memory.total() - memory.overhead + memory.host)
    };
    ranks.map(of_rank).try_fold(Bytes::ZERO, |sum, memory| Some(sum + memory?))
}

/// Bytes that this process may still allocate; `None` if the system does not say.
pub(crate) fn available_memory() -> Option<Bytes> {
    available(&|path| fs::read_to_string(path).ok())
}

/// Bytes of the host's memory; `None` if the system does not say.
pub(crate) fn total_memory() -> Option<Bytes> {
    let bytes = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?.checked_mul(1024)?;
    Some(Bytes::new(bytes as f64))
}

/// Bytes that this process may still allocate: what the system has, and what its control groups leave. `read` gives a
/// file's text.
fn available(read: &dyn Fn(&str) -> Option<String>) -> Option<Bytes> {
    let free = field(&read("/proc/meminfo")?, "MemAvailable:")?.checked_mul(1024)?;
    let mut least = free;
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let mut group = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    while !group.is_empty() {
        let of_group = |name: &str| read(&format!("/sys/fs/cgroup{}/{name}", group.trim_end_matches('/')));
        let number = |text: String| text.trim().parse::<u64>().ok();
        if let (Some(most), Some(used)) =
            (of_group("memory.max").and_then(number), of_group("memory.current").and_then(number))
        {
            // The system drops pages of files that nobody used lately before it ends a process.
            let files = of_group("memory.stat").and_then(|text| field(&text, "inactive_file")).unwrap_or(0);
            least = least.min(most.saturating_sub(used.saturating_sub(files)));
        }
        group = match group.rsplit_once('/') {
            Some(("", rest)) if !rest.is_empty() => "/",
            Some((parent, _)) => parent,
            None => "",
        };
    }
    Some(Bytes::new(least as f64))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_system_and_its_control_groups_is_available() {
        let check = |files: &[(&str, &str)], expected: Option<f64>| {
            let read =
                |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.to_string());
            assert_eq!(available(&read), expected.map(Bytes::new), "{files:?}");
        };
        let system = ("/proc/meminfo", "MemTotal:       99 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\n");
        check(&[], None);
        check(&[system], Some(8192.0));
        let groups = ("/proc/self/cgroup", "0::/jobs/one\n");
        let none = ("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
        let parent =
            [("/sys/fs/cgroup/jobs/memory.max", "5000\n"), ("/sys/fs/cgroup/jobs/memory.current", "3000\n")];
        check(&[system, groups, none], Some(8192.0));
        check(&[&[system, groups, none][..], &parent].concat(), Some(2000.0));
        let files = ("/sys/fs/cgroup/jobs/memory.stat", "anon 1000\ninactive_file 500\n");
        check(&[&[system, groups, files][..], &parent].concat(), Some(2500.0));
        let root = [("/sys/fs/cgroup/memory.max", "10\n"), ("/sys/fs/cgroup/memory.current", "4\n")];
        check(&[&[system, ("/proc/self/cgroup", "0::/\n")][..], &root].concat(), Some(6.0));
        check(&[&[system, groups][..], &root].concat(), Some(6.0));
    }
}
