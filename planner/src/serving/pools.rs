//! The integer program over pools.
//!
//! ```text
//! min  Σ c_j x_j                       x_j instances of option j, each of g_j GPUs and worth c_j; z requests a second go apart
//! s.t. Σ_whole r_j x_j + z ≥ R         r_j is the rate that an instance of option j keeps
//!      Σ_prefill r_j x_j ≥ z
//!      Σ_decode r_j x_j ≥ z
//!      Σ_{j of kind k} g_j x_j ≤ G_k
//! ```
//!
//! Where no rate is asked, R is a variable and to be most. Of the mixes of least worth, one with the fewest different options
//! is taken: a second program with a binary u_j, x_j ≤ (G_k / g_j) u_j. Solutions are checked against the rows before they count.

use super::options::Role;
use crate::solver::{Answer, IntegerProgram, Relation, solve};
use trainwright_spec::units::Seconds;

/// How long the solver may take for each program.
const TIME_LIMIT: Seconds = Seconds::new(20.0);
/// What sums of a solution may be beside their rows, as a part of the rate.
const SLACK: f64 = 1e-7;

/// An option as the program sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionOfPool {
    /// The kind of its nodes.
    pub kind: usize,
    /// What it does.
    pub role: Role,
    /// GPUs of an instance.
    pub gpus: usize,
    /// Requests a second that an instance keeps.
    pub rate: f64,
    /// What an instance is worth: GPUs, or dollars an hour.
    pub worth: f64,
}

/// How many instances of each option.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Instances of each option.
    pub instances: Vec<usize>,
    /// What they are worth in all.
    pub worth: f64,
    /// Requests a second that all keep.
    pub rate: f64,
    /// Whether the solver proved that no mix is worth less; else it is the best that was found.
    pub proved: bool,
}

/// The mix of least worth that keeps `rate`, or that keeps most where none is asked; `None` if no mix does. `gpus` has the GPUs
/// of each kind.
pub fn best_mix(options: &[OptionOfPool], gpus: &[usize], rate: Option<f64>) -> Option<Mix> {
    let useful: Vec<usize> = (0..options.len()).filter(|index| !is_replaceable(options, *index)).collect();
    let columns: Vec<OptionOfPool> = useful.iter().map(|index| options[*index]).collect();
    let mix = best_of_useful(&columns, gpus, rate)?;
    let mut instances = vec![0; options.len()];
    for (index, count) in useful.iter().zip(&mix.instances) {
        instances[*index] = *count;
    }
    Some(Mix { instances, ..mix })
}

/// Whether instances of another option, on the same GPUs, keep as much for no more worth: then no mix needs this one. Of equals the
/// first stays.
fn is_replaceable(options: &[OptionOfPool], index: usize) -> bool {
    let mine = &options[index];
    options.iter().enumerate().any(|(place, other)| {
        let times = (mine.gpus / other.gpus.max(1)) as f64;
        let (rate, worth) = (times * other.rate, times * other.worth);
        let replaces = (other.kind, other.role) == (mine.kind, mine.role)
            && mine.gpus.is_multiple_of(other.gpus)
            && rate >= mine.rate
            && worth <= mine.worth;
        let is_equal = other.gpus == mine.gpus && other.rate == mine.rate && other.worth == mine.worth;
        place != index && replaces && (!is_equal || place < index)
    })
}

fn best_of_useful(options: &[OptionOfPool], gpus: &[usize], rate: Option<f64>) -> Option<Mix> {
    let Some(rate) = rate else {
        let most = solved(options, gpus, None, None)?;
        let same = Some(most.rate * (1.0 - SLACK));
        return best_of_useful(options, gpus, same).filter(|_| most.proved).or(Some(most));
    };
    let least = solved(options, gpus, Some(rate), None)?;
    let fewest = solved(options, gpus, Some(rate), Some(least.worth));
    let is_as_good = |mix: &Mix| mix.proved && mix.worth <= least.worth * (1.0 + SLACK);
    Some(fewest.filter(is_as_good).map(|mix| Mix { proved: least.proved, ..mix }).unwrap_or(least))
}

/// The solution of a program, or a greedy one where the solver gives up; `None` if there is none.
fn solved(options: &[OptionOfPool], gpus: &[usize], rate: Option<f64>, worth: Option<f64>) -> Option<Mix> {
    let (instances, proved) = match program(options, gpus, rate, worth) {
        Answer::Optimal { values, .. } => {
            let whole = |value: &f64| value.round().max(0.0) as usize;
            (values[..options.len()].iter().map(whole).collect(), true)
        }
        Answer::Infeasible => return None,
        Answer::Failed => (greedy(options, gpus, rate)?, false),
    };
    let mix = mix(options, gpus, instances, proved)?;
    (mix.rate > 0.0 && mix.rate >= rate.unwrap_or(0.0) * (1.0 - SLACK)).then_some(mix)
}

/// Solves the program; with `worth` the second one, for mixes of no more worth.
fn program(options: &[OptionOfPool], gpus: &[usize], rate: Option<f64>, worth: Option<f64>) -> Answer {
    let mut program = IntegerProgram::default();
    // Rates are scaled to that which is asked, or to all that could be.
    let most = |option: &OptionOfPool| (gpus[option.kind] / option.gpus) as f64;
    let scale = rate.unwrap_or_else(|| options.iter().map(|option| option.rate * most(option)).sum());
    let scale = scale.max(f64::MIN_POSITIVE);
    let dearest = options.iter().map(|option| option.worth).fold(f64::MIN_POSITIVE, f64::max);
    let seeks_rate = rate.is_none();
    let columns: Vec<usize> = options
        .iter()
        .map(|option| {
            let cost = if seeks_rate || worth.is_some() { 0.0 } else { option.worth / dearest };
            program.integer(cost, most(option))
        })
        .collect();
    let apart = program.column(0.0, 1.0);
    let of = |role: Role| {
        let mine = options.iter().zip(&columns).filter(move |(option, _)| option.role == role);
        mine.map(|(option, column)| (*column, option.rate / scale)).collect::<Vec<_>>()
    };
    let mut all = of(Role::Whole);
    all.push((apart, 1.0));
    if seeks_rate {
        let kept = program.column(-1.0, 1.0);
        all.push((kept, -1.0));
        program.row(all, Relation::AtLeast, 0.0);
    } else {
        program.row(all, Relation::AtLeast, 1.0);
    }
    for role in [Role::Prefill, Role::Decode] {
        let mut pool = of(role);
        pool.push((apart, -1.0));
        program.row(pool, Relation::AtLeast, 0.0);
    }
    for (kind, gpus) in gpus.iter().enumerate() {
        let mine = options.iter().zip(&columns).filter(|(option, _)| option.kind == kind);
        let terms = mine.map(|(option, column)| (*column, option.gpus as f64)).collect();
        program.row(terms, Relation::AtMost, *gpus as f64);
    }
    if let Some(worth) = worth {
        let terms = options.iter().zip(&columns).map(|(option, column)| (*column, option.worth / dearest));
        program.row(terms.collect(), Relation::AtMost, worth / dearest * (1.0 + SLACK));
        for (option, column) in options.iter().zip(&columns) {
            let used = program.binary(1.0);
            program.row(vec![(*column, 1.0), (used, -most(option))], Relation::AtMost, 0.0);
        }
    }
    solve(&program, TIME_LIMIT)
}

/// A mix with its sums; `None` if it has more GPUs than there are.
fn mix(options: &[OptionOfPool], gpus: &[usize], instances: Vec<usize>, proved: bool) -> Option<Mix> {
    let sum = |of: &dyn Fn(&OptionOfPool) -> f64| -> f64 {
        options.iter().zip(&instances).map(|(option, count)| *count as f64 * of(option)).sum()
    };
    let fits = gpus.iter().enumerate().all(|(kind, gpus)| {
        sum(&|option| if option.kind == kind { option.gpus as f64 } else { 0.0 }) <= *gpus as f64
    });
    let rate = |role: Role| sum(&|option| if option.role == role { option.rate } else { 0.0 });
    let apart = rate(Role::Prefill).min(rate(Role::Decode));
    let (worth, rate) = (sum(&|option| option.worth), rate(Role::Whole) + apart);
    fits.then_some(Mix { instances, worth, rate, proved })
}

/// Instances of the option of whole requests that is worth least for its rate, then of the next: what is left where the solver
/// gives up.
fn greedy(options: &[OptionOfPool], gpus: &[usize], rate: Option<f64>) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..options.len()).collect();
    order.retain(|index| options[*index].role == Role::Whole && options[*index].rate > 0.0);
    let dear = |index: usize| options[index].worth / options[index].rate;
    order.sort_by(|one, other| dear(*one).total_cmp(&dear(*other)).then(one.cmp(other)));
    let (mut left, mut free) = (rate.unwrap_or(f64::INFINITY), gpus.to_vec());
    let mut instances = vec![0; options.len()];
    for index in order {
        let option = &options[index];
        let wanted = (left / option.rate).ceil().max(0.0);
        let count = (free[option.kind] / option.gpus).min(wanted.min(1e9) as usize);
        instances[index] = count;
        free[option.kind] -= count * option.gpus;
        left -= count as f64 * option.rate;
    }
    (rate.is_none() || left <= 0.0).then_some(instances)
}
