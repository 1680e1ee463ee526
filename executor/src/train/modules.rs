//! What each module computes, forward and backward, by calling kernels. A new one is a file in `modules/` and a line here.

mod activation;
mod attention;
mod dropout;
mod experts;
mod few_rows;
mod grid;
mod linear;
mod look_up;
mod loss;
mod norm;
mod operator;
mod positions;
mod residual;
mod rotary;
mod shared_attention;
mod stepwise;
mod token_routing;

pub(crate) use loss::LossSums;
pub(crate) use operator::{Step, reads_input};
pub(crate) use stepwise::{Among, is_stepwise};

use operator::Operator;
use stepwise::Stepwise;
use trainwright_spec::program::Module;

/// The mathematics of the module of that name; `None` if the executor has not got it.
pub(crate) fn operator(module: Module) -> Option<&'static dyn Operator> {
    Some(match module {
        Module::LookUp => &look_up::LookUp,
        Module::Positions => &positions::Positions,
        Module::Norm(_) | Module::FinalNorm => &norm::Norm,
        Module::Qkv | Module::Projection | Module::Fc1 | Module::Fc2 | Module::Logits => &linear::Linear,
        Module::Rotary => &rotary::Rotary,
        Module::Attention => &attention::Attention,
        Module::Activation | Module::ExpertActivation => &activation::Activation,
        Module::Router => &experts::Router,
        Module::TopK => &experts::TopK,
        Module::ExpertFc1 | Module::ExpertFc2 => &experts::Grouped,
        Module::Residual(_) => &residual::Residual,
        Module::Loss => &loss::Loss,
        Module::Dispatch | Module::Combine | Module::Unnamed => return None,
    })
}

/// How a module runs in steps; `None` for modules that run in one piece.
pub(crate) fn stepwise(module: Module) -> Option<&'static dyn Stepwise> {
    match module {
        Module::Attention => Some(&shared_attention::Shared),
        Module::Norm(_) | Module::FinalNorm => Some(&grid::GridNorm),
        Module::Qkv | Module::Projection | Module::Fc1 | Module::Fc2 | Module::Logits => {
            Some(&grid::GridLinear)
        }
        Module::Dispatch => Some(&token_routing::Dispatch),
        Module::Combine => Some(&token_routing::Combine),
        _ => None,
    }
}
