use super::*;
use trainwright_spec::serving::Engine;

fn plan(engine: &str) -> ServingPlan {
    ServingPlan::new(Engine::from_name(engine).unwrap())
}

fn command(plan: &ServingPlan, duty: Duty) -> Result<Command, NotExpressible> {
    Instance { model: "org/model", plan, duty, nodes: plan.gpus().div_ceil(8) }.command()
}

#[test]
fn degrees_formats_and_limits_are_flags() {
    let check = |engine: &str, duty: Duty, expected: &[&str]| {
        let plan = ServingPlan {
            pipeline: 2,
            expert: 8,
            attention_data: 8,
            weights: "fp8".into(),
            expert_weights: "fp8".into(),
            cache: "fp8".into(),
            ..plan(engine)
        };
        let text = command(&plan, duty).unwrap().script();
        expected.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    };
    let vllm = [
        "vllm serve org/model --pipeline-parallel-size 2 --data-parallel-size 8 --enable-expert-parallel",
        "--quantization fp8 --kv-cache-dtype fp8 --max-num-seqs",
        r#"--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'"#,
    ];
    check("vllm-v1", Duty::Prefill, &vllm);
    let sglang = [
        "sglang.launch_server --model-path org/model --tp-size 8 --pp-size 2 --ep-size 8 --dp-size 8 --enable-dp-attention",
        "--quantization fp8 --kv-cache-dtype fp8_e4m3 --max-running-requests 8192 --chunked-prefill-size 65536",
        "--disaggregation-mode decode",
    ];
    check("sglang", Duty::Decode, &sglang);
    let trtllm = [
        "# the checkpoint must have weights in fp8\n",
        "enable_attention_dp: true\nkv_cache_config:\n",
        "  dtype: fp8\nEOF\n",
        "trtllm-serve org/model --tp_size 8 --pp_size 2 --ep_size 8 --max_batch_size",
    ];
    check("tensorrt-llm", Duty::Whole, &trtllm);
}

#[test]
fn every_flag_has_a_source_and_one_gpu_needs_no_degree() {
    for engine in engines() {
        let command = command(&plan(engine), Duty::Whole).unwrap();
        assert!(command.flags.iter().all(|flag| flag.source.contains("documentation")), "{engine}");
        assert!(
            !command.text().contains("parallel-size") && !command.text().contains("tp"),
            "{}",
            command.text()
        );
        assert!(command.remarks.is_empty(), "{engine}: {:?}", command.remarks);
    }
}

#[test]
fn what_a_tool_cannot_do_is_refused_and_a_checkpoint_is_a_remark() {
    let refusal = |plan: ServingPlan| command(&plan, Duty::Whole).unwrap_err().to_string();
    let vllm = ServingPlan { tensor: 8, expert: 4, ..plan("vllm-v1") };
    assert_eq!(
        refusal(vllm),
        "`expert` is 4: vLLM distributes experts over all 8 ranks of a stage or over none"
    );
    let trtllm = ServingPlan { tensor: 2, attention_data: 4, ..plan("tensorrt-llm") };
    assert!(refusal(trtllm).starts_with("`tensor` is 2: with attention-data ranks"));
    assert!(
        refusal(plan("fastertransformer"))
            .starts_with("`engine` is fastertransformer: engines with a command")
    );
    let cache = ServingPlan { cache: "nvfp4".into(), ..plan("vllm-v1") };
    assert_eq!(refusal(cache), "`cache` is nvfp4: it can be bfloat16 or fp8");
    let mixed = ServingPlan { expert_weights: "w4a16_mxfp4".into(), ..plan("sglang") };
    let remarks = command(&mixed, Duty::Whole).unwrap().remarks;
    assert_eq!(remarks, ["the checkpoint must have weights in bfloat16 and experts in w4a16_mxfp4"]);
    let large = ServingPlan { tensor: 8, pipeline: 2, ..plan("vllm-v1") };
    let remarks = command(&large, Duty::Whole).unwrap().remarks;
    assert_eq!(remarks, ["on each of 2 nodes, with the tool's options for several nodes"]);
}

#[test]
fn words_of_a_shell_are_quoted() {
    assert_eq!(quoted("a/b-1.5"), "a/b-1.5");
    assert_eq!(quoted("my model's"), r"'my model'\''s'");
}
