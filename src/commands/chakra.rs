//! Chakra execution traces of a plan, a file for each rank.

use crate::error::CliError;
use crate::output;
use std::path::Path;
use trainwright_formats::chakra::{groups, write_rank};
use trainwright_lower::{lower, lower_every_rank};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::replay::traced_cost;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Op, RankProgram};

/// Up to this number every rank has a separate file: a replay needs all of them.
const MOST_FILES: usize = 256;

/// Writes `trainwright.RANK.et` for each rank and `groups.json`, the ranks of each group that collectives name.
pub fn write(folder: &str, plan: &Plan) -> Result<(), CliError> {
    let failed = |source| CliError::Writing { argument: "--chakra", path: folder.into(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let all = plan.mesh.ranks() <= MOST_FILES;
    let program = if all { lower_every_rank(plan) } else { lower(plan) };
    let costs = ClusterCosts::new(&plan.cluster);
    let cost = |rank: &RankProgram, op: &Op| traced_cost(&program, rank, op, &costs);
    let path = |name: String| Path::new(folder).join(name).to_string_lossy().into_owned();
    for (index, rank) in program.ranks.iter().enumerate() {
        let file = path(format!("trainwright.{}.et", rank.rank));
        output::write("--chakra", &file, |out| {
            let mut out = std::io::BufWriter::new(out);
            write_rank(&program, index, &cost, &mut out)?;
            std::io::Write::flush(&mut out)
        })?;
    }
    output::save("--chakra", &path("groups.json".into()), groups(&program))
}
