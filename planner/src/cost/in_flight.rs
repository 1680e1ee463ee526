//! How many microbatches the stages of a schedule have in flight.

use trainwright_spec::schedule::{Action, ActionKind, PipelineShape, Schedule};

/// Microbatches in flight when a rank has most of them: from forward to the end of backward, or to the end of its first
/// half.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    /// By stage, copies counted.
    pub by_stage: Vec<usize>,
    /// By pipeline rank: the mean over its stages.
    pub mean: Vec<f64>,
    /// By pipeline rank: the least over its stages.
    pub least: Vec<f64>,
    /// By pipeline rank: its peaks under each of `BETWEEN_WEIGHTS`.
    pub peaks: Vec<Vec<Peak>>,
}

/// Microbatches of each stage of a pipeline rank at the instant at which it has most of them.
pub(crate) type Peak = Vec<StageInFlight>;

/// Microbatches of a stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageInFlight {
    /// Which stage, copies counted.
    pub stage: usize,
    /// From forward to backward, or to its first half.
    pub kept: f64,
    /// Between the halves of backward.
    pub between: f64,
}

/// How much a microbatch between the halves of backward may weigh against one before it.
const BETWEEN_WEIGHTS: [f64; 3] = [0.0, 1.0, 100.0];

impl InFlight {
    pub fn of(schedule: &dyn Schedule, shape: PipelineShape) -> Self {
        let stages = schedule.copies() * shape.stages();
        let mut by_stage = vec![0; stages];
        let (mut mean, mut least, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, actions) in schedule.lists(shape).ranks.into_iter().enumerate() {
            let of_rank: Vec<usize> =
                (0..stages).filter(|stage| schedule.rank_of(*stage, shape) == rank).collect();
            let of_weights = BETWEEN_WEIGHTS.map(|weight| peak(&actions, &of_rank, weight));
            // The first weight is 0: a microbatch counts until the end of backward's first half.
            of_weights[0].iter().for_each(|at| by_stage[at.stage] = at.kept as usize);
            let most: f64 = of_weights[0].iter().map(|at| at.kept).sum();
            mean.push(most / of_rank.len() as f64);
            least.push(of_rank.iter().map(|stage| by_stage[*stage]).min().unwrap_or(0) as f64);
            peaks.push(of_weights.to_vec());
        }
        Self { by_stage, mean, least, peaks }
    }
}

/// What a rank with these stages has in flight when it has most, a microbatch between the halves of backward weighed.
fn peak(actions: &[Action], stages: &[usize], between_weight: f64) -> Peak {
    let none = |stage: &usize| StageInFlight { stage: *stage, kept: 0.0, between: 0.0 };
    let mut now: Peak = stages.iter().map(none).collect();
    let (mut peak, mut most) = (now.clone(), 0.0);
    for action in actions {
        let Some(at) = now.iter_mut().find(|at| at.stage == action.stage) else { continue };
        match action.kind {
            ActionKind::Forward => at.kept += 1.0,
            ActionKind::Backward => at.kept -= 1.0,
            ActionKind::Input => (at.kept, at.between) = (at.kept - 1.0, at.between + 1.0),
            ActionKind::Weight => at.between -= 1.0,
        }
        let sum: f64 = now.iter().map(|at| at.kept + between_weight * at.between).sum();
        if sum > most {
            (peak, most) = (now.clone(), sum);
        }
    }
    peak
}
