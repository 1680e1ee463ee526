# Written by stubs.py out of the commands' options and schemas.
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, TypeVar, Union, overload

_Table = Any
_Value = Union[str, int, float, bool]
_File = Union[str, "os.PathLike[str]", bytes, Mapping[str, Any], "Answer", _Table]
_One = Union[_Value, _File, Sequence[_Value]]
_Several = Union[_One, Sequence[_One]]
_Pairs = Union[str, Sequence[str], Mapping[Any, _Several]]
_Progress = Union[bool, Callable[[str, int, int], object], None]
_T = TypeVar("_T")

class InputError(ValueError): ...
class Failed(RuntimeError): ...
class Infeasible(RuntimeError):
    reasons: list[str]

class Record(dict[str, Any]):
    def __getattr__(self, name: str) -> Any: ...

class Answer(Record):
    json: str
    exit_code: int
    stderr: list[str]
    files: dict[str, bytes]
    @property
    def fits(self) -> bool: ...
    def table(self) -> list[dict[str, Any]]: ...
    def frame(self) -> Any: ...
    def svg(self) -> str | None: ...

class PlainAnswer(Answer):
    @property
    def text(self) -> str: ...

class Sweep(list[Any]):
    questions: list[dict[str, Any]]
    def table(self) -> list[dict[str, Any]]: ...
    def frame(self) -> Any: ...

def commands() -> list[str]: ...
def schema(command: str) -> dict[str, Any]: ...
def sweep(
    questions: Iterable[Mapping[str, Any]],
    executor: Executor | None = None,
    *,
    command: str = "plan",
    chunk: int | None = None,
    progress: _Progress = None,
    return_exceptions: bool = False,
) -> Sweep: ...

class PlanAnswer_question_adapters(Record):
    rank: int
    targets: list[str]
    base: str  # not always there

class PlanAnswer_question(Record):
    model: str
    parameters: int
    active_parameters: int
    cluster: str
    gpus: int
    sequence_tokens: int
    global_batch_sequences: int
    precision: str
    optimizer: str
    stack: str
    memory_risk: None | float
    memory_reserve_bytes: None | float
    risk: None | float
    adapters: None | PlanAnswer_question_adapters  # not always there
    trained_parameters: int  # not always there

class PlanAnswer_plans_forecast_memory_bytes_by_pipeline_rank(Record):
    weights: float
    gradients: float
    optimizer: float
    activations: float
    temporaries: float
    overhead: float

class PlanAnswer_plans_forecast_report_mean_communication(Record):
    axis: str
    total_s: float
    overlapped_s: float
    exposed_s: float

class PlanAnswer_plans_forecast_report_mean(Record):
    compute_s: float
    exposed_s: float
    bubble_s: float
    bubble_share: float
    communication: list[PlanAnswer_plans_forecast_report_mean_communication]

class PlanAnswer_plans_forecast_report_ranks_communication(Record):
    axis: str
    total_s: float
    overlapped_s: float
    exposed_s: float

class PlanAnswer_plans_forecast_report_ranks_memory_kinds(Record):
    kind: str
    at_peak_bytes: float
    peak_bytes: float

class PlanAnswer_plans_forecast_report_ranks_memory(Record):
    peak_bytes: float
    peak_time_s: float
    peak_action: None | str
    peak_span: None | str
    in_flight_at_peak: int
    kinds: list[PlanAnswer_plans_forecast_report_ranks_memory_kinds]

class PlanAnswer_plans_forecast_report_ranks(Record):
    rank: int
    stands_for: int
    pipeline_rank: int
    compute_s: float
    exposed_s: float
    bubble_s: float
    bubble_share: float
    communication: list[PlanAnswer_plans_forecast_report_ranks_communication]
    memory: PlanAnswer_plans_forecast_report_ranks_memory

class PlanAnswer_plans_forecast_report(Record):
    step_time_s: float
    rank_count: int
    mean: PlanAnswer_plans_forecast_report_mean
    peak_memory_bytes: float
    ranks: list[PlanAnswer_plans_forecast_report_ranks]

class PlanAnswer_plans_forecast(Record):
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_flops_full_attention: float
    model_flops_causal_attention: float
    hardware_flops: float
    mfu_full_attention: float
    mfu_causal_attention: float
    hfu: float
    recompute_s: float
    detail: str
    peak_memory_bytes: float
    gpu_memory_bytes: float
    fits: bool
    memory_bytes_by_pipeline_rank: list[PlanAnswer_plans_forecast_memory_bytes_by_pipeline_rank]
    report: PlanAnswer_plans_forecast_report

class PlanAnswer_plans_confidence_time(Record):
    low: float
    median: float
    high: float
    runs: int
    sources: int

class PlanAnswer_plans_confidence_memory(Record):
    low: float
    median: float
    high: float
    runs: int
    sources: int

class PlanAnswer_plans_confidence(Record):
    calibration: str
    source: str
    uncalibrated_step_time_s: float
    expected_step_time_s: float
    time: None | PlanAnswer_plans_confidence_time
    memory: None | PlanAnswer_plans_confidence_memory
    fits_with: None | float

class PlanAnswer_plans_plan_mesh(Record):
    tensor: int
    pipeline: int
    data: int

class PlanAnswer_plans_plan_job_adapters(Record):
    rank: int
    targets: list[str]
    base: str  # not always there

class PlanAnswer_plans_plan_job(Record):
    sequence: int
    global_batch: int
    precision: str
    optimizer: str
    gradient_clipping: bool
    adapters: PlanAnswer_plans_plan_job_adapters  # not always there

class PlanAnswer_plans_plan_stack(Record):
    ...

class PlanAnswer_plans_plan_cluster(Record):
    ...

class PlanAnswer_plans_plan_model(Record):
    ...

class PlanAnswer_plans_plan(Record):
    micro_batch: int
    schedule: str
    virtual_stages: int
    sequence_parallel: bool
    data_sharding: str
    stages: list[str]
    mesh: PlanAnswer_plans_plan_mesh
    job: PlanAnswer_plans_plan_job
    stack: PlanAnswer_plans_plan_stack
    cluster: PlanAnswer_plans_plan_cluster
    model: PlanAnswer_plans_plan_model

class PlanAnswer_plans(Record):
    rank: int
    ordered_by_s: float
    nodes: int
    gpus: int
    limited_by: str
    estimate_s: float
    forecast: PlanAnswer_plans_forecast
    confidence: PlanAnswer_plans_confidence
    plan: PlanAnswer_plans_plan

class PlanAnswer_alternatives(Record):
    choice: str
    reason: str

class PlanAnswer_front(Record):
    plan: str
    step_time_s: float
    expected_step_time_s: float
    peak_memory_bytes: float
    headroom_bytes: float
    gpu_s: float

class PlanAnswer_nodes_with_all_best(Record):
    step_time_s: float
    ordered_by_s: float

class PlanAnswer_nodes_with_all(Record):
    best: PlanAnswer_nodes_with_all_best

class PlanAnswer_nodes(Record):
    given: int
    used: int
    with_all: PlanAnswer_nodes_with_all
    searched: list[int]
    too_slow: int
    unpromising: int
    unseen: int

class PlanAnswer_sensitivity(Record):
    quantity: str
    factor: None | float
    then: str

class PlanAnswer_search(Record):
    layouts: int
    candidates: int
    plans_log10: float
    out_of_memory: int
    state_out_of_memory: int
    bounded_out: int
    solved: int
    simulated: int
    unseen: int
    bound_s: float  # not always there

class PlanAnswer_broken(Record):
    plans: str
    limit: str
    needs_bytes: float
    has_bytes: float

class PlanAnswer(Answer):
    @property
    def best(self) -> PlanAnswer_plans: ...
    @property
    def reasons(self) -> list[str]: ...
    verdict: str
    question: PlanAnswer_question
    plans: list[PlanAnswer_plans]  # not always there
    tied: int  # not always there
    alternatives: list[PlanAnswer_alternatives]  # not always there
    front: list[PlanAnswer_front]  # not always there
    nodes: None | PlanAnswer_nodes  # not always there
    sensitivity: list[PlanAnswer_sensitivity]  # not always there
    search: PlanAnswer_search  # not always there
    broken: list[PlanAnswer_broken]  # not always there
    remedies: list[str]  # not always there
    reason: str  # not always there

class SimulateAnswer_forecast_memory_bytes_by_pipeline_rank(Record):
    weights: float
    gradients: float
    optimizer: float
    activations: float
    temporaries: float
    overhead: float

class SimulateAnswer_forecast_report_mean_communication(Record):
    axis: str
    total_s: float
    overlapped_s: float
    exposed_s: float

class SimulateAnswer_forecast_report_mean(Record):
    compute_s: float
    exposed_s: float
    bubble_s: float
    bubble_share: float
    communication: list[SimulateAnswer_forecast_report_mean_communication]

class SimulateAnswer_forecast_report_ranks_communication(Record):
    axis: str
    total_s: float
    overlapped_s: float
    exposed_s: float

class SimulateAnswer_forecast_report_ranks_memory_kinds(Record):
    kind: str
    at_peak_bytes: float
    peak_bytes: float

class SimulateAnswer_forecast_report_ranks_memory(Record):
    peak_bytes: float
    peak_time_s: float
    peak_action: None | str
    peak_span: None | str
    in_flight_at_peak: int
    kinds: list[SimulateAnswer_forecast_report_ranks_memory_kinds]

class SimulateAnswer_forecast_report_ranks(Record):
    rank: int
    stands_for: int
    pipeline_rank: int
    compute_s: float
    exposed_s: float
    bubble_s: float
    bubble_share: float
    communication: list[SimulateAnswer_forecast_report_ranks_communication]
    memory: SimulateAnswer_forecast_report_ranks_memory

class SimulateAnswer_forecast_report(Record):
    step_time_s: float
    rank_count: int
    mean: SimulateAnswer_forecast_report_mean
    peak_memory_bytes: float
    ranks: list[SimulateAnswer_forecast_report_ranks]

class SimulateAnswer_forecast(Record):
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_flops_full_attention: float
    model_flops_causal_attention: float
    hardware_flops: float
    mfu_full_attention: float
    mfu_causal_attention: float
    hfu: float
    recompute_s: float
    detail: str
    peak_memory_bytes: float
    gpu_memory_bytes: float
    fits: bool
    memory_bytes_by_pipeline_rank: list[SimulateAnswer_forecast_memory_bytes_by_pipeline_rank]
    report: SimulateAnswer_forecast_report

class SimulateAnswer_confidence_time(Record):
    low: float
    median: float
    high: float
    runs: int
    sources: int

class SimulateAnswer_confidence_memory(Record):
    low: float
    median: float
    high: float
    runs: int
    sources: int

class SimulateAnswer_confidence(Record):
    calibration: str
    source: str
    uncalibrated_step_time_s: float
    expected_step_time_s: float
    time: None | SimulateAnswer_confidence_time
    memory: None | SimulateAnswer_confidence_memory
    fits_with: None | float

class SimulateAnswer_plan_mesh(Record):
    tensor: int
    pipeline: int
    data: int

class SimulateAnswer_plan_job(Record):
    sequence: int
    global_batch: int
    precision: str
    optimizer: str
    gradient_clipping: bool

class SimulateAnswer_plan_stack(Record):
    ...

class SimulateAnswer_plan_cluster(Record):
    ...

class SimulateAnswer_plan_model(Record):
    ...

class SimulateAnswer_plan(Record):
    micro_batch: int
    schedule: str
    virtual_stages: int
    sequence_parallel: bool
    data_sharding: str
    stages: list[str]
    mesh: SimulateAnswer_plan_mesh
    job: SimulateAnswer_plan_job
    stack: SimulateAnswer_plan_stack
    cluster: SimulateAnswer_plan_cluster
    model: SimulateAnswer_plan_model

class SimulateAnswer(Answer):
    forecast: SimulateAnswer_forecast
    confidence: SimulateAnswer_confidence
    plan: SimulateAnswer_plan

class PredictAnswer_groups_time(Record):
    rows: int
    median: float
    mean: float
    signed: float
    p90: float
    order: None | float
    sweeps: int

class PredictAnswer_groups_null(Record):
    rows: int
    median: float
    mean: float
    signed: float
    p90: float
    order: None | float
    sweeps: int

class PredictAnswer_groups_memory(Record):
    rows: int
    mean: float
    signed: float

class PredictAnswer_groups_outcomes(Record):
    fits: int
    false_alarms: int
    missed: int
    out_of_memory: int

class PredictAnswer_groups(Record):
    by: str
    name: str
    time: None | PredictAnswer_groups_time
    null: None | PredictAnswer_groups_null
    memory: None | PredictAnswer_groups_memory
    outcomes: PredictAnswer_groups_outcomes

class PredictAnswer_scores_errors(Record):
    rows: int
    median: float
    mean: float
    p90: float

class PredictAnswer_scores_left_out(Record):
    rows: int
    median: float
    mean: float
    p90: float

class PredictAnswer_scores(Record):
    kind: str  # not always there
    gpu: None | str  # not always there
    errors: PredictAnswer_scores_errors  # not always there
    left_out: None | PredictAnswer_scores_left_out  # not always there
    source: str  # not always there
    figure: str  # not always there
    rows: int  # not always there
    median: float  # not always there
    mean: float  # not always there
    p90: float  # not always there
    bias: float  # not always there
    null_median: None | float  # not always there
    in_range: float  # not always there
    in_range_left_out: float  # not always there

class PredictAnswer(Answer):
    rows: int  # not always there
    forecast: int
    unsupported: int
    invalid: int
    groups: list[PredictAnswer_groups]  # not always there
    scores: list[PredictAnswer_scores]  # not always there

class FitAnswer_band(Record):
    low: float
    high: float

class FitAnswer_factors(Record):
    parameter: str
    of: str
    factor: float

class FitAnswer_sources_catalog(Record):
    median: float
    mean: float
    signed: float
    p90: float

class FitAnswer_sources_left_out(Record):
    median: float
    mean: float
    signed: float
    p90: float

class FitAnswer_sources_in_sample(Record):
    median: float
    mean: float
    signed: float
    p90: float

class FitAnswer_sources(Record):
    name: str
    rows: int
    catalog: FitAnswer_sources_catalog
    left_out: FitAnswer_sources_left_out
    in_sample: FitAnswer_sources_in_sample

class FitAnswer(Answer):
    @property
    def toml(self) -> str: ...
    source: str
    band: FitAnswer_band
    factors: list[FitAnswer_factors]
    sources: list[FitAnswer_sources]
    remarks: list[Any]

class CurvesAnswer_runs(Record):
    run: str
    first_step: int
    last_step: int
    first_loss: float
    last_loss: float
    lowest_validation_loss: None | float
    lowest_validation_step: None | int
    median_tokens_per_second: None | float

class CurvesAnswer(Answer):
    runs: list[CurvesAnswer_runs]

class WhatIfAnswer_axes(Record):
    input: str

class WhatIfAnswer_points_point(Record):
    ...

class WhatIfAnswer_points(Record):
    point: WhatIfAnswer_points_point
    gpus: int | None
    nodes: int | None
    model: None | str
    parameters: int | None
    sequence_tokens: int | None
    global_batch_sequences: int | None
    step_time_s: None | float
    tokens_per_s: None | float
    tokens_per_s_per_gpu: None | float
    mfu_causal_attention: None | float
    peak_memory_gib: None | float
    tensor: int | None
    pipeline: int | None
    data: int | None
    virtual_stages: int | None
    micro_batch: int | None
    schedule: None | str
    usd_per_billion_tokens: None | float
    kwh_per_billion_tokens: None | float
    run_tokens: None | float
    run_days: None | float
    run_gpu_hours: None | float
    run_usd: None | float
    run_mwh: None | float
    pareto: bool | None
    limited_by: None | str
    reason: None | str
    context: int | None  # not always there
    expert: int | None  # not always there
    offload: None | str  # not always there

class WhatIfAnswer(Answer):
    title: str
    model: str
    cluster: str
    axes: list[WhatIfAnswer_axes]
    headline: list[str]
    points: list[WhatIfAnswer_points]

class NetworkAnswer_sweeps_rows(Record):
    bytes: int
    time_s: float
    algorithm_bandwidth_bytes_per_s: float
    bus_bandwidth_bytes_per_s: float
    algorithm: str
    protocol: None | str
    channels: int | None
    pieces: int | None
    measured_s: None | float
    compared_s: None | float
    error: None | float

class NetworkAnswer_sweeps_measured(Record):
    name: str
    source: str
    software: None | str
    gpu: None | str
    date: None | str
    nccl: None | str
    host_s: float
    launch_s: float
    launch_all_to_all_s: float
    copies: float
    alone: bool
    times: list[list[float]]

class NetworkAnswer_sweeps(Record):
    collective: str
    ranks: list[int]
    nodes: int
    groups: int
    bus_factor: float
    nccl: str
    rows: list[NetworkAnswer_sweeps_rows]
    measured: list[NetworkAnswer_sweeps_measured]

class NetworkAnswer(Answer):
    cluster: str
    sweeps: list[NetworkAnswer_sweeps]

class KernelAnswer_nearest(Record):
    id: str
    library: str
    kernel: str
    call: str
    time_s: float

class KernelAnswer(Answer):
    family: str
    call: str
    gpu: str
    time_s: float
    bound: str
    latency_s: float
    compute_s: float
    memory_s: float
    links_s: float
    overhead_s: float
    part_of_peak: None | float
    library: str
    kernel: str
    format: str
    fitted_on: str
    fitted_rows: int
    median_error: float
    nearest: KernelAnswer_nearest

class ServeAnswer_step_parts_s(Record):
    products: float

class ServeAnswer_step(Record):
    sequences: int
    history: int
    time_s: float
    kernels: int
    parts_s: ServeAnswer_step_parts_s

class ServeAnswer_ttft_ms(Record):
    mean: float
    p50: float
    p90: float
    p99: float
    range_of_mean: None | list[float]

class ServeAnswer_tpot_ms(Record):
    mean: None | float
    p50: None | float
    p90: None | float
    p99: None | float
    range_of_mean: None | list[float]

class ServeAnswer_e2e_latency_ms(Record):
    mean: float
    p50: float
    p90: float
    p99: float
    range_of_mean: None | list[float]

class ServeAnswer_measured_ttft_ms(Record):
    mean: float
    p50: float
    p90: float
    p99: float
    error_of_mean_percent: float

class ServeAnswer_measured_tpot_ms(Record):
    mean: float
    p50: float
    p90: float
    p99: float
    error_of_mean_percent: float

class ServeAnswer_measured_e2e_latency_ms(Record):
    mean: float
    p50: float
    p90: float
    p99: float
    error_of_mean_percent: float

class ServeAnswer_measured(Record):
    ttft_ms: ServeAnswer_measured_ttft_ms
    tpot_ms: ServeAnswer_measured_tpot_ms
    e2e_latency_ms: ServeAnswer_measured_e2e_latency_ms

class ServeAnswer(Answer):
    model: str  # not always there
    gpu: str  # not always there
    gpus: int  # not always there
    engine: str  # not always there
    tensor: int  # not always there
    pipeline: int  # not always there
    expert: int  # not always there
    attention_data: int  # not always there
    weights: str  # not always there
    expert_weights: str  # not always there
    cache: str  # not always there
    output_tokens_per_s: float  # not always there
    output_tokens_per_s_per_gpu: float  # not always there
    total_tokens_per_s: float  # not always there
    requests_per_s: float  # not always there
    requests: int  # not always there
    duration_s: float  # not always there
    steps: int  # not always there
    most_running: int  # not always there
    preemptions: int  # not always there
    memory_bytes: float  # not always there
    weights_bytes: float
    kv_capacity_tokens: int  # not always there
    step: ServeAnswer_step  # not always there
    ttft_ms: ServeAnswer_ttft_ms  # not always there
    tpot_ms: ServeAnswer_tpot_ms  # not always there
    e2e_latency_ms: ServeAnswer_e2e_latency_ms  # not always there
    measured: ServeAnswer_measured  # not always there
    verdict: str  # not always there
    reason: str  # not always there
    gpu_memory_bytes: float  # not always there
    working_bytes: float  # not always there
    cache_bytes: float  # not always there
    queue_grows: bool  # not always there

class ServePlanAnswer_pools_option(Record):
    cluster: str
    role: str
    engine: str
    gpus: int
    tensor: int
    pipeline: int
    expert: int
    attention_data: int
    weights: str
    expert_weights: str
    cache: str
    max_tokens: int

class ServePlanAnswer_pools_at_share(Record):
    requests_per_s: float
    requests: int
    ttft_ms: float
    tpot_ms: float
    mean_tpot_ms: float
    output_tokens_per_s: float

class ServePlanAnswer_pools(Record):
    instances: int
    option: ServePlanAnswer_pools_option
    most_requests_per_s: float
    at_share: ServePlanAnswer_pools_at_share

class ServePlanAnswer_options_option(Record):
    cluster: str
    role: str
    engine: str
    gpus: int
    tensor: int
    pipeline: int
    expert: int
    attention_data: int
    weights: str
    expert_weights: str
    cache: str
    max_tokens: int

class ServePlanAnswer_options_outcome_kept(Record):
    requests_per_s: float
    requests: int
    ttft_ms: float
    tpot_ms: float
    mean_tpot_ms: float
    output_tokens_per_s: float

class ServePlanAnswer_options_outcome_over(Record):
    requests_per_s: float
    requests: int
    ttft_ms: float
    tpot_ms: float
    mean_tpot_ms: float
    output_tokens_per_s: float

class ServePlanAnswer_options_outcome_fewer_than(Record):
    requests_per_s: float
    requests: int
    ttft_ms: float
    tpot_ms: float
    mean_tpot_ms: float
    output_tokens_per_s: float

class ServePlanAnswer_options_outcome_never(Record):
    requests_per_s: float
    requests: int
    ttft_ms: float
    tpot_ms: float
    mean_tpot_ms: float
    output_tokens_per_s: float

class ServePlanAnswer_options_outcome(Record):
    kept: ServePlanAnswer_options_outcome_kept  # not always there
    over: ServePlanAnswer_options_outcome_over  # not always there
    fewer_than: ServePlanAnswer_options_outcome_fewer_than  # not always there
    never: ServePlanAnswer_options_outcome_never  # not always there

class ServePlanAnswer_options(Record):
    option: ServePlanAnswer_options_option
    outcome: None | ServePlanAnswer_options_outcome
    why: str

class ServePlanAnswer(Answer):
    model: str
    requests_per_s: float
    gpus: int
    usd_per_hour: None | float
    output_tokens_per_s: float
    proved: bool
    most_requests_per_s: None | float
    pools: list[ServePlanAnswer_pools]
    options: list[ServePlanAnswer_options]

class FleetAnswer_schedule(Record):
    makespan_s: int
    mean_completion_s: float
    weighted_completion_s: float
    utilisation: float
    cost_usd: float | None
    energy_j: float | None
    missed_deadlines: int

class FleetAnswer_jobs(Record):
    job: str
    plan: str
    node: str
    gpus: int
    nodes: list[int]
    gpus_of_each_node: list[int]
    start_s: int
    end_s: int
    deadline_s: int | None
    weight: float
    cost_usd: float | None
    user: None | str  # not always there
    is_last: bool  # not always there

class FleetAnswer_heuristics_schedule(Record):
    makespan_s: int
    mean_completion_s: float
    weighted_completion_s: float
    utilisation: float
    cost_usd: float | None
    energy_j: float | None
    missed_deadlines: int

class FleetAnswer_heuristics(Record):
    method: str
    is_current_practice: bool
    schedule: FleetAnswer_heuristics_schedule

class FleetAnswer_other_nodes(Record):
    change: str
    node: str
    value: None | float
    bound: None | float

class FleetAnswer_users(Record):
    user: str
    max_gpus: int
    jobs: int
    most_gpus_at_a_time: int
    mean_completion_s: float

class FleetAnswer_without_deadlines(Record):
    job: str
    value: float
    bound: float

class FleetAnswer(Answer):
    cluster: str
    gpus: int
    now_s: int | None
    objective: str
    value: float
    bound: float
    gap: float
    proved: bool
    no_schedule_keeps_deadlines: bool
    schedule: FleetAnswer_schedule
    makespan_p50_s: int
    makespan_p90_s: int
    critical: list[str]
    jobs: list[FleetAnswer_jobs]
    heuristics: list[FleetAnswer_heuristics]
    other_nodes: list[FleetAnswer_other_nodes]
    users: list[FleetAnswer_users]  # not always there
    may_move: bool  # not always there
    without_deadlines: list[FleetAnswer_without_deadlines]  # not always there

class FleetOnlineAnswer_policies_jobs(Record):
    job: str
    arrival_s: float
    start_s: float
    end_s: float
    restarts: int
    user: None | str  # not always there

class FleetOnlineAnswer_policies(Record):
    policy: str
    mean_jct_s: float
    weighted_mean_jct_s: float
    p50_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    mean_waiting_s: float
    makespan_s: float
    utilisation: float
    restarts: int
    jobs: list[FleetOnlineAnswer_policies_jobs]

class FleetOnlineAnswer_quotas(Record):
    user: str
    max_gpus: int

class FleetOnlineAnswer(Answer):
    nodes: list[str]
    gpus: int
    round_s: float
    restart_s: float
    policies: list[FleetOnlineAnswer_policies]
    quotas: list[FleetOnlineAnswer_quotas]  # not always there

class RlAnswer_plans_phases(Record):
    phase: str
    lane: str
    start_s: float
    time_s: float
    host_copies_s: float
    transfers_s: float

class RlAnswer_plans_host_memory(Record):
    bytes: float
    limit_bytes: float

class RlAnswer_plans_memory(Record):
    phase: str
    first_step_bytes: float
    bytes: float
    state_bytes: float
    moments_bytes: float
    other_models_bytes: float
    working_bytes: float
    limit_bytes: float

class RlAnswer_plans_training_mesh(Record):
    tensor: int
    pipeline: int
    data: int

class RlAnswer_plans_training_job(Record):
    sequence: int
    global_batch: int
    precision: str
    optimizer: str
    gradient_clipping: bool

class RlAnswer_plans_training_stack(Record):
    ...

class RlAnswer_plans_training_cluster(Record):
    ...

class RlAnswer_plans_training_model(Record):
    ...

class RlAnswer_plans_training(Record):
    micro_batch: int
    schedule: str
    virtual_stages: int
    sequence_parallel: bool
    data_sharding: str
    stages: list[str]
    mesh: RlAnswer_plans_training_mesh
    job: RlAnswer_plans_training_job
    stack: RlAnswer_plans_training_stack
    cluster: RlAnswer_plans_training_cluster
    model: RlAnswer_plans_training_model

class RlAnswer_plans(Record):
    mode: str
    state_offloaded: bool
    step_time_s: float
    tokens_per_s_per_gpu: float
    limited_by: str
    gpus: int
    training_gpus: int
    generation_gpus: int
    engine: str
    engine_tensor: int
    instances: int
    longest_response_tokens: int
    phases: list[RlAnswer_plans_phases]
    host_memory: None | RlAnswer_plans_host_memory  # not always there
    memory: list[RlAnswer_plans_memory]
    training: RlAnswer_plans_training

class RlAnswer(Answer):
    verdict: str
    algorithm: str
    samples: int
    fewest_gpus: int | None
    asks_fewest: bool
    plans: list[RlAnswer_plans]
    reasons: list[str]
    tried: int
    fit: int
    left_out: int  # not always there
    unseen: int  # not always there

class ReplayAnswer_mean_communication(Record):
    axis: str
    total_s: float
    overlapped_s: float
    exposed_s: float

class ReplayAnswer_mean(Record):
    compute_s: float
    exposed_s: float
    bubble_s: float
    bubble_share: float
    communication: list[ReplayAnswer_mean_communication]

class ReplayAnswer_ranks_communication(Record):
    axis: str
    total_s: float
    overlapped_s: float
    exposed_s: float

class ReplayAnswer_ranks_memory_kinds(Record):
    kind: str
    at_peak_bytes: float
    peak_bytes: float

class ReplayAnswer_ranks_memory(Record):
    peak_bytes: float
    peak_time_s: float
    peak_action: None | str
    peak_span: None | str
    in_flight_at_peak: int
    kinds: list[ReplayAnswer_ranks_memory_kinds]

class ReplayAnswer_ranks(Record):
    rank: int
    stands_for: int
    pipeline_rank: int
    compute_s: float
    exposed_s: float
    bubble_s: float
    bubble_share: float
    communication: list[ReplayAnswer_ranks_communication]
    memory: ReplayAnswer_ranks_memory

class ReplayAnswer(Answer):
    step_time_s: float
    rank_count: int
    mean: ReplayAnswer_mean
    peak_memory_bytes: float
    ranks: list[ReplayAnswer_ranks]

class StragglersAnswer_quantiles(Record):
    p5_s: float
    p50_s: float
    p95_s: float
    p99_s: float

class StragglersAnswer_stragglers_ranks(Record):
    rank: int
    pipeline: int
    data: int
    waits_s: float
    waited_for_s: float
    waited_for_undisturbed_s: float

class StragglersAnswer_stragglers_pairs(Record):
    waiting: int
    waited_for: int
    waits_s: float
    undisturbed_s: float

class StragglersAnswer_stragglers(Record):
    undisturbed_s: float
    samples_s: list[float]
    ranks: list[StragglersAnswer_stragglers_ranks]
    pairs: list[StragglersAnswer_stragglers_pairs]
    gpus_per_rank: int

class StragglersAnswer(Answer):
    mean_s: float
    quantiles: StragglersAnswer_quantiles
    seed: int
    stragglers: StragglersAnswer_stragglers

class GoodputAnswer_goodput(Record):
    between_failures_s: float
    checkpoint_bytes: float
    checkpoint_s: float
    restart_s: float
    young_interval_s: float
    interval_s: float
    goodput: float

class GoodputAnswer(Answer):
    reliability: str
    goodput: GoodputAnswer_goodput
    steps_between_checkpoints: float
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_with_failures: float
    days: None | float
    days_with_failures: None | float

def plan(
    *,
    model: _One,
    map: _Pairs | None = ...,
    cluster: _One,
    seq: _One,
    global_batch: _One,
    precision: Literal['fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp8-block', 'mxfp8', 'nvfp4', 'int8'] | None = ...,
    optimizer: Literal['sgd', 'momentum', 'adam', 'adamw', 'lamb', 'lars', 'muon', 'sophia', 'shampoo'] | None = ...,
    stack: Literal['aleph-alpha-scaling', 'deepspeed', 'hai-llm', 'hugging-face', 'kernels-flash-1', 'kernels-flash-2', 'kernels-flash-3', 'kernels-fully-fused', 'kernels-fused-softmax', 'kernels-unfused', 'litgpt', 'llm-foundry', 'maxtext', 'megatron-core', 'megatron-core-2024', 'megatron-core-2025', 'megatron-core-tp-overlap', 'megatron-deepspeed', 'megatron-lm-2021', 'megatron-lm-2022', 'megatron-zero-bubble', 'nanotron', 'pytorch-eager', 'torchtitan', 'torchtitan-2025', 'trainwright', 'unsloth'] | None = ...,
    lora: _One | None = ...,
    lora_targets: _One | None = ...,
    base_format: Literal['full', 'int8', 'nf4'] | None = ...,
    no_gradient_clipping: bool | None = ...,
    profile: _Several | None = ...,
    calibration: _One | None = ...,
    out: _One | None = ...,
    inline: bool | None = ...,
    picture: _One | None = ...,
    svg: _One | None = ...,
    png: _One | None = ...,
    report: _One | None = ...,
    time_limit: _One | None = ...,
    all_nodes: bool | None = ...,
    top: _One | None = ...,
    sensitivity: bool | None = ...,
    tensor: _One | None = ...,
    pipeline: _One | None = ...,
    data: _One | None = ...,
    virtual_stages: _One | None = ...,
    micro_batch: _One | None = ...,
    schedule: Literal['gpipe', '1f1b', 'interleaved', 'interleaved-groups', 'breadth-first', 'eager-1f1b', 'zb-h1', 'zb-h2', 'interleaved-zb', 'zb-v', 'v-half', 'v-min', 'chimera', 'hanayo', 'dualpipe', 'dualpipev', 'pipedream-2bw'] | None = ...,
    sequence_parallel: Literal['true', 'false'] | None = ...,
    data_sharding: Literal['none', 'horovod', 'parameter-server', 'zero1', 'zero2', 'zero3', 'fsdp', 'zero2-fsdp', 'hsdp'] | None = ...,
    recompute: _One | None = ...,
    space: Literal['auto', 'core', 'usual', 'whole'] | None = ...,
    pin: _Pairs | None = ...,
    forbid: _Pairs | None = ...,
    choices: _One | None = ...,
    memory_risk: _One | None = ...,
    memory_reserve: _One | None = ...,
    risk: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> PlanAnswer: ...
def simulate(
    plan: _Several | None = ...,
    *,
    profile: _Several | None = ...,
    expert_load: _One | None = ...,
    calibration: _One | None = ...,
    schedule_csv: _One | None = ...,
    stack: Literal['aleph-alpha-scaling', 'deepspeed', 'hai-llm', 'hugging-face', 'kernels-flash-1', 'kernels-flash-2', 'kernels-flash-3', 'kernels-fully-fused', 'kernels-fused-softmax', 'kernels-unfused', 'litgpt', 'llm-foundry', 'maxtext', 'megatron-core', 'megatron-core-2024', 'megatron-core-2025', 'megatron-core-tp-overlap', 'megatron-deepspeed', 'megatron-lm-2021', 'megatron-lm-2022', 'megatron-zero-bubble', 'nanotron', 'pytorch-eager', 'torchtitan', 'torchtitan-2025', 'trainwright', 'unsloth'] | None = ...,
    ops: bool | None = ...,
    trace: _One | None = ...,
    picture: _One | None = ...,
    svg: _One | None = ...,
    png: _One | None = ...,
    chakra: _One | None = ...,
    report: _One | None = ...,
    width: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> SimulateAnswer: ...
def predict(
    cases: _Several | None = ...,
    *,
    kernels: _Several | None = ...,
    inference: _Several | None = ...,
    out: _One | None = ...,
    calibration: _One | None = ...,
    scoreboard: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> Any: ...
def fit(
    measurements: _Several | None = ...,
    *,
    kernels: _Several | None = ...,
    inference: _Several | None = ...,
    source: _One | None = ...,
    out: _One | None = ...,
    quality: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> FitAnswer: ...
def curves(
    metrics: _Several | None = ...,
    *,
    svg: _One | None = ...,
    png: _One | None = ...,
    title: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> CurvesAnswer: ...
def what_if(
    asked: Literal['sweep', 'rent', 'gpus-needed', 'largest-model', 'longest-sequence', 'upgrades', 'strong-scaling', 'weak-scaling', 'compute-optimal'] | None = ...,
    *,
    map: _Pairs | None = ...,
    precision: Literal['fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp8-block', 'mxfp8', 'nvfp4', 'int8'] | None = ...,
    optimizer: Literal['sgd', 'momentum', 'adam', 'adamw', 'lamb', 'lars', 'muon', 'sophia', 'shampoo'] | None = ...,
    stack: Literal['aleph-alpha-scaling', 'deepspeed', 'hai-llm', 'hugging-face', 'kernels-flash-1', 'kernels-flash-2', 'kernels-flash-3', 'kernels-fully-fused', 'kernels-fused-softmax', 'kernels-unfused', 'litgpt', 'llm-foundry', 'maxtext', 'megatron-core', 'megatron-core-2024', 'megatron-core-2025', 'megatron-core-tp-overlap', 'megatron-deepspeed', 'megatron-lm-2021', 'megatron-lm-2022', 'megatron-zero-bubble', 'nanotron', 'pytorch-eager', 'torchtitan', 'torchtitan-2025', 'trainwright', 'unsloth'] | None = ...,
    lora: _One | None = ...,
    lora_targets: _One | None = ...,
    base_format: Literal['full', 'int8', 'nf4'] | None = ...,
    no_gradient_clipping: bool | None = ...,
    profile: _Several | None = ...,
    calibration: _One | None = ...,
    plan: _One | None = ...,
    vary: _Pairs | None = ...,
    tokens: _One | None = ...,
    days: _One | None = ...,
    start: _One | None = ...,
    by: _One | None = ...,
    price: _One | None = ...,
    pue: _One | None = ...,
    flops: _One | None = ...,
    law: Literal['chinchilla', 'chinchilla-refitted'] | None = ...,
    up_to: _One | None = ...,
    time_limit: _One | None = ...,
    across: _One | None = ...,
    csv: _One | None = ...,
    svg: _One | None = ...,
    png: _One | None = ...,
    report: _One | None = ...,
    tensor: _One | None = ...,
    pipeline: _One | None = ...,
    data: _One | None = ...,
    virtual_stages: _One | None = ...,
    micro_batch: _One | None = ...,
    schedule: Literal['gpipe', '1f1b', 'interleaved', 'interleaved-groups', 'breadth-first', 'eager-1f1b', 'zb-h1', 'zb-h2', 'interleaved-zb', 'zb-v', 'v-half', 'v-min', 'chimera', 'hanayo', 'dualpipe', 'dualpipev', 'pipedream-2bw'] | None = ...,
    sequence_parallel: Literal['true', 'false'] | None = ...,
    data_sharding: Literal['none', 'horovod', 'parameter-server', 'zero1', 'zero2', 'zero3', 'fsdp', 'zero2-fsdp', 'hsdp'] | None = ...,
    recompute: _One | None = ...,
    space: Literal['auto', 'core', 'usual', 'whole'] | None = ...,
    pin: _Pairs | None = ...,
    forbid: _Pairs | None = ...,
    choices: _One | None = ...,
    memory_risk: _One | None = ...,
    memory_reserve: _One | None = ...,
    risk: _One | None = ...,
    model: _One | None = ...,
    cluster: _One | None = ...,
    seq: _One | None = ...,
    global_batch: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> WhatIfAnswer: ...
def network(
    *,
    cluster: _One,
    collective: _One | None = ...,
    bytes: _One | None = ...,
    factor: _One | None = ...,
    log: _One | None = ...,
    write_profile: _One | None = ...,
    profile: _One | None = ...,
    svg: _One | None = ...,
    png: _One | None = ...,
    write_log: _One | None = ...,
    gpus: _One | None = ...,
    nodes: _One | None = ...,
    ranks_per_node: _One | None = ...,
    ranks: _Several | None = ...,
    algorithm: Literal['ring', 'tree', 'nvls', 'nvls-tree', 'direct', 'double-binary-tree', 'halving-doubling', 'two-level', 'in-switch', 'in-switch-coll-net', 'coll-net', 'parameter-server', 'binomial-tree', 'pairwise', 'dissemination'] | None = ...,
    by_steps: bool | None = ...,
    side_by_side: bool | None = ...,
    protocol: Literal['LL', 'LL128', 'Simple'] | None = ...,
    channels: _One | None = ...,
    nccl: Literal['2.12', '2.18', '2.21', '2.27', '2.30'] | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> NetworkAnswer: ...
def kernel(
    *,
    gpu: _One | None = ...,
    cluster: _One | None = ...,
    gemm: _One | None = ...,
    decode: _One | None = ...,
    prefill: _One | None = ...,
    mla_decode: _One | None = ...,
    experts: _One | None = ...,
    all_reduce: _One | None = ...,
    exchange: _One | None = ...,
    history: _One | None = ...,
    window: _One | None = ...,
    tp: _One | None = ...,
    ep: _One | None = ...,
    dtype: _One | None = ...,
    library: _One | None = ...,
    kernel: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> KernelAnswer: ...
def serve(
    *,
    plan: _One | None = ...,
    model: _One | None = ...,
    map: _Pairs | None = ...,
    cluster: _One | None = ...,
    engine: _One | None = ...,
    tensor: _One | None = ...,
    pipeline: _One | None = ...,
    expert: _One | None = ...,
    attention_data: _One | None = ...,
    weights: _One | None = ...,
    expert_weights: _One | None = ...,
    cache: _One | None = ...,
    input: _One | None = ...,
    output: _One | None = ...,
    clients: _One | None = ...,
    rate: _One | None = ...,
    batch: _One | None = ...,
    trace: _One | None = ...,
    requests: _One | None = ...,
    measured: _One | None = ...,
    cached: _One | None = ...,
    max_sequences: _One | None = ...,
    max_tokens: _One | None = ...,
    out: _One | None = ...,
    svg: _One | None = ...,
    png: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> ServeAnswer: ...
def serve_plan(
    *,
    model: _One,
    map: _Pairs | None = ...,
    cluster: _Several,
    engine: _Several | None = ...,
    weights: _Several | None = ...,
    expert_weights: _One | None = ...,
    cache: _One | None = ...,
    input: _One | None = ...,
    output: _One | None = ...,
    cached: _One | None = ...,
    trace: _One | None = ...,
    rate: _One | None = ...,
    ttft: _One | None = ...,
    tpot: _One | None = ...,
    percentile: _One | None = ...,
    apart: bool | None = ...,
    least: Literal['gpus', 'cost'] | None = ...,
    price: _One | None = ...,
    time_limit: _One | None = ...,
    commands: bool | None = ...,
    checkpoint: _One | None = ...,
    svg: _One | None = ...,
    png: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> ServePlanAnswer: ...
def fleet(
    jobs: _Several | None = ...,
    *,
    cluster: _One,
    objective: Literal['makespan', 'completion', 'cost', 'deadlines'] | None = ...,
    time_limit: _One | None = ...,
    effort: _One | None = ...,
    risk: _One | None = ...,
    any_nodes: bool | None = ...,
    price: _One | None = ...,
    calibration: _One | None = ...,
    preempt: bool | None = ...,
    observed: _One | None = ...,
    restart: _One | None = ...,
    what_if: bool | None = ...,
    out: _One | None = ...,
    svg: _One | None = ...,
    png: _One | None = ...,
    report: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> FleetAnswer: ...
def fleet_online(
    trace: _Several | None = ...,
    *,
    throughputs: _One,
    nodes: _Several | None = ...,
    cluster: _One | None = ...,
    policy: Literal['all', 'fifo', 'backfill', 'tiresias', 'gavel-max-min', 'gavel-makespan', 'gavel-finish-time', 'optimus', 'pollux', 'sia', 'trainwright', 'trainwright-makespan'] | None = ...,
    quota: _Several | None = ...,
    round: _One | None = ...,
    restart: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> FleetOnlineAnswer: ...
def rl(
    *,
    model: _One,
    map: _Pairs | None = ...,
    cluster: _One,
    algorithm: Literal['grpo', 'ppo', 'dapo', 'dr-grpo', 'gspo', 'rloo', 'reinforce'] | None = ...,
    prompts: _One | None = ...,
    rollouts: _One | None = ...,
    prompt: _One | None = ...,
    response: _One | None = ...,
    mean_response: _One | None = ...,
    spread: _One | None = ...,
    mini_batches: _One | None = ...,
    epochs: _One | None = ...,
    mode: _Several | None = ...,
    staleness: _One | None = ...,
    pack: _One | None = ...,
    precision: Literal['fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp8-block', 'mxfp8', 'nvfp4', 'int8'] | None = ...,
    weights: _One | None = ...,
    stack: _One | None = ...,
    calibration: _One | None = ...,
    engine: _One | None = ...,
    memory_share: _One | None = ...,
    controller: _One | None = ...,
    sync: Literal['reshard', 'broadcast', 'expert-parts'] | None = ...,
    tensor: _One | None = ...,
    pipeline: _One | None = ...,
    expert: _One | None = ...,
    engine_tensor: _One | None = ...,
    engine_gpus: _One | None = ...,
    fewest: bool | None = ...,
    within: _One | None = ...,
    time_limit: _One | None = ...,
    out: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> RlAnswer: ...
def export(
    plan: _Several | None = ...,
    *,
    to: Literal['megatron-lm', 'megatron-bridge', 'nemo', 'deepspeed', 'torchtitan', 'torchtitan-python', 'torch-pipelining', 'accelerate-fsdp', 'maxtext', 'slurm'],
    out: _One | None = ...,
    model: _One | None = ...,
    set: _Pairs | None = ...,
    lossy: bool | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> PlainAnswer: ...
def import_plan(
    file: _Several | None = ...,
    *,
    from_: Literal['megatron-lm', 'megatron-bridge', 'nemo', 'deepspeed', 'torchtitan', 'accelerate-fsdp', 'maxtext', 'llm-foundry', 'nanotron'],
    cluster: _One,
    model: _One | None = ...,
    seq: _One | None = ...,
    schedule_csv: _One | None = ...,
    set: _Pairs | None = ...,
    stack: Literal['aleph-alpha-scaling', 'deepspeed', 'hai-llm', 'hugging-face', 'kernels-flash-1', 'kernels-flash-2', 'kernels-flash-3', 'kernels-fully-fused', 'kernels-fused-softmax', 'kernels-unfused', 'litgpt', 'llm-foundry', 'maxtext', 'megatron-core', 'megatron-core-2024', 'megatron-core-2025', 'megatron-core-tp-overlap', 'megatron-deepspeed', 'megatron-lm-2021', 'megatron-lm-2022', 'megatron-zero-bubble', 'nanotron', 'pytorch-eager', 'torchtitan', 'torchtitan-2025', 'trainwright', 'unsloth'] | None = ...,
    out: _One | None = ...,
    inline: bool | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> PlainAnswer: ...
def compare(
    trace: _Several | None = ...,
    *,
    device: _One | None = ...,
    precision: Literal['fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp8-block', 'mxfp8', 'nvfp4', 'int8'] | None = ...,
    plan: _One,
    calibration: _One | None = ...,
    rank: _One | None = ...,
    report: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> PlainAnswer: ...
def profile(
    trace: _Several | None = ...,
    *,
    device: _One | None = ...,
    precision: Literal['fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp8-block', 'mxfp8', 'nvfp4', 'int8'] | None = ...,
    gpu: _One,
    out: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> PlainAnswer: ...
def replay(
    traces: _Several | None = ...,
    *,
    cluster: _One | None = ...,
    plan: _One | None = ...,
    calibration: _One | None = ...,
    groups: _One | None = ...,
    profile: _Several | None = ...,
    trace: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> ReplayAnswer: ...
def stragglers(
    plan: _Several | None = ...,
    *,
    calibration: _One | None = ...,
    jitter: _One | None = ...,
    network_jitter: _One | None = ...,
    gpu_jitter: _One | None = ...,
    slow: _One | None = ...,
    slow_rank: _Pairs | None = ...,
    samples: _One | None = ...,
    seed: _One | None = ...,
    csv: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> StragglersAnswer: ...
def goodput(
    plan: _Several | None = ...,
    *,
    calibration: _One | None = ...,
    reliability: Literal['llama-3', 'meta-rsc-1', 'meta-rsc-2'] | None = ...,
    tokens: _One | None = ...,
    threads: int | None = None,
    progress: _Progress = None,
) -> GoodputAnswer: ...
def show(
    list: Literal['models', 'gpus', 'clusters', 'nodes', 'choices', 'schedules', 'tensor-schemes', 'context-schemes', 'data-schemes', 'stacks', 'engines', 'controllers', 'optimizers', 'dispatchers', 'interconnects', 'nics', 'fabrics', 'collectives', 'algorithms', 'nccl', 'exporters', 'importers', 'reliabilities'] | None = ...,
    name: _Several | None = ...,
    *,
    threads: int | None = None,
    progress: _Progress = None,
) -> PlainAnswer: ...
