//! The schedule alone, as torch.distributed.pipelining reads it.

use super::coverage::Coverage;
use super::{ExportedFile, Exporter, Request};
use trainwright_spec::schedule::text;

/// torch.distributed.pipelining.
pub struct TorchPipelining;

impl Exporter for TorchPipelining {
    fn name(&self) -> &'static str {
        "torch-pipelining"
    }

    fn summary(&self) -> &'static str {
        "the pipeline's schedule as the CSV of torch.distributed.pipelining, a row for each rank"
    }

    fn source(&self) -> &'static str {
        "PyTorch 2.15, torch.distributed.pipelining.schedules._PipelineScheduleRuntime._load_csv"
    }

    fn comment(&self) -> Option<&'static str> {
        None
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.express(&["schedule", "virtual_stages", "mesh.pipeline"]);
        for group in ["cluster", "model", "job", "mesh", "stack", "state", "offload", "data", "experts"] {
            coverage.elsewhere(group, "a schedule says only who does which pass of which stage when");
        }
        coverage.elsewhere("micro_batch", "the script's data loader");
        for field in [
            "data_sharding",
            "sequence_parallel",
            "tensor_scheme",
            "context_scheme",
            "stages",
            "stages.recompute",
        ] {
            coverage.elsewhere(field, "a schedule says only who does which pass of which stage when");
        }
        let lists = plan.schedule().lists(plan.pipeline_shape());
        vec![ExportedFile { name: "schedule.csv".into(), text: text::write_csv(&lists) }]
    }
}
