//! `stragglers`: a step with slow GPUs and jitter.

use crate::arguments::StragglersArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::progress::Bar;
use crate::render::stragglers::{Answer, csv, json, page};
use crate::{inputs, output};
use std::collections::BTreeSet;
use trainwright_whatif::stragglers::{Noise, Sampling, stragglers};

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read or written.
pub fn run(arguments: &StragglersArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--csv", &arguments.csv)], arguments.json)?;
    let noise = Noise {
        ops: arguments.jitter,
        network: arguments.network_jitter,
        gpus: arguments.gpu_jitter,
        slow_part: arguments.slow,
        slow_ranks: arguments.slow_rank.clone(),
    };
    if let Some(twice) = repeated(arguments) {
        return Err(refuse("--slow-rank", twice, "each rank is given once"));
    }
    if noise == Noise::default() {
        return Err(CliError::NoAnswer {
            reason: "nothing makes a difference: give --jitter, --network-jitter, --gpu-jitter, --slow or --slow-rank"
                .into(),
        });
    }
    let plan = inputs::plan(&arguments.plan, &[], None)?;
    let plan = inputs::calibration::calibrated(plan, arguments.calibration.given())?;
    let sampling = Sampling { samples: arguments.samples, seed: arguments.seed };
    let found = {
        let bar = Bar::new();
        let watch = |done, total| bar.samples(done, total);
        stragglers(&plan, &noise, sampling, &watch)?
    };
    output::save_given("--csv", &arguments.csv, || csv(&found))?;
    let answer = Answer { plan: &plan, found: &found, seed: arguments.seed };
    if arguments.json {
        output::print(&json(&answer))?;
    } else if !alone {
        output::print(&page(&answer))?;
    }
    Ok(Outcome::Done)
}

/// A rank that is given more than once.
fn repeated(arguments: &StragglersArguments) -> Option<usize> {
    let mut seen = BTreeSet::new();
    arguments.slow_rank.iter().map(|slow| slow.rank).find(|rank| !seen.insert(*rank))
}
