//! The lines of a training run.

use super::json::print;
use super::words;
use serde_json::json;
use std::collections::BTreeMap;
use trainwright_executor::{DeviceMemory, GraphUse, InUse, Outcome, Route, Settings, StepReport, Tokens};
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Axis;
use trainwright_spec::units::{Bytes, Seconds};

/// The model, its mesh and the data, and what the loss is beside plain cross entropy.
pub fn title(plan: &Plan, tokens: &Tokens, settings: &Settings) -> String {
    let mut terms = String::new();
    if settings.document_mask {
        terms += ", documents apart";
    }
    if settings.label_smoothing != 0.0 {
        terms += &format!(", label smoothing {}", settings.label_smoothing);
    }
    if settings.z_loss != 0.0 {
        terms += &format!(", z-loss {}", settings.z_loss);
    }
    format!(
        "{} ({}), {}, {} sequences of {} tokens a step, {} tokens of data{terms}\n",
        plan.model.name,
        words::parameters(&plan.model),
        words::mesh(&plan.mesh),
        plan.job.global_batch,
        plan.job.sequence,
        words::grouped(tokens.count() as f64),
    )
}

/// `step    12  loss 2.4417  norm  1.31   5,121 tokens/s`
pub fn step(plan: &Plan, report: &StepReport) -> String {
    let norm = report.gradient_norm.map(|norm| format!("  norm {norm:7.3}")).unwrap_or_default();
    let rate = words::grouped((plan.job.tokens() as f64 / report.seconds).round());
    let validation = report.validation_loss.map(|loss| format!("  validation {loss:.4}")).unwrap_or_default();
    let z_loss = report.z_loss.map(|loss| format!("  z-loss {loss:.2e}")).unwrap_or_default();
    format!(
        "step {:5}  loss {:8.4}{z_loss}{norm}  {rate:>9} tokens/s{validation}\n",
        report.step, report.loss
    )
}

/// `sample  40  "the quick brown fox"`: a line, whatever the text has.
pub fn sample(step: usize, text: &str) -> String {
    format!("sample {step:3}  {}\n", json!(text))
}

/// `loss 2.4417  5,121 tokens/s  MFU 41 %  2 min 10 s left`, the part of it that the plan's GPU would reach of its peak.
pub fn progress(plan: &Plan, report: &StepReport, last: usize) -> String {
    let rate = plan.job.tokens() as f64 / report.seconds;
    let peak = mfu(plan, report).map(|part| format!("  MFU {:.2} %", 100.0 * part));
    let left = (report.seconds * (last - report.step) as f64).round() as u64;
    let left = if left < 120 { format!("{left} s") } else { format!("{} min", left / 60) };
    let (rate, peak) = (words::grouped(rate.round()), peak.unwrap_or_default());
    format!("loss {:.4}  {rate} tokens/s{peak}  {left} left", report.loss)
}

/// The part that model FLOPs have of the peak of the plan's GPUs; `None` if that is not known.
fn mfu(plan: &Plan, report: &StepReport) -> Option<f64> {
    let peak = plan.cluster.node.gpu.peak.get(&plan.job.precision)?.value.get() * plan.mesh.ranks() as f64;
    Some(flops_per_token(plan) * plan.job.tokens() as f64 / report.seconds / peak)
}

/// A quantity of a step, with its names in files.
pub struct Quantity {
    /// In lines of JSON; behind `trainwright_` in OpenMetrics.
    pub name: &'static str,
    /// In TensorBoard.
    pub tag: &'static str,
    /// What it is, with its unit.
    pub help: &'static str,
    /// `None` where the step has none.
    pub value: Option<f64>,
}

/// What is logged of a step.
pub fn quantities(plan: &Plan, report: &StepReport) -> Vec<Quantity> {
    let quantity = |name, tag, help, value| Quantity { name, tag, help, value };
    let rate = plan.job.tokens() as f64 / report.seconds;
    vec![
        quantity("loss", "loss/training", "Mean loss of the step's tokens, in nats.", Some(report.loss)),
        quantity("z_loss", "loss/z", "The part of the loss that is z-loss.", report.z_loss),
        quantity(
            "validation_loss",
            "loss/validation",
            "Mean loss of held-out tokens, in nats.",
            report.validation_loss,
        ),
        quantity(
            "gradient_norm",
            "optimizer/gradient_norm",
            "Norm of the gradients before clipping.",
            report.gradient_norm,
        ),
        quantity(
            "learning_rate",
            "optimizer/learning_rate",
            "Learning rate of the step.",
            Some(f64::from(report.learning_rate)),
        ),
        quantity("seconds", "speed/step_seconds", "Duration of the step, in seconds.", Some(report.seconds)),
        quantity(
            "tokens_per_second",
            "speed/tokens_per_second",
            "Tokens of a step by its duration.",
            Some(rate),
        ),
        quantity(
            "mfu",
            "speed/mfu",
            "Part of the peak of the plan's GPUs that model FLOPs have.",
            mfu(plan, report),
        ),
    ]
}

fn step_data(report: &StepReport) -> serde_json::Value {
    json!({
        "step": report.step,
        "loss": report.loss,
        "z_loss": report.z_loss,
        "gradient_norm": report.gradient_norm,
        "learning_rate": report.learning_rate,
        "validation_loss": report.validation_loss,
        "sample": report.sample,
        "seconds": report.seconds,
    })
}

/// The rate of all steps but the first, which warms up; beside that of the forecast, if there is one.
pub fn end(plan: &Plan, steps: &[StepReport], forecast: Option<Seconds>) -> String {
    let rate = warm_rate(plan, steps);
    let flops = flops_per_token(plan) * rate;
    let beside = forecast.map(|step| {
        let forecast = plan.job.tokens() as f64 / step.get();
        let ratio = 100.0 * (rate / forecast - 1.0);
        format!("; forecast {} tokens/s ({ratio:+.0} %)", words::grouped(forecast.round()))
    });
    let (rate, beside) = (words::grouped(rate.round()), beside.unwrap_or_default());
    format!("{rate} tokens/s, {:.1} GFLOP/s of model FLOPs{beside}\n", flops / 1e9)
}

/// `between ranks: tensor on the GPU, data by NCCL`; empty for ranks on processors.
pub fn routes(routes: &BTreeMap<Axis, Route>) -> String {
    let each: Vec<String> = routes.iter().map(|(axis, route)| format!("{} {route}", axis.name())).collect();
    if each.is_empty() { String::new() } else { format!("between ranks: {}\n", each.join(", ")) }
}

/// `graph: from step 5`, or why not; empty for ranks on processors.
pub fn graph(graph: Option<&GraphUse>) -> String {
    graph.map(|graph| format!("graph: {graph}\n")).unwrap_or_default()
}

/// `attention: cuDNN 9.10.2`, or why not; empty for ranks on processors.
pub fn attention(by: Option<&str>) -> String {
    by.map(|by| format!("attention: {by}\n")).unwrap_or_default()
}

/// Whether another run would give the same bits; empty for ranks on processors, where it does.
pub fn deterministic(is_deterministic: Option<bool>) -> String {
    match is_deterministic {
        Some(true) => "deterministic: yes\n".into(),
        Some(false) => {
            "deterministic: no, cuDNN adds up attention's gradients in any order; --deterministic asks for one\n".into()
        }
        None => String::new(),
    }
}

/// `memory of rank 0's GPU: 2.31 GiB at most, 2.50 GiB reserved for that; 3.02 GiB of the GPU in use`, the latter where its
/// driver counts; empty for ranks on processors.
pub fn device_memory(memory: Option<&DeviceMemory>) -> String {
    let Some(DeviceMemory { peak, in_use }) = memory else { return String::new() };
    let bytes = |count: usize| Bytes::new(count as f64);
    let reserved = |used: InUse| {
        format!(", {} reserved for that; {} of the GPU in use", bytes(used.reserved), bytes(used.on_gpu))
    };
    format!("memory of rank 0's GPU: {} at most{}\n", bytes(*peak), in_use.map(reserved).unwrap_or_default())
}

/// All steps as data.
pub fn json(plan: &Plan, outcome: &Outcome) -> String {
    let Outcome { steps, routes, graph, device_memory, attention, deterministic, .. } = outcome;
    let steps_of_run: Vec<_> = steps.iter().map(step_data).collect();
    let mut all = json!({
        "tokens_per_step": plan.job.tokens(),
        "tokens_per_second": warm_rate(plan, steps),
        "steps": steps_of_run,
    });
    if !routes.is_empty() {
        let each = routes.iter().map(|(axis, route)| (axis.name().to_string(), json!(route.to_string())));
        all["communication"] = each.collect();
    }
    if let Some(graph) = graph {
        all["graph"] = json!(graph.to_string());
    }
    if let Some(attention) = attention {
        all["attention"] = json!(attention);
    }
    if let Some(deterministic) = deterministic {
        all["deterministic"] = json!(deterministic);
    }
    if let Some(DeviceMemory { peak, in_use }) = device_memory.first() {
        all["device_memory_bytes"] = json!(peak);
        if let Some(InUse { reserved, on_gpu }) = in_use {
            all["device_memory_reserved_bytes"] = json!(reserved);
            all["device_memory_used_bytes"] = json!(on_gpu);
        }
    }
    print(&all)
}

fn warm_rate(plan: &Plan, steps: &[StepReport]) -> f64 {
    let warm = if steps.len() > 1 { &steps[1..] } else { steps };
    let seconds: f64 = warm.iter().map(|step| step.seconds).sum();
    (plan.job.tokens() * warm.len()) as f64 / seconds
}

fn flops_per_token(plan: &Plan) -> f64 {
    let flops = plan.job.step_flops(&plan.model, AttentionCount::CausalHalved).get();
    flops / plan.job.tokens() as f64
}
