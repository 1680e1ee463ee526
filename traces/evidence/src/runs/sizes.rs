//! Sizes of a model of which a row has the name or the number of parameters only.

use super::names::{self, MODELS};
use super::{NoPlan, Run};
use trainwright_spec::model::{Mlp, Model};

/// Sizes, and where they are from.
pub(super) struct Sizes {
    /// The cells; blank ones keep their default.
    pub cells: Cells,
    /// For people.
    pub text: String,
}

/// The cells of a row that describe a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Cells {
    layers: usize,
    hidden: usize,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    ffn_hidden: Option<usize>,
    vocab: Option<usize>,
    gated_mlp: Option<bool>,
    num_experts: Option<usize>,
    top_k: Option<usize>,
    moe_ffn_hidden: Option<usize>,
}

impl Sizes {
    /// The sizes of a row without layers, or width, or both.
    ///
    /// Those of the catalog's model that the row names; else, of a dense model with a known number of parameters P, the
    /// missing one of layers L and width h from P = 12 L h² + V h, or both from the dense model of the catalog
    /// that is most similar in size: its width, and layers for P.
    ///
    /// # Errors
    /// `Unsupported` if the row has neither, or has experts.
    pub fn of(run: &Run) -> Result<Self, NoPlan> {
        if let Some(model) = names::model(&run.model_name, run.parameters()) {
            let text = format!("`layers`, `hidden` and other sizes of {}", model.name);
            return Ok(Self { cells: Cells::of(model), text });
        }
        let missing = if run.layers.is_none() { "layers" } else { "hidden" };
        let parameters = run.parameters().ok_or_else(|| NoPlan::missing(missing))?;
        let experts = [run.num_experts, run.ep].into_iter().flatten().any(|count| count > 1);
        if experts || says_active_parameters(&run.model_name) {
            return Err(NoPlan::missing(missing));
        }
        let vocab = run.vocab.unwrap_or(50_257) as f64;
        let layers_of = |hidden: usize| {
            let hidden = hidden as f64;
            (((parameters - vocab * hidden) / (12.0 * hidden * hidden)).round() as usize).max(1)
        };
        let (layers, hidden, missing) = match (run.layers, run.hidden) {
            (None, Some(hidden)) => (layers_of(hidden), hidden, "`layers`"),
            (Some(layers), None) => (layers, width_of(parameters, vocab, layers), "`hidden`"),
            _ => {
                let hidden = similar(parameters).ok_or_else(|| NoPlan::missing(missing))?.hidden;
                (layers_of(hidden), hidden, "`layers` and `hidden`")
            }
        };
        let text =
            format!("{missing}: {layers} layers of {hidden} from {:.4} billion parameters", parameters / 1e9);
        Ok(Self { cells: Cells { layers, hidden, ..Cells::default() }, text })
    }
}

/// The width, in multiples of 128, with which 12 L h² + V h is this number of parameters.
fn width_of(parameters: f64, vocab: f64, layers: usize) -> usize {
    let twelve = 12.0 * layers as f64;
    let width = ((vocab * vocab + 4.0 * twelve * parameters).sqrt() - vocab) / (2.0 * twelve);
    ((width / 128.0).round() as usize).max(1).saturating_mul(128)
}

/// Whether a name is that of a mixture of experts: `30B-A3B`, `8x7B`.
fn says_active_parameters(name: &str) -> bool {
    let name = name.to_lowercase();
    let number = |text: &str| text.strip_suffix('b').is_some_and(|size| size.parse::<f64>().is_ok());
    name.split(['-', ' ', '_']).any(|word| {
        word.strip_prefix('a').is_some_and(number)
            || word.split_once('x').is_some_and(|(count, size)| count.parse::<u32>().is_ok() && number(size))
    })
}

/// The catalog's dense decoder whose size differs least.
fn similar(parameters: f64) -> Option<&'static Model> {
    let is_dense =
        |model: &&Model| model.blocks.len() == 1 && matches!(model.blocks[0].block.mlp, Mlp::Dense(_));
    let far = |model: &Model| libm::log(model.parameters() as f64 / parameters).abs();
    MODELS.iter().filter(is_dense).min_by(|one, other| far(one).total_cmp(&far(other)))
}

impl Cells {
    /// Those of a model of the catalog.
    fn of(model: &Model) -> Self {
        let block = &model.blocks.last().expect("a model has blocks").block;
        let dense = model.blocks.iter().find_map(|run| match &run.block.mlp {
            Mlp::Dense(mlp) => Some(mlp),
            Mlp::Experts(_) => None,
        });
        let experts = match &block.mlp {
            Mlp::Experts(experts) => Some(experts),
            Mlp::Dense(_) => None,
        };
        let gated = dense.map(|mlp| mlp.gated).or(experts.map(|experts| experts.expert.gated));
        Self {
            layers: model.layers(),
            hidden: model.hidden,
            heads: Some(block.attention.heads),
            kv_heads: Some(block.attention.kv_heads),
            ffn_hidden: dense.map(|mlp| mlp.width),
            vocab: Some(model.vocab),
            gated_mlp: gated,
            num_experts: experts.map(|experts| experts.count),
            top_k: experts.map(|experts| experts.per_token),
            moe_ffn_hidden: experts.map(|experts| experts.expert.width),
        }
    }

    /// Fills the blank cells of a row.
    pub fn fill(self, run: &mut Run) {
        run.layers = run.layers.or(Some(self.layers));
        run.hidden = run.hidden.or(Some(self.hidden));
        run.heads = run.heads.or(self.heads);
        run.kv_heads = run.kv_heads.or(self.kv_heads);
        run.ffn_hidden = run.ffn_hidden.or(self.ffn_hidden);
        run.vocab = run.vocab.or(self.vocab);
        run.gated_mlp = run.gated_mlp.or(self.gated_mlp);
        run.num_experts = run.num_experts.or(self.num_experts);
        run.top_k = run.top_k.or(self.top_k);
        run.moe_ffn_hidden = run.moe_ffn_hidden.or(self.moe_ffn_hidden);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(run: Run) -> Result<(usize, usize, String), String> {
        let sizes = Sizes::of(&run).map_err(|refusal| refusal.to_string())?;
        Ok((sizes.cells.layers, sizes.cells.hidden, sizes.text))
    }

    fn named(name: &str) -> Run {
        Run { model_name: name.into(), ..Run::default() }
    }

    #[test]
    fn a_name_of_the_catalog_gives_all_sizes() {
        let (layers, hidden, text) = sizes(named("Llama3-8B")).unwrap();
        assert_eq!((layers, hidden), (32, 4096));
        assert_eq!(text, "`layers`, `hidden` and other sizes of llama-3-8b");
        let mut run = named("DeepSeek-V3");
        Sizes::of(&run).unwrap().cells.fill(&mut run);
        assert_eq!((run.num_experts, run.top_k, run.moe_ffn_hidden), (Some(256), Some(8), Some(2048)));
    }

    #[test]
    fn parameters_give_what_is_missing() {
        // 12 · 70 · 14336² + 250,880 · 14336 = 172.6e9 + 3.6e9 (BLOOM's sizes).
        let bloom =
            Run { hidden: Some(14_336), vocab: Some(250_880), params_b: Some(176.2), ..Run::default() };
        assert_eq!(sizes(bloom).unwrap().0, 70);
        // GPT-3: 12 · 96 · 12288² + 50,257 · 12288 = 174.56e9.
        let gpt3 = Run { layers: Some(96), params_b: Some(174.56), ..Run::default() };
        assert_eq!(sizes(gpt3).unwrap().1, 12_288);
        let (layers, hidden, text) = sizes(named("maxtext-32b")).unwrap();
        let parameters = (12 * layers * hidden * hidden + 50_257 * hidden) as f64;
        assert!((parameters / 32e9 - 1.0).abs() < 0.02, "{layers} x {hidden}");
        assert_eq!(
            text,
            format!("`layers` and `hidden`: {layers} layers of {hidden} from 32.0000 billion parameters")
        );
    }

    #[test]
    fn experts_and_nameless_models_are_refused() {
        for run in [
            named("own 16B-A3B"),
            Run { ep: Some(8), ..named("own 7B") },
            named("own-8x7b"),
            Run { num_experts: Some(8), params_b: Some(7.0), ..Run::default() },
            named("Nemotron_3_Nano"),
        ] {
            assert_eq!(sizes(run.clone()), Err("`layers` is blank and has no default".into()), "{run:?}");
        }
    }
}
