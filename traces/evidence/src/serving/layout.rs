//! How the GPUs of a row are divided into instances and ranks.

use crate::kernels::{Cells, NoCase};
use trainwright_spec::model::Model;
use trainwright_spec::serving::Engine;

/// The ranks of an instance, and how many instances there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Tensor ranks; blank: what the GPUs leave.
    pub tensor: usize,
    /// Pipeline ranks; blank or 0: 1.
    pub pipeline: usize,
    /// Groups that have each the attention of a part of the sequences; blank or 0: 1.
    pub attention_data: usize,
    /// Expert ranks; blank or 0: 1.
    pub expert: usize,
    /// Instances; GPUs that fill none are idle.
    pub replicas: usize,
}

impl Layout {
    /// The layout of a row, in an engine if it is a known one.
    ///
    /// # Errors
    /// `Invalid` for ranks that the GPUs, the model's heads or each other contradict.
    pub fn of(cells: &Cells, model: &Model, engine: Option<&Engine>) -> Result<Self, NoCase> {
        // Tables write 0 for an axis that is not used.
        let axis = |column: &str| Ok::<_, NoCase>(cells.maybe(column, 0.0)?.filter(|ranks| *ranks > 0));
        let gpus = cells.maybe("gpus", 1.0)?;
        let pipeline = axis("pp")?.unwrap_or(1);
        let expert = axis("ep")?;
        let [tp, dp] = within(cells.maybe("tp", 1.0)?, axis("dp")?, expert, gpus.map(|gpus| gpus / pipeline));
        let attention_data = dp.unwrap_or(1);
        let others = pipeline.saturating_mul(attention_data);
        let whole = engine.is_some_and(|engine| !engine.uneven_heads);
        let tensor = match tp {
            Some(tensor) => tensor,
            None => widest(gpus.unwrap_or(1) / others, model, whole),
        };
        let instance = tensor.saturating_mul(others);
        if let Some(gpus) = gpus.filter(|gpus| *gpus < instance) {
            let text = format!("`gpus` is {gpus}; an instance of `tp` x `pp` x `dp` has {instance} GPUs");
            return Err(NoCase::Invalid(text));
        }
        if whole && !model.shares_heads(tensor) {
            let text =
                format!("`tp` is {tensor}; ranks must have the same number of heads of {}", model.name);
            return Err(NoCase::Invalid(text));
        }
        let expert = expert.unwrap_or(1);
        let most = tensor.saturating_mul(attention_data);
        if expert > most {
            let text =
                format!("`ep` is {expert}; an instance has `tp` x `dp` = {most} ranks for its experts");
            return Err(NoCase::Invalid(text));
        }
        let replicas = gpus.unwrap_or(instance) / instance;
        Ok(Self { tensor, pipeline, attention_data, expert, replicas })
    }

    /// GPUs of an instance.
    pub fn instance(&self) -> usize {
        self.tensor.saturating_mul(self.pipeline).saturating_mul(self.attention_data)
    }
}

/// `tp` and `dp` where a row counts GPUs as some engines do. SGLang's `tp` are the GPUs of a stage, which `dp` groups share; and where
/// experts are on more GPUs than `tp` and nothing is said of attention, each group of `tp` attends to sequences of its own.
fn within(
    tp: Option<usize>,
    dp: Option<usize>,
    expert: Option<usize>,
    stage: Option<usize>,
) -> [Option<usize>; 2] {
    match (tp, dp, expert, stage) {
        (Some(tensor), Some(groups), _, Some(stage)) if tensor == stage && tensor.is_multiple_of(groups) => {
            [Some(tensor / groups), dp]
        }
        (Some(tensor), None, Some(expert), Some(stage))
            if (tensor + 1..=stage).contains(&expert) && expert.is_multiple_of(tensor) =>
        {
            [tp, Some(expert / tensor)]
        }
        _ => [tp, dp],
    }
}

/// Tensor ranks on a number of GPUs: all of them or, where heads stay whole, the largest divisor of both.
fn widest(gpus: usize, model: &Model, whole: bool) -> usize {
    let suits = |tensor: &usize| gpus.is_multiple_of(*tensor) && model.shares_heads(*tensor);
    match whole {
        true => (1..=gpus).rev().find(suits).unwrap_or(1),
        false => gpus.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::names;
    use csv::StringRecord;
    use std::collections::BTreeMap;

    /// Tensor ranks and instances of llama-3-8b, with 32 heads, or why there are none.
    fn layout(engine: &str, cells: &[(&str, &str)]) -> Result<(usize, usize), String> {
        let columns: BTreeMap<String, usize> =
            cells.iter().enumerate().map(|(index, (column, _))| (column.to_string(), index)).collect();
        let record: StringRecord = cells.iter().map(|(_, cell)| *cell).collect();
        let model = names::model("llama-3-8b").unwrap();
        let layout = Layout::of(&Cells::new(&columns, &record), &model, Engine::of_table(engine, ""));
        match layout {
            Ok(layout) => Ok((layout.tensor, layout.replicas)),
            Err(NoCase::Invalid(reason) | NoCase::Unsupported(reason)) => Err(reason),
        }
    }

    #[test]
    fn gpus_are_divided_into_instances() {
        let check = |engine: &str, cells: &[(&str, &str)], expected: (usize, usize)| {
            assert_eq!(layout(engine, cells), Ok(expected), "{cells:?}");
        };
        check("vllm", &[], (1, 1));
        check("vllm", &[("gpus", "8")], (8, 1));
        check("vllm", &[("gpus", "8"), ("tp", "2")], (2, 4));
        check("vllm", &[("gpus", "8"), ("tp", "2"), ("pp", "2"), ("dp", "2"), ("ep", "4")], (2, 1));
        check("vllm", &[("gpus", "4"), ("tp", "4"), ("dp", "0"), ("ep", "0")], (4, 1));
        // 8 GPUs, of which two groups of 4 attend; and 8 with the experts, each of which attends.
        check("sglang", &[("gpus", "8"), ("tp", "8"), ("dp", "2")], (4, 1));
        check("sglang", &[("gpus", "16"), ("tp", "8"), ("dp", "8"), ("pp", "2")], (1, 1));
        check("sglang", &[("gpus", "8"), ("tp", "1"), ("ep", "8")], (1, 1));
        check("sglang", &[("gpus", "16"), ("tp", "2"), ("ep", "8")], (2, 2));
        // 32 heads divide by 2 of 6 GPUs.
        check("vllm", &[("gpus", "6")], (2, 3));
        check("llama.cpp", &[("gpus", "3")], (3, 1));
        check("llama.cpp", &[("tp", "3")], (3, 1));
        check("Deepspeed", &[("gpus", "6")], (6, 1));
        check("unheard of", &[("tp", "3")], (3, 1));
    }

    #[test]
    fn layouts_that_contradict_themselves_name_column_value_and_what_is_allowed() {
        let check = |cells: &[(&str, &str)], expected: &str| {
            assert_eq!(layout("vllm", cells), Err(expected.into()), "{cells:?}");
        };
        let instance =
            |gpus: usize| format!("`gpus` is 1; an instance of `tp` x `pp` x `dp` has {gpus} GPUs");
        check(&[("gpus", "1"), ("tp", "2")], &instance(2));
        check(&[("gpus", "1"), ("dp", "4")], &instance(4));
        check(&[("gpus", "0")], "`gpus` is 0, no whole number from 1 to 1000000000000");
        check(&[("tp", "0")], "`tp` is 0, no whole number from 1 to 1000000000000");
        for tensor in [3, 5, 7] {
            let text = format!("`tp` is {tensor}; ranks must have the same number of heads of llama-3-8b");
            check(&[("tp", &tensor.to_string())], &text);
        }
        let experts = "`ep` is 4; an instance has `tp` x `dp` = 1 ranks for its experts";
        check(&[("gpus", "1"), ("ep", "4")], experts);
    }
}
