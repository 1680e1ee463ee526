//! The instances that serve a rate of requests, and why not others.

use super::table::Table;
use crate::arguments::ServePlanArguments;
use serde_json::{Value, json};
use trainwright_formats::serving_commands::Command;
use trainwright_pictures::plot::{Chart, ChartCurve, ChartPanel, Mark};
use trainwright_planner::serving::{
    Broken, Point, Pool, Role, ServingOption, ServingQuestion, ServingVerdict, Traffic, Tried, TriedOutcome,
};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::Seconds;

/// Options whose curves are drawn, at most.
const CURVES: usize = 7;

/// A verdict with its question.
pub struct Answer<'a> {
    /// What was asked.
    pub question: &'a ServingQuestion,
    /// How.
    pub arguments: &'a ServePlanArguments,
    /// The answer.
    pub verdict: &'a ServingVerdict,
    /// What starts an instance of each pool; empty if that is not asked.
    pub commands: &'a [Command],
}

impl Answer<'_> {
    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = self.asked();
        match self.verdict.pools.is_empty() {
            true => text += &self.nothing(),
            false => text += &self.pools(),
        }
        text + &self.others()
    }

    fn asked(&self) -> String {
        let question = self.question;
        let traffic = match &question.traffic {
            Traffic::Alike { input, output, cached: 0 } => format!("{input} tokens in, {output} out"),
            Traffic::Alike { input, output, cached } => {
                format!("{input} tokens in, {cached} of them cached, {output} out")
            }
            Traffic::Trace(requests) => format!("{} requests of a trace", requests.len()),
        };
        let rate = question.rate.map_or("as many as can be".into(), |rate| format!("{rate} requests/s"));
        format!(
            "{} ({:.1}B parameters): {traffic}; {rate}; {} of TTFT at most {} ms, of TPOT {} ms\n\n",
            question.model.name,
            question.model.parameters() as f64 / 1e9,
            self.percentile(),
            1e3 * question.limits.ttft.get(),
            1e3 * question.limits.tpot.get(),
        )
    }

    fn percentile(&self) -> String {
        format!("P{}", (1000.0 * self.question.limits.part).round() / 10.0)
    }

    fn nothing(&self) -> String {
        match (self.verdict.most, self.question.rate) {
            (Some(most), Some(rate)) => {
                let what = match self.not_tried() {
                    0 => "The nodes do not keep",
                    _ => "No mix was found in time that keeps",
                };
                format!("{what} {rate} requests/s within the limits: {} at most.\n\n", digits(most))
            }
            _ if self.not_tried() > 0 => "No instance was found in time.\n\n".into(),
            _ => "No instance keeps the limits, not even for a request that is almost alone.\n\n".into(),
        }
    }

    /// Options that the time limit left.
    fn not_tried(&self) -> usize {
        self.verdict.tried.iter().filter(|tried| tried.outcome == TriedOutcome::NotTried).count()
    }

    fn gpus(&self) -> usize {
        self.verdict.pools.iter().map(|pool| pool.instances * pool.option.plan.gpus()).sum()
    }

    /// Dollars an hour; `None` where a price is not known.
    fn cost(&self) -> Option<f64> {
        let of = |pool: &Pool| {
            let gpus = (pool.instances * pool.option.plan.gpus()) as f64;
            Some(gpus * self.question.kinds[pool.option.kind].price?)
        };
        self.verdict.pools.iter().map(of).sum()
    }

    /// Tokens of answers a second, of all pools.
    fn output_rate(&self) -> f64 {
        self.verdict.rate * self.question.traffic.mean_output()
    }

    fn pools(&self) -> String {
        let verdict = self.verdict;
        let gpus = self.gpus();
        let what = match self.question.objective {
            _ if self.question.rate.is_none() => "keeps more requests/s",
            trainwright_planner::serving::Objective::Gpus => "needs fewer GPUs",
            trainwright_planner::serving::Objective::Cost => "costs less",
        };
        let all = verdict.tried.len();
        let proof = match (verdict.proved, self.not_tried()) {
            (true, _) => format!(
                "No mix of the {all} options that were tried {what}: proved by integer program over their simulated rates."
            ),
            (false, 0) => format!("It is not proved that no mix of the {all} options {what}."),
            (false, left) => {
                format!(
                    "It is not proved that no mix {what}: {left} of {all} options were not tried in time."
                )
            }
        };
        let serve = if gpus == 1 { "GPU serves" } else { "GPUs serve" };
        let mut text = format!("{gpus} {serve} {} requests/s. {proof}\n\n", digits(verdict.rate));
        let percentile = self.percentile();
        let kinds = &self.question.kinds;
        text += &Table::of(&verdict.pools)
            .left("pool", |pool: &Pool| pool.option.role.name())
            .right("instances", |pool| pool.instances)
            .left("GPUs of each", move |pool| {
                format!("{} {}", pool.option.plan.gpus(), kinds[pool.option.kind].cluster.node.gpu.name)
            })
            .left("engine", |pool| &pool.option.plan.engine.name)
            .left("layout", |pool| layout(&pool.option.plan))
            .left("weights", |pool| &pool.option.plan.weights)
            .right("tokens/step", |pool| pool.option.plan.engine.batching.max_tokens.value)
            .right("requests/s", |pool| digits(pool.point.rate))
            .right("at most", |pool| digits(pool.most))
            .right(&format!("TTFT {percentile} ms"), |pool| milliseconds(pool.point.ttft))
            .right(&format!("TPOT {percentile} ms"), |pool| milliseconds(pool.point.tpot))
            .text();
        let output = self.output_rate();
        text += &format!("\nthroughput  {output:.1} output tokens/s, {:.1} per GPU\n", output / gpus as f64);
        if let Some(cost) = self.cost() {
            text += &format!(
                "cost        {cost:.2} USD/h, {:.2} USD per million output tokens\n",
                cost / output / 3600.0 * 1e6
            );
        }
        for pool in verdict.pools.iter().filter(|pool| pool.option.role == Role::Whole) {
            text += &format!("an instance  {}\n", self.command(pool));
        }
        for (pool, command) in verdict.pools.iter().zip(self.commands) {
            let many = if pool.instances == 1 { "" } else { "s" };
            let role = pool.option.role.name();
            text +=
                &format!("\n# {} instance{many} of the pool {role}\n{}", pool.instances, command.script());
        }
        text + "\n"
    }

    /// The command that simulates one instance of a pool at its share.
    fn command(&self, pool: &Pool) -> String {
        let plan = &pool.option.plan;
        let mut command = format!(
            "trainwright serve --model {} --cluster {} --engine {} --tensor {}",
            self.arguments.model, self.arguments.clusters[pool.option.kind], plan.engine.name, plan.tensor
        );
        let degrees =
            [("pipeline", plan.pipeline), ("expert", plan.expert), ("attention-data", plan.attention_data)];
        for (name, degree) in degrees.iter().filter(|(_, degree)| *degree > 1) {
            command += &format!(" --{name} {degree}");
        }
        command += &format!(" --weights {}", plan.weights);
        if plan.expert_weights != plan.weights {
            command += &format!(" --expert-weights {}", plan.expert_weights);
        }
        if plan.cache != "bfloat16" {
            command += &format!(" --cache {}", plan.cache);
        }
        command += &format!(" --max-tokens {}", plan.engine.batching.max_tokens.value);
        match (&self.question.traffic, &self.arguments.trace) {
            (Traffic::Alike { input, output, cached }, _) => {
                command += &format!(" --input {input} --output {output}");
                if *cached > 0 {
                    command += &format!(" --cached {cached}");
                }
                command += &format!(" --rate {} --requests {}", pool.point.rate, pool.point.requests);
            }
            (Traffic::Trace(_), path) => {
                let path = path.as_deref().unwrap_or("-");
                command += &format!(" --trace {path} --rate {}", pool.point.rate);
            }
        }
        command
    }

    /// The best option of each layout and number formats: what it keeps, or why not.
    fn others(&self) -> String {
        let mut best: Vec<&Tried> = Vec::new();
        for tried in &self.verdict.tried {
            match best.iter_mut().find(|other| alike(&other.option, &tried.option)) {
                Some(other) if kept(tried) > kept(other) || other.outcome == TriedOutcome::NotTried => {
                    *other = tried
                }
                Some(_) => {}
                None => best.push(tried),
            }
        }
        let beaten = best.iter().filter(|tried| matches!(tried.outcome, TriedOutcome::Fewer(..))).count();
        let too_large: Vec<f64> = best
            .iter()
            .filter_map(|tried| match tried.outcome {
                TriedOutcome::DoesNotFit(weights) => Some(weights.as_gib()),
                _ => None,
            })
            .collect();
        let not_tried = best.iter().filter(|tried| tried.outcome == TriedOutcome::NotTried).count();
        let has_row = |outcome: &TriedOutcome| {
            !matches!(outcome, TriedOutcome::Fewer(..) | TriedOutcome::DoesNotFit(_) | TriedOutcome::NotTried)
        };
        best.retain(|tried| has_row(&tried.outcome));
        let kinds = &self.question.kinds;
        let percentile = self.percentile();
        let mut text = format!(
            "What an instance keeps, with the budget of tokens that keeps most ({percentile} of each limit)\n"
        );
        text += &Table::of(&best)
            .left("pool", |tried: &&Tried| tried.option.role.name())
            .left("GPUs", move |tried| {
                format!("{} {}", tried.option.plan.gpus(), kinds[tried.option.kind].cluster.node.gpu.name)
            })
            .left("engine", |tried| &tried.option.plan.engine.name)
            .left("layout", |tried| layout(&tried.option.plan))
            .left("weights", |tried| &tried.option.plan.weights)
            .right("tokens/step", |tried| tried.option.plan.engine.batching.max_tokens.value)
            .right("requests/s", |tried| kept(tried).map_or(String::new(), digits))
            .right("per GPU", |tried| {
                kept(tried).map_or(String::new(), |rate| digits(rate / tried.option.plan.gpus() as f64))
            })
            .left("why no more", |tried| why(tried))
            .text();
        let mut left_out = Vec::new();
        if let Some(least) = too_large.iter().copied().reduce(f64::min) {
            let count = too_large.len();
            left_out.push(format!("{count} that do not fit (weights take {least:.1} GiB of a GPU or more)"));
        }
        if beaten > 0 {
            left_out.push(format!("{beaten} that keep less than smaller instances on as many GPUs"));
        }
        if not_tried > 0 {
            left_out.push(format!("{not_tried} that were not tried in time"));
        }
        if !left_out.is_empty() {
            text += &format!("Layouts left out: {}.\n", left_out.join(", "));
        }
        text
    }

    /// Throughput and latency of the options at the rates that were simulated.
    pub fn chart(&self) -> Chart {
        // Rates of almost nothing and far above what is kept stretch the axes and say little.
        let worth_drawing = |points: &[Point], most: f64| -> Vec<Point> {
            let near = |point: &&Point| point.rate > 0.01 * most && point.rate < 1.2 * most;
            points.iter().filter(near).copied().collect()
        };
        let mut kept: Vec<(&ServingOption, Vec<Point>, f64)> = Vec::new();
        for tried in self.verdict.tried.iter().filter(|tried| tried.option.role == Role::Whole) {
            let TriedOutcome::Kept(capacity) = &tried.outcome else { continue };
            let per_gpu = capacity.kept.rate / tried.option.plan.gpus() as f64;
            let points = worth_drawing(&capacity.points, capacity.kept.rate);
            match kept.iter_mut().find(|(other, ..)| alike(other, &tried.option)) {
                Some(other) if per_gpu > other.2 => *other = (&tried.option, points, per_gpu),
                Some(_) => {}
                None => kept.push((&tried.option, points, per_gpu)),
            }
        }
        kept.sort_by(|one, other| other.2.total_cmp(&one.2));
        kept.truncate(CURVES);
        let several = self.question.kinds.len() > 1;
        let curves = kept.into_iter().map(|(option, mut points, _)| {
            let gpus = option.plan.gpus() as f64;
            points.sort_by(|one, other| one.rate.total_cmp(&other.rate));
            let of = |of: &dyn Fn(&Point) -> (f64, f64)| points.iter().map(of).collect::<Vec<_>>();
            let kind = match several {
                true => format!("{}: ", self.question.kinds[option.kind].cluster.node.gpu.name),
                false => String::new(),
            };
            ChartCurve {
                name: format!("{kind}{}, {}", layout(&option.plan), option.plan.weights),
                mark: Mark::Line,
                points: [
                    of(&|point| (1.0 / point.mean_tpot.get().max(1e-9), point.output_rate / gpus)),
                    of(&|point| (point.rate / gpus, 1e3 * point.ttft.get())),
                ],
            }
        });
        Chart {
            title: format!(
                "{}: what instances give at the rates that were simulated",
                self.question.model.name
            ),
            panels: [
                ChartPanel { across: "output tokens/s a user".into(), up: "output tokens/s a GPU".into() },
                ChartPanel {
                    across: "requests/s a GPU".into(),
                    up: format!("TTFT {} in ms", self.percentile()),
                },
            ],
            curves: curves.collect(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let verdict = self.verdict;
        let pool = |(index, pool): (usize, &Pool)| {
            let mut value = json!({
                "instances": pool.instances,
                "option": self.option(&pool.option),
                "most_requests_per_s": pool.most,
                "at_share": point(&pool.point),
            });
            if let Some(command) = self.commands.get(index) {
                value["script"] = command.script().into();
            }
            value
        };
        let tried = |tried: &Tried| {
            let outcome = match &tried.outcome {
                TriedOutcome::Kept(capacity) => json!({
                    "kept": point(&capacity.kept),
                    "over": capacity.over.map(|(over, _)| point(&over)),
                }),
                TriedOutcome::Fewer(at, _) => json!({ "fewer_than": point(at) }),
                TriedOutcome::Never(at, _) => json!({ "never": point(at) }),
                TriedOutcome::DoesNotFit(_) | TriedOutcome::Impossible(_) | TriedOutcome::NotTried => {
                    Value::Null
                }
            };
            json!({ "option": self.option(&tried.option), "outcome": outcome, "why": why(tried) })
        };
        json!({
            "model": self.question.model.name,
            "requests_per_s": verdict.rate,
            "gpus": self.gpus(),
            "usd_per_hour": self.cost(),
            "output_tokens_per_s": self.output_rate(),
            "proved": verdict.proved,
            "most_requests_per_s": verdict.most,
            "pools": verdict.pools.iter().enumerate().map(pool).collect::<Vec<_>>(),
            "options": verdict.tried.iter().map(tried).collect::<Vec<_>>(),
        })
    }

    fn option(&self, option: &ServingOption) -> Value {
        let plan = &option.plan;
        json!({
            "cluster": self.arguments.clusters[option.kind],
            "role": option.role.name(),
            "engine": plan.engine.name,
            "gpus": plan.gpus(),
            "tensor": plan.tensor,
            "pipeline": plan.pipeline,
            "expert": plan.expert,
            "attention_data": plan.attention_data,
            "weights": plan.weights,
            "expert_weights": plan.expert_weights,
            "cache": plan.cache,
            "max_tokens": plan.engine.batching.max_tokens.value,
        })
    }
}

fn point(point: &Point) -> Value {
    json!({
        "requests_per_s": point.rate,
        "requests": point.requests,
        "ttft_ms": 1e3 * point.ttft.get(),
        "tpot_ms": 1e3 * point.tpot.get(),
        "mean_tpot_ms": 1e3 * point.mean_tpot.get(),
        "output_tokens_per_s": point.output_rate,
    })
}

/// Whether two options differ at most in the budget of a step.
fn alike(one: &ServingOption, other: &ServingOption) -> bool {
    let mut plan = other.plan.clone();
    plan.engine.batching.max_tokens = one.plan.engine.batching.max_tokens.clone();
    (one.kind, one.role, &one.plan) == (other.kind, other.role, &plan)
}

/// The rate that an option keeps; `None` if that was not found.
fn kept(tried: &Tried) -> Option<f64> {
    match &tried.outcome {
        TriedOutcome::Kept(capacity) => Some(capacity.kept.rate),
        _ => None,
    }
}

fn why(tried: &Tried) -> String {
    let broken = |point: &Point, broken: Broken| match broken {
        Broken::Ttft => format!("TTFT {} ms at {}", milliseconds(point.ttft), digits(point.rate)),
        Broken::Tpot => format!("TPOT {} ms at {}", milliseconds(point.tpot), digits(point.rate)),
    };
    match &tried.outcome {
        TriedOutcome::Kept(capacity) => match &capacity.over {
            Some((point, limit)) => broken(point, *limit),
            None => "nothing broke the limits".into(),
        },
        TriedOutcome::Fewer(point, limit) => {
            format!("smaller ones keep more: {}", broken(point, *limit))
        }
        TriedOutcome::Never(point, limit) => broken(point, *limit),
        TriedOutcome::DoesNotFit(weights) => {
            format!("does not fit: weights take {:.1} GiB of a GPU", weights.as_gib())
        }
        TriedOutcome::Impossible(reason) => reason.clone(),
        TriedOutcome::NotTried => "not tried: the time limit came first".into(),
    }
}

fn layout(plan: &ServingPlan) -> String {
    let degrees = [
        ("tensor", plan.tensor),
        ("pipeline", plan.pipeline),
        ("expert", plan.expert),
        ("attention data", plan.attention_data),
    ];
    let named: Vec<String> = degrees
        .iter()
        .filter(|(name, degree)| *degree > 1 || *name == "tensor")
        .map(|(name, degree)| format!("{name} {degree}"))
        .collect();
    named.join(" × ")
}

/// Four digits.
fn digits(rate: f64) -> String {
    let decimals = (3.0 - libm::log10(rate.abs().max(1e-9)).floor()).clamp(0.0, 6.0) as usize;
    format!("{rate:.decimals$}")
}

fn milliseconds(time: Seconds) -> String {
    format!("{:.1}", 1e3 * time.get())
}
