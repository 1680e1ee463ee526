//! How near the bounds are. A bound that is too low stays one, so only a comparison with what it was shows a fault.

use std::collections::BTreeMap;
use trainwright_spec::units::{Bytes, Seconds};

/// The means over the plans of each question, as they were.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/search/tests/nearness.txt");

const HEAD: &str = "# What plans take above their bounds, in % of the bounds, in the mean over the plans of a question: the bound of the
# layout, of the order of its passes, the tight one, and that of the plan's stages; and the memory above its bound.
";

/// How far a mean may rise: nothing but rounding, in percentage points.
const SLACK: f64 = 0.011;

/// The time and the memory of a plan that fits, and what bounds them.
pub(super) struct Bounds {
    pub time: Seconds,
    pub of_time: [Seconds; 4],
    pub needs: Bytes,
    pub memory: Bytes,
}

/// Sums of what plans take above their bounds, and the number of plans, by question.
#[derive(Default)]
pub(super) struct Nearness(BTreeMap<String, ([f64; 5], usize)>);

impl Nearness {
    /// Counts a plan of a question.
    pub(super) fn add(&mut self, question: &str, bounds: &Bounds) {
        let (sums, plans) = self.0.entry(question.to_string()).or_default();
        let times = bounds.of_time.map(|bound| bounds.time / bound);
        let memory = bounds.needs / bounds.memory;
        for (sum, ratio) in sums.iter_mut().zip(times.into_iter().chain([memory])) {
            *sum += 100.0 * (ratio - 1.0);
        }
        *plans += 1;
    }

    /// No mean has risen. With `TRAINWRIGHT_BLESS` set the file gets today's.
    pub(super) fn check(&self) {
        let means = |(sums, plans): &([f64; 5], usize)| sums.map(|sum| sum / *plans as f64);
        if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
            let row = |(question, of): (&String, &([f64; 5], usize))| {
                let means = means(of).map(|mean| format!("{mean:.2}"));
                format!("{question}: {}\n", means.join(" "))
            };
            std::fs::write(FILE, self.0.iter().map(row).fold(HEAD.to_string(), |text, row| text + &row))
                .unwrap();
        }
        let text = std::fs::read_to_string(FILE).unwrap();
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        let before: BTreeMap<&str, Vec<f64>> = rows
            .map(|row| row.split_once(": ").unwrap())
            .map(|(name, means)| (name, means.split(' ').map(|mean| mean.parse().unwrap()).collect()))
            .collect();
        assert!(before.keys().copied().eq(self.0.keys().map(String::as_str)), "the questions are others");
        for (question, of) in &self.0 {
            for (column, (now, before)) in means(of).iter().zip(&before[question.as_str()]).enumerate() {
                assert!(
                    *now <= before + SLACK,
                    "{question}: plans are {now:.2} % above bound {column}, and were {before} %"
                );
            }
        }
    }
}
