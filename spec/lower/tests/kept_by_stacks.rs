//! What software keeps of experts and attention from forward to backward, against sums by hand.

use trainwright_lower::memory::plan_memory;
use trainwright_spec::plan::Plan;
use trainwright_spec::stack::ExpertGates;

/// DeepSeek-V3 on 16 pipeline ranks. Under DualPipe a rank holds 17 passes at its peak, on these ranks of 4 blocks each.
const BLOCKS_IN_FLIGHT: f64 = 17.0 * 4.0;
/// Tokens of a microbatch.
const TOKENS: f64 = 4096.0;

fn deepseek() -> Plan {
    Plan::from_toml(include_str!("../../../examples/plans/experts.toml"), "experts.toml").unwrap()
}

/// By how much the activations of the third pipeline rank grow with another stack, for each token of a block, in bytes.
fn growth(change: fn(&mut Plan)) -> f64 {
    let activations = |plan: &Plan| plan_memory(plan)[2].activations;
    let (plan, mut changed) = (deepseek(), deepseek());
    change(&mut changed);
    (activations(&changed) - activations(&plan)).get() / (BLOCKS_IN_FLIGHT * TOKENS)
}

#[test]
fn gates_at_the_sum_keep_the_outputs_of_experts() {
    // 8 outputs of 7,168 elements in 16 bits.
    let grown = growth(|plan| plan.stack.expert_gates = ExpertGates::Combine);
    assert_eq!(grown, 8.0 * 7168.0 * 2.0);
}

#[test]
fn inputs_of_the_experts_activations_are_kept_in_elements_of_the_stack() {
    // Gate and input of 2,048 columns for 8 experts: 2 bytes instead of 1 and a 32nd.
    let grown = growth(|plan| plan.stack.kept_expert_activation_element = None);
    assert_eq!(grown, 8.0 * 2.0 * 2048.0 * (2.0 - 1.03125));
}

#[test]
fn outputs_of_the_heads_are_kept_once_or_for_each_reader() {
    // 128 heads of 128 columns: 2 bytes for attention and 1 and a 32nd for the projection, instead of 1 and 17 32nds.
    let grown = growth(|plan| plan.stack.kept_attention_output_element = None);
    assert_eq!(grown, 128.0 * 128.0 * (2.0 + 1.03125 - 1.53125));
}

#[test]
fn products_in_16_bits_keep_activations_in_16_bits_whatever_the_stack_has() {
    let bf16 = |plan: &mut Plan| plan.job.precision = trainwright_spec::precision::Precision::Bf16;
    let (mut plan, mut other) = (deepseek(), deepseek());
    bf16(&mut plan);
    bf16(&mut other);
    other.stack.kept_expert_activation_element = None;
    other.stack.kept_attention_output_element = None;
    assert_eq!(plan_memory(&plan), plan_memory(&other));
}
