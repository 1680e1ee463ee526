//! Rows with blank cells, or with cells in other tables' words, completed: a forecast says what stands in for what.
//!
//! ```text
//! Run ─► Completed { run: every cell that a plan needs, assumptions: what the row does not state } ─► Plan
//! ```
//!
//! A measurement is never read here: a forecast does not depend on what it is compared with.

use super::assumptions::{Completed, Kind};
use super::sizes::Sizes;
use super::{NoPlan, Run, layout, names};
use trainwright_spec::precision::Precision;

impl Run {
    /// The row with a value in each cell that a plan needs.
    ///
    /// # Errors
    /// `Unsupported` if neither the row nor its other cells give a size, the GPU is unknown, or a plan cannot express
    /// the training; `Invalid` if cells contradict each other.
    pub fn completed(&self) -> Result<Completed, NoPlan> {
        self.refuse_other_methods()?;
        let mut completed = Completed { run: self.clone(), assumptions: Vec::new(), as_blank: Vec::new() };
        completed.settle_gpu();
        completed.settle_date();
        completed.settle_network();
        completed.settle_words();
        completed.settle_sizes()?;
        completed.settle_sequence();
        completed.settle_lengths();
        completed.settle_adapters();
        completed.settle_recompute();
        layout::settle(&mut completed)?;
        if let Some(text) = completed.run.stand_in_remark() {
            completed.assume(Kind::Software, text);
        }
        Ok(completed)
    }

    /// Refuses what is not the training of all weights of a transformer.
    fn refuse_other_methods(&self) -> Result<(), NoPlan> {
        let refused = |reason: String| Err(NoPlan::Unsupported(reason));
        if !["", "pretrain", "pretraining", "sft", "full", "reward_model"].contains(&self.kind.as_str())
            && !self.has_adapters()
        {
            return refused(format!(
                "`kind` is `{}`: other weights or steps than those of plain training",
                self.kind
            ));
        }
        let offloads = self.offload().is_ok_and(|offload| offload.optimizer.is_some());
        if offloads && names::data_sharding(&self.data_sharding) == Some("zero3") {
            let reason =
                "an offloaded optimizer of sharded weights: a plan offloads that of whole weights only";
            return refused(reason.into());
        }
        if [&self.model_name, &self.notes].iter().any(|text| text.to_lowercase().contains("mamba")) {
            return refused("state-space layers: a model has attention in every block".into());
        }
        Ok(())
    }
}

/// What `notes` say of a run with fused attention, without what stands between words.
const FUSED_ATTENTION: &str = "flashattention=true";

impl Completed {
    fn settle_gpu(&mut self) {
        if self.run.known_gpu().is_some() {
            return;
        }
        if let Some(name) = names::gpu(&self.run.gpu) {
            self.assume(Kind::Gpu, format!("`gpu` {name} for `{}`", self.run.gpu));
            self.run.gpu = name.into();
        }
    }

    /// A date that is none counts as today, as a blank one does.
    fn settle_date(&mut self) {
        if !is_date(&self.run.date) {
            let cell = std::mem::take(&mut self.run.date);
            self.as_if_blank("date", &cell);
        }
    }

    /// Links and networks that no node of the catalog with this GPU has count as blank, and so does a network without bandwidth.
    fn settle_network(&mut self) {
        if self.run.known_gpu().is_none() {
            return;
        }
        if !self.run.nodes().any(|node| self.run.is_linked(node)) {
            let cell = std::mem::take(&mut self.run.intra_node);
            self.as_if_blank("intra_node", &cell);
        }
        let networked = self.run.nodes().any(|node| self.run.is_networked(node));
        if !self.run.inter_node.is_empty() && !networked {
            let cell = std::mem::take(&mut self.run.inter_node);
            self.as_if_blank("inter_node", &cell);
        }
        if self.run.node_network_gbps.take_if(|gigabits| *gigabits == 0.0).is_some() {
            self.as_if_blank("node_network_gbps", "0");
        }
    }

    /// Number formats, kernels, sharding and so on in this table's words; the default where a word is unknown.
    fn settle_words(&mut self) {
        let run = &self.run;
        let known_precision = Precision::ALL.iter().any(|precision| precision.name() == run.precision);
        let precision = (!known_precision).then(|| names::precision(&run.precision));
        let known = ["unfused", "fused-softmax", "flash1", "flash2", "flash3"];
        let attention = (!known.contains(&run.attention_kernel.as_str()))
            .then(|| names::attention_kernel(&run.attention_kernel));
        let norms = (!run.norm_kernel.starts_with("fused") && run.norm_kernel != "unfused").then_some(None);
        let name = run.data_sharding.split(':').next().unwrap_or_default();
        let known = ["ddp", "zero1", "zero2", "zero3", "zero2-fsdp", "hsdp"];
        let sharding = (!known.contains(&name)).then(|| names::data_sharding(&run.data_sharding));
        let offload = run.offload().is_err().then_some(None);
        let optimizer = run.optimizer().is_none().then_some(None);
        let dispatcher = (!run.dispatcher_is_known()).then_some(None);
        let schedule = run.noted_schedule_is_unknown();

        let mut unknown = Vec::new();
        let columns = [
            ("precision", &mut self.run.precision, precision, Kind::Kernels),
            ("attention_kernel", &mut self.run.attention_kernel, attention, Kind::Kernels),
            ("norm_kernel", &mut self.run.norm_kernel, norms, Kind::Kernels),
            ("data_sharding", &mut self.run.data_sharding, sharding, Kind::Memory),
            ("offload", &mut self.run.offload, offload, Kind::Memory),
            ("optimizer", &mut self.run.optimizer, optimizer, Kind::Memory),
            ("dispatcher", &mut self.run.dispatcher, dispatcher, Kind::Kernels),
        ];
        for (column, cell, word, kind) in columns {
            let Some(word) = word.filter(|_| !cell.is_empty()) else { continue };
            if word.is_none() {
                unknown.push((kind, format!("`{column}` as if blank for `{cell}`")));
            }
            *cell = word.unwrap_or_default().into();
        }
        unknown.into_iter().for_each(|(kind, text)| self.assume(kind, text));
        if schedule {
            self.assume(Kind::Layout, "1F1B for the schedule in `notes`".into());
            self.run.notes.clear();
        }
        self.settle_attention();
        self.settle_precision();
    }

    /// A blank kernel, where the notes say that attention is fused: FlashAttention of the row's date.
    ///
    /// Source: FlashAttention-2 is of 2023-07 (arXiv:2307.08691).
    fn settle_attention(&mut self) {
        let notes = self.run.notes.to_lowercase().replace(['-', '_', ' '], "");
        if !self.run.attention_kernel.is_empty() || !notes.contains(FUSED_ATTENTION) {
            return;
        }
        let date = self.run.date.as_str();
        let kernel = if date.is_empty() || date >= "2023-07" { "flash2" } else { "flash1" };
        self.run.attention_kernel = kernel.into();
        self.assume(Kind::Kernels, format!("`attention_kernel` {kernel} by `notes`"));
    }

    /// The next wider number format of the GPU, if it has no peak for the row's.
    fn settle_precision(&mut self) {
        let Some(gpu) = self.run.known_gpu() else { return };
        let has = |precision: &&Precision| gpu.peak.contains_key(precision);
        let named = |name: &str| Precision::ALL.into_iter().find(|precision| precision.name() == name);
        let Some(wanted) = named(&self.run.precision) else { return };
        if has(&&wanted) {
            return;
        }
        let wider = [Precision::Fp8, Precision::Bf16, Precision::Fp16, Precision::Fp32];
        let narrow = wanted.base() != wanted;
        let Some(found) = wider.iter().skip(usize::from(!narrow)).find(has) else { return };
        let text = format!("`precision` {found}: the catalog has no peak of `{}` in {wanted}", self.run.gpu);
        self.run.precision = found.name().into();
        self.assume(Kind::Kernels, text);
    }

    fn settle_sizes(&mut self) -> Result<(), NoPlan> {
        if self.run.layers.is_some() && self.run.hidden.is_some() {
            return Ok(());
        }
        let Sizes { cells, text } = Sizes::of(&self.run)?;
        cells.fill(&mut self.run);
        self.assume(Kind::Sizes, text);
        Ok(())
    }

    /// A blank length: 8,192 of LLaMA 3, else what was usual at that date.
    ///
    /// Source: the lengths of GPT-2 (1,024), GPT-3 (2,048), LLaMA 2 (4,096, 2023-07) and LLaMA 3 (8,192).
    fn settle_sequence(&mut self) {
        if self.run.seq_len.is_some() {
            return;
        }
        let name = self.run.model_name.to_lowercase().replace(['-', '_', ' '], "");
        let date = self.run.date.as_str();
        let (length, reason) = match () {
            () if name.contains("llama3") => (8192, "of LLaMA 3"),
            () if name.contains("llama2") => (4096, "of LLaMA 2"),
            () if date.is_empty() || date >= "2023-07" => (4096, "usual since 2023-07"),
            () if date >= "2021" => (2048, "usual from 2021 to 2023-07"),
            () => (1024, "usual before 2021"),
        };
        self.run.seq_len = Some(length);
        self.assume(Kind::Sequence, format!("`seq_len` {length}, {reason}"));
    }

    /// Lengths of padded samples.
    fn settle_lengths(&mut self) {
        if let (Some([mean, padded]), None) = (self.run.padded_lengths(), self.run.mean_seq_len) {
            let text =
                format!("`mean_seq_len` {mean}, lengths spread evenly: padded to {padded} in the mean");
            self.assume(Kind::Sequence, text);
        }
    }

    /// A text that no choice of blocks expresses: fractions of ops as fractions of blocks, projections alone as all, others as
    /// half of the blocks.
    fn settle_recompute(&mut self) {
        if self.run.recompute_is_known() {
            return;
        }
        let was = self.run.recompute.clone();
        let text = was.to_lowercase();
        let fractions = self.run.notes.split(';').find_map(|note| {
            let list = note.trim().strip_prefix("fraction of ops recomputed per stage")?;
            Some(list.trim().trim_matches(['[', ']']).replace(',', " "))
        });
        let (cell, says) = match fractions {
            Some(fractions) => (format!("full {fractions}"), "the stated fractions of blocks in full"),
            // MaxText's policies that keep projections only.
            None if text.contains("proj") => ("full".into(), "full"),
            None if text.contains("select") => ("selective".into(), "selective"),
            None if text.contains("full") => ("full".into(), "full"),
            None => ("full 0.5".into(), "half of the blocks in full"),
        };
        self.run.recompute = cell;
        self.assume(Kind::Memory, format!("`recompute` {says} for `{was}`"));
    }
}

/// Whether a text is blank, begins with a year and, if a number follows, a month, or is a release by year and month: `2024-05`,
/// `v25.09`.
fn is_date(text: &str) -> bool {
    let month = |text: &str| {
        let digits = text.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
        digits.is_empty() || digits.parse::<u32>().is_ok_and(|month| (1..=12).contains(&month))
    };
    let release = text.trim_start_matches('v').split_once('.').filter(|(year, _)| year.len() == 2);
    if let Some((year, rest)) = release {
        return year.parse::<u32>().is_ok() && month(rest);
    }
    let Some((year, rest)) = text.split_at_checked(4) else { return text.is_empty() };
    year.parse::<u32>().is_ok_and(|year| year >= 1900) && rest.strip_prefix('-').is_none_or(month)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::stack::MemoryReport;

    /// A row that states everything a plan needs.
    fn row() -> Run {
        Run {
            layers: Some(24),
            hidden: Some(2048),
            heads: Some(16),
            seq_len: Some(1024),
            gpu: "a100-80gb-sxm".into(),
            gpus: Some(8),
            tp: Some(2),
            pp: Some(2),
            dp: Some(2),
            precision: "bf16".into(),
            sequence_parallel: Some(true),
            data_sharding: "zero1".into(),
            recompute: "none".into(),
            micro_batch: Some(2),
            global_batch: Some(32),
            framework: "Megatron-LM".into(),
            date: "2024-06".into(),
            ..Run::default()
        }
    }

    fn remark(run: &Run) -> Option<String> {
        let completed = run.completed().unwrap();
        let plan = completed.run.plan().unwrap();
        completed.remark(run, &plan)
    }

    #[test]
    fn a_row_that_states_everything_is_not_changed() {
        let completed = row().completed().unwrap();
        assert_eq!(completed, Completed { run: row(), assumptions: Vec::new(), as_blank: Vec::new() });
        assert_eq!(remark(&row()), None);
    }

    #[test]
    fn the_remark_names_every_value_that_the_row_does_not_state() {
        let check = |run: Run, expected: &str| assert_eq!(remark(&run).as_deref(), Some(expected));
        let blank = Run {
            precision: String::new(),
            sequence_parallel: None,
            data_sharding: String::new(),
            recompute: String::new(),
            micro_batch: None,
            ..row()
        };
        check(
            blank,
            "blank: precision bf16, micro_batch 1, recompute none, data_sharding zero1, sequence_parallel yes",
        );
        check(Run { gpu: "A100 80GB".into(), ..row() }, "`gpu` a100-80gb-sxm for `A100 80GB`");
        check(Run { seq_len: None, ..row() }, "`seq_len` 4096, usual since 2023-07");
        check(Run { seq_len: None, date: "2020-09".into(), ..row() }, "`seq_len` 1024, usual before 2021");
        check(
            Run { layers: None, hidden: None, heads: None, model_name: "Llama 3.1 8B".into(), ..row() },
            "`layers`, `hidden` and other sizes of llama-3-8b",
        );
        check(
            Run { framework: "Veni 2.1".into(), ..row() },
            "no stack of the catalog is the framework `Veni 2.1`: megatron-core-2024 stands in",
        );
        check(
            Run { recompute: "mixed per-op".into(), ..row() },
            "`recompute` half of the blocks in full for `mixed per-op`",
        );
        check(
            Run {
                recompute: "mixed per-op".into(),
                notes: "x; fraction of ops recomputed per stage [0.9, 0.1]".into(),
                ..row()
            },
            "`recompute` the stated fractions of blocks in full for `mixed per-op`",
        );
        check(
            Run { precision: "FP8-MX".into(), ..row() },
            "`precision` bf16: the catalog has no peak of `a100-80gb-sxm` in mxfp8",
        );
        check(Run { attention_kernel: "xyz".into(), ..row() }, "`attention_kernel` as if blank for `xyz`");
        check(Run { notes: "schedule spiral".into(), ..row() }, "1F1B for the schedule in `notes`");
        let fused = || Run { notes: "x; flash_attention=True; y".into(), ..row() };
        check(fused(), "`attention_kernel` flash2 by `notes`");
        check(Run { date: "2022-11".into(), ..fused() }, "`attention_kernel` flash1 by `notes`");
    }

    #[test]
    fn links_networks_and_dates_of_which_nothing_is_known_count_as_blank_and_say_so() {
        let check = |run: Run, blank: Run, expected: &str| {
            assert_eq!(remark(&run).as_deref(), Some(expected));
            let plan = |run: &Run| run.completed().unwrap().run.plan().unwrap();
            assert_eq!(plan(&run), plan(&blank), "{expected}");
        };
        for word in ["foo", "pcie", "xgmi"] {
            let text = format!("`intra_node` as if blank for `{word}`");
            check(Run { intra_node: word.into(), ..row() }, row(), &text);
        }
        let nodes = || Run { gpus: Some(16), dp: Some(4), ..row() };
        let blank = "blank: inter_node efa-v1";
        check(nodes(), nodes(), blank);
        for word in ["ethernet", "tcp", "foo"] {
            let text = format!("`inter_node` as if blank for `{word}`; {blank}");
            check(Run { inter_node: word.into(), ..nodes() }, nodes(), &text);
        }
        let text = format!("`node_network_gbps` as if blank for `0`; {blank}");
        check(Run { node_network_gbps: Some(0.0), ..nodes() }, nodes(), &text);
        for date in ["foo", "2030-13", "2024-00", "24", "25.13", "May 2024"] {
            let text = format!("`date` as if blank for `{date}`");
            check(Run { date: date.into(), ..row() }, Run { date: String::new(), ..row() }, &text);
        }
        for date in
            ["2024", "2024-5", "2024-12-14 00:54:35", "2024-12/2025-01", "2024Q3", "26.02.01", "v25.05"]
        {
            assert_eq!(remark(&Run { date: date.into(), ..row() }), None, "{date}");
        }
    }

    #[test]
    fn the_schedule_is_that_of_the_notes_else_of_the_framework() {
        let check = |framework: &str, notes: &str, expected: &str| {
            let run =
                Run { framework: framework.into(), notes: notes.into(), pp: Some(2), dp: None, ..row() };
            assert_eq!(run.completed().unwrap().run.plan().unwrap().schedule.to_string(), expected);
        };
        check("Veni (DualPipe)", "", "dualpipe");
        check("Veni (DualPipe)", "x; schedule 1f1b", "1f1b");
        check("Veni interleaved 1f1b", "", "1f1b");
    }

    #[test]
    fn notes_say_that_nothing_is_in_16_bits_or_dropped_out() {
        let check = |gpu: &str, notes: &str, precision: Precision, dropout: bool| {
            let run = Run { gpu: gpu.into(), precision: String::new(), notes: notes.into(), ..row() };
            let plan = run.completed().unwrap().run.plan().unwrap();
            assert_eq!((plan.job.precision, plan.model.dropout), (precision, dropout), "{gpu}, {notes}");
        };
        check("a100-80gb-sxm", "", Precision::Bf16, true);
        check(
            "a100-80gb-sxm",
            "precision not stated (no fp16/bf16 flag in run script)",
            Precision::Tf32,
            true,
        );
        check("v100-32gb-sxm2", "no fp16/bf16 flag", Precision::Fp32, true);
        check("a100-80gb-sxm", "x; no dropout", Precision::Bf16, false);
        let stated = Run { notes: "no fp16/bf16 flag".into(), ..row() };
        assert_eq!(stated.plan().unwrap().job.precision, Precision::Bf16);
    }

    #[test]
    fn notes_say_that_launches_wait_for_their_kernels() {
        let check = |notes: &str, waits: bool| {
            let run = Run { notes: notes.into(), framework: "Megatron-DeepSpeed".into(), ..row() };
            let stack = run.plan().unwrap().stack;
            assert_eq!(stack.host.unwrap().waits_for_ops, waits, "{notes}");
        };
        check("", false);
        check("iteration 2; CUDA_LAUNCH_BLOCKING=1 in this period", true);
    }

    #[test]
    fn the_memory_is_the_one_that_the_row_states() {
        let check = |framework: &str, unit: &str, notes: &str, expected: (bool, bool)| {
            let stated =
                Run { framework: framework.into(), memory_unit: unit.into(), notes: notes.into(), ..row() };
            let stack = stated.plan().unwrap().stack;
            assert_eq!(
                (stack.memory_report == MemoryReport::PeakOfTensors, stack.prints_gib),
                expected,
                "{unit}"
            );
        };
        check("Megatron-LM", "", "", (false, false));
        check("Megatron-LM", "GB as printed", "", (false, false));
        check("Megatron-LM", "max allocated, GiB", "", (true, true));
        check("Megatron-LM", "", "memory GiB; x", (false, true));
        // Its own report stays.
        check("nanotron", "GB as printed (allocated; reserved in notes)", "", (false, true));
    }

    #[test]
    fn recomputation_by_stage_reaches_the_plan() {
        let run = Run {
            recompute: "mixed per-op".into(),
            notes: "fraction of ops recomputed per stage [0.75, 0.25]".into(),
            ..row()
        };
        let plan = run.completed().unwrap().run.plan().unwrap();
        let stages: Vec<String> = plan.stages.iter().map(ToString::to_string).collect();
        assert_eq!(stages, ["9 full, 3 none", "3 full, 9 none"]);
    }

    #[test]
    fn what_is_no_training_of_all_weights_of_a_transformer_is_refused() {
        let refused = |run: Run| run.completed().unwrap_err();
        let unsupported = |reason: &str| NoPlan::Unsupported(reason.into());
        assert_eq!(
            refused(Run { kind: "grpo".into(), ..row() }),
            unsupported("`kind` is `grpo`: other weights or steps than those of plain training")
        );
        assert_eq!(
            refused(Run { notes: "hybrid Mamba2/attention".into(), ..row() }),
            unsupported("state-space layers: a model has attention in every block")
        );
        assert_eq!(
            refused(Run { layers: None, model_name: "Unknown".into(), ..row() }),
            unsupported("`layers` is blank and has no default")
        );
        assert_eq!(
            refused(Run { gpus: None, tp: None, pp: None, dp: None, ..row() }),
            NoPlan::missing("gpus")
        );
    }
}
