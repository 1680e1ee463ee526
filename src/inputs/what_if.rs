//! From the arguments of `what-if` to a scenario and its varied inputs.

use super::calibration::to_apply_again;
use super::{check, check_axes, plan, unchecked};
use crate::arguments::{Asked, WhatIfArguments};
use crate::error::{CliError, refuse};
use std::sync::Arc;
use trainwright_spec::calibration::restore;
use trainwright_spec::units::{DollarsPerHour, Seconds};
use trainwright_whatif::date::days_between;
use trainwright_whatif::price::Price;
use trainwright_whatif::run::default_pue;
use trainwright_whatif::scenario::{Base, Rates, Scenario};
use trainwright_whatif::sweep::{Axis, points};

/// A question and the scenario that it is about.
pub struct Sweep {
    /// As it is without variations.
    pub base: Scenario,
    /// The varied inputs.
    pub axes: Vec<Axis>,
    /// Index of the axis along which speed is drawn; `None` for the number of GPUs.
    pub across: Option<usize>,
    /// Time that the run may take.
    pub limit: Option<Seconds>,
}

/// The question to `what-if`.
///
/// # Errors
/// The first argument that is invalid, alone or with the others.
pub fn sweep(arguments: &WhatIfArguments) -> Result<Sweep, CliError> {
    let pue = arguments.pue.unwrap_or(default_pue().value);
    if !(pue >= 1.0 && pue.is_finite()) {
        return Err(refuse(
            "--pue",
            pue.to_string(),
            "a facility draws at least what its GPUs draw: 1 or more",
        ));
    }
    let price =
        arguments.price.map(|price| Price { per_gpu: DollarsPerHour::new(price), source: "as given".into() });
    let rates = Rates { price, pue, tokens: arguments.tokens };
    let mut base = base(arguments)?;
    let (cluster, stack) = match &mut base {
        Base::Question(question) => (&mut question.cluster, &mut question.stack),
        Base::Plan(plan) => (&mut plan.cluster, &mut plan.stack),
    };
    let given = arguments.question.as_ref().and_then(|question| question.calibration.as_deref());
    let calibration = to_apply_again(given, cluster)?;
    // Inputs are varied as their sources state them; each point is calibrated then.
    if calibration.is_some() {
        restore(cluster, stack);
    }
    let calibration = calibration.map(Arc::new);
    let base = Scenario { base, rates, calibration };
    let axes = axes(arguments)?;
    points(&base, &axes).map_err(|reason| CliError::Vary { reason })?;
    let across = match &arguments.across {
        None => axes.iter().position(|axis| axis.numbers().is_some()),
        Some(input) => Some(across(input, &axes)?),
    };
    let limit = limit(arguments)?;
    needs(arguments, &axes, limit)?;
    let varies_nodes =
        matches!(arguments.asked, Asked::GpusNeeded | Asked::StrongScaling | Asked::WeakScaling);
    if varies_nodes && base.cluster().is_mixed() {
        let why = "this question is asked of other numbers of nodes: they should be of one kind";
        return Err(refuse("--cluster", &base.cluster().name, why));
    }
    Ok(Sweep { base, axes, across, limit })
}

fn base(arguments: &WhatIfArguments) -> Result<Base, CliError> {
    if let Some(path) = &arguments.plan {
        return Ok(Base::Plan(Box::new(plan(path, &[], None)?)));
    }
    let Some(given) = &arguments.question else {
        return Err(refuse(
            "--model",
            "missing",
            "give --model, --cluster, --seq and --global-batch, or --plan",
        ));
    };
    let question = unchecked(given, &arguments.pins, &arguments.risk)?;
    // An input that does not suit the rest may be a varied one: then the points say so.
    if arguments.vary.is_empty() && arguments.asked == Asked::Sweep {
        check_axes(&question)?;
        check(&question)?;
    }
    Ok(Base::Question(Box::new(question)))
}

fn axes(arguments: &WhatIfArguments) -> Result<Vec<Axis>, CliError> {
    let mut axes: Vec<Axis> = Vec::new();
    for text in &arguments.vary {
        let axis = Axis::parse(text).map_err(|allowed| refuse("--vary", text, allowed))?;
        if axes.iter().any(|other| other.input == axis.input) {
            return Err(refuse("--vary", text, format!("`{}` is varied already", axis.input)));
        }
        axes.push(axis);
    }
    Ok(axes)
}

fn across(input: &str, axes: &[Axis]) -> Result<usize, CliError> {
    let place = axes.iter().position(|axis| axis.input == input);
    let place =
        place.ok_or_else(|| refuse("--across", input, "it must be one of the inputs that are varied"))?;
    match axes[place].numbers() {
        Some(_) => Ok(place),
        None => Err(refuse("--across", input, "its values are not different numbers")),
    }
}

fn limit(arguments: &WhatIfArguments) -> Result<Option<Seconds>, CliError> {
    let days = match (&arguments.start, &arguments.by) {
        (Some(start), Some(by)) => {
            Some(days_between(start, by).map_err(|allowed| refuse("--by", by, allowed))?)
        }
        _ => arguments.days,
    };
    Ok(days.map(Seconds::of_days))
}

/// Checks that a question has the arguments that it needs, and none that it cannot use.
fn needs(arguments: &WhatIfArguments, axes: &[Axis], limit: Option<Seconds>) -> Result<(), CliError> {
    let asked = arguments.asked;
    let missing = |argument: &str, why: &str| Err(refuse(argument, "missing", why));
    if !matches!(asked, Asked::Sweep | Asked::Rent) {
        if !axes.is_empty() {
            return Err(refuse(
                "--vary",
                &arguments.vary[0],
                "only sweep and rent vary inputs: this question does itself",
            ));
        }
        if arguments.plan.is_some() {
            return Err(refuse(
                "--plan",
                "given",
                "this question plans anew: give --model, --cluster, --seq, --global-batch",
            ));
        }
    }
    match asked {
        Asked::GpusNeeded if arguments.tokens.is_none() => {
            missing("--tokens", "how many tokens does the run train?")
        }
        Asked::GpusNeeded if limit.is_none() => {
            missing("--days", "how long may the run take? --days, or --start and --by")
        }
        Asked::Rent if arguments.tokens.is_none() => {
            missing("--tokens", "how many tokens does the run train?")
        }
        Asked::Rent if !axes.iter().any(|axis| axis.input == "cluster") => {
            missing("--vary", "which clusters? --vary cluster=aws-p5:16,azure-nd-h100-v5:16")
        }
        Asked::ComputeOptimal if arguments.flops.is_none() && limit.is_none() => {
            missing("--flops", "what may be spent? --flops, or --days of the cluster")
        }
        _ => Ok(()),
    }
}
