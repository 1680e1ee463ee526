//! Which runs each stage lies in.
//!
//! With a pattern given, it only matters how many layers of each run a rank gets: its stages inside a run share those
//! freely, and the few stages that cross from one run into another have fixed counts.

use super::columns::Chain;

/// Where one stage lies.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// Inside this run, with one layer or more.
    Inside(usize),
    /// Across runs: how many layers of which.
    Across(Vec<(usize, usize)>),
}

/// The place of every stage in order.
pub(super) type Pattern = Vec<Place>;

/// Every pattern in which no stage has more layers than `longest` allows it; none if there are more than `most`.
pub(super) fn patterns(chain: &Chain, longest: &[usize], most: usize) -> Option<Vec<Pattern>> {
    let mut walk = Walk { chain, longest, most, found: Vec::new() };
    walk.run(0, 0, &mut Vec::new()).then_some(walk.found)
}

struct Walk<'a> {
    chain: &'a Chain,
    longest: &'a [usize],
    most: usize,
    found: Vec<Pattern>,
}

impl Walk<'_> {
    /// Continues with the stages from the end of `places` on, in run `run` of which `begun` layers are taken; whether the
    /// patterns found are few enough.
    fn run(&mut self, run: usize, begun: usize, places: &mut Pattern) -> bool {
        let stages = self.longest.len();
        if run == self.chain.runs.len() {
            if places.len() == stages {
                self.found.push(places.clone());
            }
            return self.found.len() <= self.most;
        }
        let left = self.chain.runs[run].count - begun;
        let before = places.len();
        let mut room = 0usize;
        loop {
            let inside = places.len() - before;
            // The run ends with a stage.
            if inside <= left && left <= room && (inside > 0 || left == 0) && !self.run(run + 1, 0, places) {
                return false;
            }
            if places.len() == stages || inside >= left {
                break;
            }
            // Or the next stage takes its last layers and begins a later run.
            let fewest = if inside == 0 { left } else { left.saturating_sub(room).max(1) };
            for tail in fewest..=(left - inside).min(self.longest[places.len()]) {
                if !self.cross(run, tail, places) {
                    return false;
                }
            }
            room = room.saturating_add(self.longest[places.len()]);
            places.push(Place::Inside(run));
        }
        places.truncate(before);
        true
    }

    /// Continues with a stage of `tail` layers of `run`, all of the runs between and some of a later one.
    fn cross(&mut self, run: usize, tail: usize, places: &mut Pattern) -> bool {
        let longest = self.longest[places.len()];
        let mut taken = vec![(run, tail)];
        let mut length = tail;
        for later in run + 1..self.chain.runs.len() {
            let count = self.chain.runs[later].count;
            for head in 1..=count.min(longest - length) {
                let mut across = taken.clone();
                across.push((later, head));
                places.push(Place::Across(across));
                let few = self.run(later, head, places);
                places.pop();
                if !few {
                    return false;
                }
            }
            length += count;
            if length >= longest {
                break;
            }
            taken.push((later, count));
        }
        true
    }
}
