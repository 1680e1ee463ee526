//! A step of a reinforcement-learning loop: its phases, their memory, and the other modes.

use super::table::Table;
use super::words::{choices, count, gib};
use serde_json::{Value, json};
use trainwright_planner::rl::{RlCandidate, RlQuestion, RlVerdict, named};
use trainwright_sim::rl::{HostMemory, Lane, PhaseMemory, PhaseTime};
use trainwright_spec::rl::Phase;
use trainwright_spec::units::Seconds;

/// Columns of the drawn timeline.
const WIDTH: usize = 72;

/// A verdict with its question.
pub struct Answer<'a> {
    /// What was asked.
    pub question: &'a RlQuestion,
    /// The answer.
    pub verdict: &'a RlVerdict,
    /// Whether the fewest GPUs were asked.
    pub asks_fewest: bool,
    /// The fewest GPUs, if asked and found.
    pub fewest: Option<usize>,
}

impl Answer<'_> {
    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = self.asked();
        match self.verdict.found.first() {
            Some(best) => text += &self.found(best),
            None => text += "Nothing fits.\n",
        }
        for reason in &self.verdict.reasons {
            text += &format!("no plan    {reason}\n");
        }
        if !self.question.residuals.is_empty() {
            text += "Training may use less than a GPU has, so that it fits with 95 % probability.\n";
        }
        let [tried, fit] = self.verdict.tried;
        text += &format!(
            "{tried} combinations of plans of training with engines were looked at, {fit} of them fit"
        );
        text + &match self.verdict.left_out {
            0 => ".\n".to_string(),
            divisions => format!(
                "; {} of the GPUs\ncannot be faster, by generation or the products of training alone.\n",
                count(divisions, "division")
            ),
        }
    }

    fn asked(&self) -> String {
        let (question, job) = (self.question, &self.question.job);
        format!(
            "{} of {} ({:.1}B parameters) on {} ({} GPUs): {} prompts × {} answers a step,\nprompts of {} tokens, answers of {:.0} in the mean and {} at most; \
             {} × {} of training\n\n",
            job.algorithm.name,
            question.model.name,
            question.model.parameters() as f64 / 1e9,
            question.cluster.name,
            question.cluster.gpus(),
            job.prompts,
            job.rollouts,
            job.prompt,
            job.responses.mean,
            job.responses.most,
            count(job.epochs, "epoch"),
            count(job.mini_batches, "update"),
        )
    }

    fn found(&self, best: &RlCandidate) -> String {
        let RlCandidate { plan, forecast } = best;
        let mut text = String::new();
        if let Some(gpus) = self.fewest {
            text += &format!(
                "{gpus} GPUs are the fewest of those that were tried, in order, on which it fits.\n\n"
            );
        }
        let limit = forecast.limit();
        text += &format!(
            "A step takes {}: {}. {} limits it, {:.0} % of the step. {:.0} tokens/s for each GPU.\n\n",
            seconds(forecast.step),
            named(plan.mode),
            limit.phase.name(),
            100.0 * (limit.time / forecast.step),
            forecast.tokens_per_s_per_gpu,
        );
        let step = forecast.step;
        let shown: Vec<&PhaseTime> =
            forecast.phases.iter().filter(|part| part.phase != Phase::Reward).collect();
        let transferred = shown.iter().any(|part| part.transfers > Seconds::ZERO);
        let mut table = Table::of(&shown)
            .left("phase", |part| part.phase.name())
            .left("GPUs", |part| lane(part.lane, best))
            .right("begins s", |part| format!("{:.1}", part.start.get()))
            .right("takes s", |part| format!("{:.1}", part.time.get()))
            .right("% of step", |part| format!("{:.1}", 100.0 * (part.time / step)))
            .right("of it host copies s", |part| format!("{:.1}", part.copies.get()));
        if transferred {
            table = table.right("of it transfers s", |part| format!("{:.1}", part.transfers.get()));
        }
        text += &table.text();
        text += &format!("\n{}\n", timeline(best));
        text += &Table::of(&forecast.memory)
            .left("GiB of the fullest GPU", |part: &PhaseMemory| part.phase.name())
            .right("first step", |part| gib(part.first()))
            .right("later steps", |part| gib(part.total()))
            .right("state", |part| gib(part.state))
            .right("other models", |part| gib(part.others))
            .right("the phase", |part| gib(part.working))
            .right("of", |part| gib(part.limit))
            .text();
        if let Some(HostMemory { needs, has }) = forecast.host {
            text += &format!(
                "\nhost        {} of {} GiB of a node's memory for what is offloaded",
                gib(needs),
                gib(has)
            );
        }
        let generation = &forecast.generation;
        text += &format!(
            "\ntraining    {} GPUs: {}\nengine      {} of {} with tensor {} on {} GPUs, {:.0} % of their memory\n\
             generation  longest answer {} tokens, {} sequences at once in the mean, {} preemptions; nine tenths are there after {}\n\
             weights     {} over the {}\n\n",
            plan.actor.cluster.gpus(),
            choices(&plan.actor),
            count(generation.replicas, "instance"),
            plan.engine.engine.name,
            plan.engine.tensor,
            plan.generation.gpus(),
            100.0 * plan.engine.engine.batching.memory_share.value,
            generation.longest,
            generation.running,
            generation.preemptions,
            seconds(generation.most_done),
            plan.sync.name(),
            if plan.mode.splits_gpus() { "network" } else { "GPUs that share them" },
        );
        text += &Table::of(&self.verdict.found)
            .left("mode", |found: &RlCandidate| named(found.plan.mode))
            .right("step s", |found| format!("{:.1}", found.forecast.step.get()))
            .right("GPUs of training", |found| found.plan.actor.cluster.gpus())
            .right("of generation", |found| found.plan.generation.gpus())
            .right("generation s", |found| format!("{:.1}", found.forecast.time(Phase::Generation).get()))
            .right("update s", |found| {
                let update =
                    found.forecast.time(Phase::ActorUpdate) + found.forecast.time(Phase::CriticUpdate);
                format!("{:.1}", update.get())
            })
            .left("limited by", |found| found.forecast.limit().phase.name())
            .text();
        text + "\n"
    }

    /// For a program.
    pub fn json(&self) -> Value {
        let phase = |part: &PhaseTime| {
            json!({
                "phase": part.phase.name(), "lane": lane_name(part.lane), "start_s": part.start.get(),
                "time_s": part.time.get(), "host_copies_s": part.copies.get(), "transfers_s": part.transfers.get(),
            })
        };
        let memory = |part: &PhaseMemory| {
            json!({
                "phase": part.phase.name(), "first_step_bytes": part.first().get(), "bytes": part.total().get(),
                "state_bytes": part.state.get(), "moments_bytes": part.moments.get(),
                "other_models_bytes": part.others.get(), "working_bytes": part.working.get(),
                "limit_bytes": part.limit.get(),
            })
        };
        let found = |found: &RlCandidate| {
            let RlCandidate { plan, forecast } = found;
            json!({
                "mode": plan.mode.name(),
                "state_offloaded": matches!(plan.mode, trainwright_spec::rl::Mode::Colocated { offload: true }),
                "step_time_s": forecast.step.get(),
                "tokens_per_s_per_gpu": forecast.tokens_per_s_per_gpu,
                "limited_by": forecast.limit().phase.name(),
                "gpus": plan.gpus(),
                "training_gpus": plan.actor.cluster.gpus(),
                "generation_gpus": plan.generation.gpus(),
                "engine": plan.engine.engine.name,
                "engine_tensor": plan.engine.tensor,
                "instances": forecast.generation.replicas,
                "longest_response_tokens": forecast.generation.longest,
                "phases": forecast.phases.iter().map(phase).collect::<Vec<_>>(),
                "memory": forecast.memory.iter().map(memory).collect::<Vec<_>>(),
                "host_memory": forecast.host.map(|host| json!({
                    "bytes": host.needs.get(), "limit_bytes": host.has.get(),
                })),
                "training": plan.actor,
            })
        };
        json!({
            "verdict": if self.verdict.found.is_empty() { "infeasible" } else { "found" },
            "algorithm": self.question.job.algorithm.name,
            "samples": self.question.job.samples(),
            "fewest_gpus": self.fewest,
            "asks_fewest": self.asks_fewest,
            "plans": self.verdict.found.iter().map(found).collect::<Vec<_>>(),
            "reasons": self.verdict.reasons,
            "tried": self.verdict.tried[0],
            "fit": self.verdict.tried[1],
            "left_out": self.verdict.left_out,
            "unseen": self.verdict.unseen,
        })
    }
}

fn lane(of: Lane, candidate: &RlCandidate) -> String {
    let plan = &candidate.plan;
    match of {
        Lane::Engine => format!("engine, {}", plan.generation.gpus()),
        Lane::Training => format!("training, {}", plan.actor.cluster.gpus()),
        Lane::Both => format!("all, {}", plan.gpus()),
    }
}

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Engine => "engine",
        Lane::Training => "training",
        Lane::Both => "all",
    }
}

/// The step drawn on one line of GPUs or two, a letter for each phase.
fn timeline(candidate: &RlCandidate) -> String {
    let forecast = &candidate.forecast;
    let column = |time: Seconds| ((time / forecast.step) * WIDTH as f64).round() as usize;
    let mut text = String::new();
    let lanes: &[(Lane, &str)] = match candidate.plan.mode.splits_gpus() {
        true => &[(Lane::Engine, "engine"), (Lane::Training, "training")],
        false => &[(Lane::Training, "all GPUs")],
    };
    for (lane, name) in lanes {
        let mut line = vec!['.'; WIDTH];
        for part in forecast.phases.iter().filter(|part| part.lane == *lane || part.lane == Lane::Both) {
            let (from, to) = (column(part.start), column(part.start + part.time).min(WIDTH));
            line[from.min(to)..to].fill(letter(part.phase));
        }
        text += &format!("{name:9} |{}|\n", line.into_iter().collect::<String>());
    }
    text + "G generation, O old log-probabilities, R reference, V values, C critic, A actor, S weight sync, . idle\n"
}

fn letter(phase: Phase) -> char {
    match phase {
        Phase::Generation => 'G',
        Phase::Reward => 'J',
        Phase::OldLogProb => 'O',
        Phase::RefLogProb => 'R',
        Phase::Values => 'V',
        Phase::CriticUpdate => 'C',
        Phase::ActorUpdate => 'A',
        Phase::WeightSync => 'S',
    }
}

fn seconds(time: Seconds) -> String {
    match time.get() {
        seconds if seconds < 10.0 => format!("{seconds:.2} s"),
        seconds => format!("{seconds:.1} s"),
    }
}
