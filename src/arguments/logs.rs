//! Arguments of `run` for the files that it writes step by step, and of `curves`, which draws one of them.

use clap::Args;

/// Files that grow with a run.
#[derive(Debug, Args)]
pub struct LogArguments {
    /// Write a line of JSON for each step to this file as it happens; a resumed run adds to it
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<String>,
    /// Write TensorBoard's event files into this folder
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<String>,
    /// Write the last step's values to this file as OpenMetrics text, with each printed line
    #[arg(long, value_name = "FILE")]
    pub openmetrics: Option<String>,
}

/// Arguments of `curves`.
#[derive(Debug, Args)]
pub struct CurvesArguments {
    /// Files of `run --metrics`; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub metrics: Vec<String>,
    /// Draw losses and norms of gradients as SVG; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub svg: Option<String>,
    /// Draw them as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<String>,
    /// The picture's title [default: the names of the files]
    #[arg(long)]
    pub title: Option<String>,
    /// Print the numbers of the table as JSON
    #[arg(long)]
    pub json: bool,
}
