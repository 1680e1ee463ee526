//! How much of this machine other programs use while something is measured.

use std::fs;

/// Clock ticks of all cores, and of this process with its children that have ended, since their starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticks {
    all: u64,
    busy: u64,
    own: u64,
}

impl Ticks {
    /// Those of now; `None` if the system does not say.
    pub fn now() -> Option<Self> {
        Self::of(&fs::read_to_string("/proc/stat").ok()?, &fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// From the texts of Linux's files: user, nice, system, idle, waiting for drives, interrupts in two kinds, stolen by
    /// other virtual machines.
    fn of(machine: &str, process: &str) -> Option<Self> {
        let cores = machine.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let cores: Vec<u64> = cores.split_whitespace().take(8).map_while(|text| text.parse().ok()).collect();
        let [_, _, _, idle, waiting, ..] = cores[..] else { return None };
        let all: u64 = cores.iter().sum();
        // The name in parentheses may have spaces; behind it, user and system time are the 12th and the 13th, and the children's
        // the next two.
        let fields = process.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
        let own: Option<u64> = fields.map(|field| field.parse::<u64>().ok()).sum();
        Some(Self { all, busy: all - idle - waiting, own: own? })
    }

    /// The part of the cores' time that other programs took from then until now, 0 to 1; `None` if no time has passed.
    pub fn others_until(self, now: Self) -> Option<f64> {
        let [all, busy, own] = [now.all - self.all, now.busy - self.busy, now.own - self.own];
        (all > 0).then(|| busy.saturating_sub(own) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_what_is_busy_without_this_process() {
        let ticks = |cores: &str, own: [u64; 2]| {
            let process = format!("7 (a (b) c) S 1 7 7 0 -1 0 1 2 3 4 {} {} 5 5 20", own[0], own[1]);
            Ticks::of(&format!("cpu  {cores} 9 9\ncpu0 1\n"), &process).unwrap()
        };
        let (then, now) = (ticks("10 0 5 100 1 0 0 0", [3, 1]), ticks("50 10 15 150 11 0 0 10", [33, 11]));
        // 130 ticks more, 70 of them busy, 40 of those this process's.
        assert_eq!(then.others_until(now), Some(30.0 / 130.0));
        assert_eq!(then.others_until(then), None);
        assert_eq!(Ticks::of("cpu 1 2", "7 (a) S"), None);
    }
}
