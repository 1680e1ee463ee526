//! DualPipe: two directions whose passes are run jointly.

use super::chimera::{both_directions, opposite};
use super::{Action, ActionKind, ActionLists, PipelineShape, Schedule};

/// Half of the microbatches go down the ranks, half up; in the middle every rank runs the forward of one direction and
/// the backward of the other as one joint pass, whose communication hides behind the other's compute.
pub struct DualPipe;

impl Schedule for DualPipe {
    fn name(&self) -> &str {
        "dualpipe"
    }

    fn summary(&self) -> &str {
        "two directions, joint forward and backward passes; weights twice, p + 1 activations"
    }

    fn bubble(&self) -> &str {
        "(p/2 - 1) (F&B + B - 3 W) / (m F&B)"
    }

    fn source(&self) -> &str {
        "DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        both_directions(self.name(), shape)?;
        enough(self.name(), shape)
    }

    fn copies(&self) -> usize {
        2
    }

    fn rank_of(&self, stage: usize, shape: PipelineShape) -> usize {
        opposite(stage, shape)
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let (p, each) = (shape.ranks, shape.microbatches / 2);
        let mut lists = ActionLists::default();
        for rank in 0..p {
            // The first direction begins in this rank's half of the pipeline.
            let (down, up) = (Side { stage: rank, first: 0 }, Side { stage: 2 * p - 1 - rank, first: each });
            let sides = if rank < p / 2 { [down, up] } else { [up, down] };
            let mut phases = Phases::new(sides);
            phases.all(p / 2, rank.min(p - 1 - rank), each);
            lists.ranks.push(phases.actions);
            lists.joint.push(phases.joint);
        }
        lists
    }

    /// (p/2 − 1) (F&B + B − 3 W) / (m F&B) for F = I = W and a joint pass F&B that takes F + B: 2 (p/2 − 1) / (3 m).
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 2.0) / (3.0 * shape.microbatches as f64)
    }
}

/// Refuses fewer than two microbatches for each rank.
pub(super) fn enough(name: &str, shape: PipelineShape) -> Result<(), String> {
    let PipelineShape { ranks, microbatches, .. } = shape;
    match microbatches >= 2 * ranks {
        true => Ok(()),
        false => Err(format!(
            "schedule `{name}` needs at least {} microbatches, two for each rank, not {microbatches}",
            2 * ranks
        )),
    }
}

/// One of the two stages of a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    /// Which stage.
    pub stage: usize,
    /// The first microbatch that passes it.
    pub first: usize,
}

/// The actions of a rank in the making. Of its two stages the first gets a microbatch before the second does.
pub(super) struct Phases {
    sides: [Side; 2],
    forwards: [usize; 2],
    backwards: [usize; 2],
    put_off: std::collections::VecDeque<Action>,
    /// Its actions so far.
    pub actions: Vec<Action>,
    /// Positions of joint passes.
    pub joint: Vec<usize>,
}

const FIRST: usize = 0;
const SECOND: usize = 1;

impl Phases {
    pub fn new(sides: [Side; 2]) -> Self {
        let (forwards, backwards) = ([0; 2], [0; 2]);
        Phases {
            sides,
            forwards,
            backwards,
            put_off: Default::default(),
            actions: Vec::new(),
            joint: Vec::new(),
        }
    }

    fn forward(&mut self, side: usize) {
        let Side { stage, first } = self.sides[side];
        let microbatch = first + self.forwards[side];
        self.actions.push(Action { stage, kind: ActionKind::Forward, microbatch });
        self.forwards[side] += 1;
    }

    fn backward(&mut self, side: usize, kind: ActionKind) {
        let Side { stage, first } = self.sides[side];
        let microbatch = first + self.backwards[side];
        self.actions.push(Action { stage, kind, microbatch });
        if kind == ActionKind::Input {
            self.put_off.push_back(Action { stage, kind: ActionKind::Weight, microbatch });
        }
        self.backwards[side] += 1;
    }

    fn weight(&mut self) {
        self.actions.extend(self.put_off.pop_front());
    }

    fn together(&mut self, forward: usize, backward: usize) {
        self.joint.push(self.actions.len());
        self.forward(forward);
        self.backward(backward, ActionKind::Backward);
    }

    /// Everything that a rank does which is the `place`-th from its end of a half of `half` ranks, with `each`
    /// microbatches through each of its stages.
    pub fn all(&mut self, half: usize, place: usize, each: usize) {
        let to_middle = half - place - 1;
        (0..2 * to_middle).for_each(|_| self.forward(FIRST));
        for _ in 0..=place {
            self.forward(FIRST);
            self.forward(SECOND);
        }
        for _ in 0..to_middle {
            self.backward(SECOND, ActionKind::Input);
            self.weight();
            self.forward(SECOND);
        }
        for round in 0..each + place + 1 - 2 * half {
            if round == 0 && to_middle == 0 {
                // The middle ranks have just turned their first microbatch around: its backward needs no partner.
                self.forward(FIRST);
                self.backward(SECOND, ActionKind::Backward);
            } else {
                self.together(FIRST, SECOND);
            }
            self.together(SECOND, FIRST);
        }
        for _ in 0..to_middle {
            self.backward(SECOND, ActionKind::Backward);
            self.together(SECOND, FIRST);
        }
        // From the middle of the last backwards on only the inputs' gradients are urgent.
        for pass in 0..2 * (place + 1) {
            let kind = if pass > place { ActionKind::Input } else { ActionKind::Backward };
            self.backward(if pass.is_multiple_of(2) { SECOND } else { FIRST }, kind);
        }
        for _ in 0..to_middle {
            self.weight();
            self.backward(FIRST, ActionKind::Input);
        }
        while !self.put_off.is_empty() {
            self.weight();
        }
    }
}
