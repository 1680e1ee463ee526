//! A parameter server: some ranks add and update for all.

use super::{DataChoices, DataScheme, Divided, Exchange, Reduction, StepSizes, Volume, nothing_divided};

/// S of the d ranks are also servers: every rank sends each of them its part of the gradients, they add
/// and update, and send every rank their part of the weights.
///
/// V = (d − 1)/S (R Ψ_g + Ψ_w) out of and into a server, R reductions in a step.
///
/// The messages of all ranks end at the S servers, whose links carry the most (incast): (d − 1) Ψ through one, and as
/// much as a reduce-scatter's and an all-gather's if all d are servers. The program has an exchange of all with all of
/// that load on every link, which for S < d takes more of the other ranks' links than they use.
#[derive(Debug, Clone, Copy)]
pub struct ParameterServer;

impl DataScheme for ParameterServer {
    fn name(&self) -> &'static str {
        "parameter-server"
    }

    fn summary(&self) -> &'static str {
        "parameter server: some ranks, one if not said otherwise, add the gradients and update the weights for all"
    }

    fn source(&self) -> &'static str {
        "Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server, OSDI"
    }

    fn divides(&self) -> Divided {
        Divided::Optimizer
    }

    fn reduction(&self) -> Reduction {
        Reduction::LastMicrobatch
    }

    fn exchange(&self) -> Exchange {
        Exchange::Servers
    }

    fn check(&self, choices: &DataChoices) -> Result<(), (&'static str, String)> {
        nothing_divided(choices)
    }

    fn volume(&self, step: &StepSizes) -> Volume {
        let others = (step.shard * step.replicas) as f64 - 1.0;
        let served = (step.reductions() * step.gradients + step.weights) * others / step.servers as f64;
        Volume { served, ..Volume::default() }
    }
}
