"""Functions give the program's answers, byte for byte; bad input is an exception, nothing is printed."""

import json
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import trainwright as tw
from conftest import arguments

LOOP = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "prompts": 8, "rollouts": 4, "response": 512}
JOBS = """[[job]]
name = "a"
model = "gpt2"
seq = 512
global_batch = 8
steps = 100
"""
SERVE = {"model": "llama-3-8b", "cluster": "dgx-h100", "clients": 4, "requests": 8}


def test_answers_are_those_of_the_program(run, question, tmp_path):
    plan = tmp_path / "plan.toml"
    planned = run("plan", *arguments(question), f"--out={plan}", "--json")
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(JOBS)
    rate = {"model": "llama-3-8b", "cluster": "dgx-h100", "rate": 20}
    for answer, ran in [
        (tw.plan(**question), planned),
        (tw.simulate(plan), run("simulate", str(plan), "--json")),
        (tw.goodput(plan, tokens="1B"), run("goodput", str(plan), "--tokens=1B", "--json")),
        (tw.stragglers(plan, jitter=0.1), run("stragglers", str(plan), "--jitter=0.1", "--json")),
        (
            tw.what_if(**question, vary={"seq": [256, 512]}),
            run("what-if", *arguments(question), "--vary=seq=256,512", "--json"),
        ),
        (
            tw.network(cluster="dgx-h100:2", collective="all_reduce", bytes="1M..4M"),
            run("network", "--cluster=dgx-h100:2", "--collective=all_reduce", "--bytes=1M..4M", "--json"),
        ),
        (
            tw.kernel(gpu="h100-80gb-sxm", gemm=[4096, 4096, 4096]),
            run("kernel", "--gpu=h100-80gb-sxm", "--gemm=4096,4096,4096", "--json"),
        ),
        (tw.serve(**SERVE), run("serve", *arguments(SERVE), "--json")),
        (tw.serve_plan(**rate), run("serve-plan", *arguments(rate), "--json")),
        (
            tw.fleet(jobs, cluster="dgx-a100"),
            run("fleet", str(jobs), "--cluster=dgx-a100", "--json"),
        ),
        (tw.rl(**LOOP), run("rl", *arguments(LOOP), "--json")),
        (tw.show("gpus"), run("show", "gpus")),
        (tw.export(plan, to="megatron-lm"), run("export", str(plan), "--to=megatron-lm")),
    ]:
        assert ran.returncode == 0, ran.stderr
        assert answer.json.encode() == ran.stdout
        if answer:
            assert answer == json.loads(ran.stdout)
            assert answer.version == 1


def test_a_plan_can_be_simulated_as_it_is_and_changed(question):
    answer = tw.plan(**question)
    best = answer.best
    step = best.forecast.step_time_s
    for plan in (answer, best, best.plan, dict(best.plan)):
        assert tw.simulate(plan).forecast.step_time_s == step
    assert tw.simulate(plan=best).forecast.step_time_s == step
    changed = {**best.plan, "stages": ["12 full"]}
    assert len(best.plan.stages) > 1 or tw.simulate(changed).forecast.step_time_s > step


def test_models_and_clusters_are_dictionaries_too(question):
    model = {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    }
    cluster = {"nodes": 1, "node": "dgx-a100"}
    named, given = (
        tw.plan(**{**question, "model": model, "cluster": each}).best.forecast.step_time_s
        for each in ("dgx-a100", cluster)
    )
    assert named == given


def test_bad_input_is_one_line(question):
    for options, expected in [
        ({"model": "gpt9"}, "gpt9"),
        ({"globl_batch": 8}, "'--global-batch'"),
        ({"global_batch": 0}, "from 1 to 10000000"),
        ({"all_nodes": "yes"}, "give true or false"),
        ({"cluster": {"nodes": 1, "node": "dgx-z9"}}, "dgx-z9"),
    ]:
        with pytest.raises(tw.InputError) as raised:
            tw.plan(**{**question, **options})
        line = str(raised.value)
        assert expected in line and "\n" not in line, line
        assert isinstance(raised.value, ValueError)
        assert str(pickle.loads(pickle.dumps(raised.value))) == line
    with pytest.raises(tw.InputError, match="cannot read none.toml"):
        tw.simulate("none.toml")
    with pytest.raises(TypeError, match="by position"):
        tw.simulate("a", "b")


def test_what_does_not_fit_is_an_answer_with_reasons():
    answer = tw.plan(model="llama-3-70b", cluster="dgx-1v", seq=512, global_batch=8)
    assert (answer.exit_code, answer.verdict, answer.fits) == (3, "infeasible", False)
    with pytest.raises(tw.Infeasible) as raised:
        answer.best
    assert raised.value.reasons == answer.reasons and len(answer.reasons) > 1
    assert pickle.loads(pickle.dumps(raised.value)).reasons == answer.reasons
    assert answer.reasons[-1] in answer._repr_html_() or "&" in answer._repr_html_()
    assert not tw.serve(model="llama-3-8b", cluster="dgx-h100", batch=1, input=9_000_000).fits


def test_keys_are_attributes_and_answers_can_be_pickled(question):
    answer = tw.plan(**question)
    assert answer.plans[0].plan.mesh.data == answer["plans"][0]["plan"]["mesh"]["data"]
    assert "forecast" in dir(answer.best)
    with pytest.raises(AttributeError, match="there are"):
        answer.nothing
    again = pickle.loads(pickle.dumps(answer))
    assert again == answer and again.json == answer.json and type(again) is type(answer)
    assert tw.simulate(again).forecast == tw.simulate(answer).forecast


def test_answers_draw_themselves(question):
    for answer in (
        tw.plan(**question),
        tw.simulate(tw.plan(**question)),
        tw.network(cluster="dgx-h100:2", collective="all_reduce", bytes="1M..4M"),
        tw.what_if(**question, vary={"seq": [256, 512]}),
        tw.serve(**SERVE),
    ):
        page = answer._repr_html_()
        assert page.startswith("<table>") and page.rstrip().endswith("</svg>"), page[-200:]
    assert tw.goodput(tw.plan(**question))._repr_html_().endswith("</table>")
    assert tw.show("gpus")._repr_html_().startswith("<pre>")


def test_threads_do_not_change_answers_and_calls_run_beside_each_other(question):
    alone = tw.plan(**question, threads=1).json
    with ThreadPoolExecutor(4) as pool:
        several = [pool.submit(tw.plan, **question, threads=1 + index % 2) for index in range(4)]
        assert {each.result().json for each in several} == {alone}


def test_python_goes_on_while_a_command_works(question):
    """The lock of Python is not held: a counter counts on."""
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    begun = time.monotonic()
    tw.plan(**{**question, "cluster": "dgx-a100:4", "global_batch": 64})
    elapsed = time.monotonic() - begun
    done.set()
    counter.join()
    # A thread that sleeps a millisecond gets a turn at least every 50 of them.
    assert counted[0] > elapsed * 20


def test_progress_is_told_and_its_errors_stop_the_command(question):
    told = []
    slow = {**question, "cluster": "dgx-a100:4", "global_batch": 256}
    tw.what_if(**slow, vary={"seq": [256, 512, 1024]}, progress=lambda *each: told.append(each))
    assert told and all(done <= total for _, done, total in told), told

    def stop(*_):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        tw.what_if(**slow, vary={"seq": [256, 512, 1024]}, progress=stop)


def test_an_interrupt_ends_a_command():
    code = (
        "import signal\n"
        "import trainwright as tw\n"
        # Children of a shell's background jobs begin with interrupts ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('begun', flush=True)\n"
        "try:\n"
        "    tw.plan(model='deepseek-v3', cluster='dgx-h100:256', seq=4096, global_batch=4096, space='whole')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait(30) == 0


def test_nothing_is_printed(question, capfd):
    tw.plan(**question)
    tw.what_if(**question, vary={"seq": [256, 512]})
    with pytest.raises(tw.InputError):
        tw.simulate("none.toml")
    assert capfd.readouterr() == ("", "")


def test_functions_are_documented():
    for name in ("plan", "simulate", "predict", "fit", "what_if", "network", "serve", "serve_plan", "kernel"):
        assert len(getattr(tw, name).__doc__) > 200, name
    assert "global_batch: Sequences in a step, over all GPUs" in tw.plan.__doc__
    # Every command has its function.
    others = {"import": "import_plan"}
    for command in tw.commands():
        assert callable(getattr(tw, others.get(command, command.replace("-", "_")))), command
    with pytest.raises(tw.InputError, match="there is no command `run`"):
        tw.sweep([{"command": "run", "plan": "plan.toml"}])


def test_no_field_of_an_answer_hides_behind_an_attribute():
    from trainwright._answers import answer_class

    from trainwright import _native

    for command in _native.ask("schema", "{}", {}, [])[1].split():
        taken = set(dir(answer_class(command))) | set(answer_class(command)(None, 0, "", [], {}).__dict__)
        fields = set(tw.schema(command)["properties"])
        assert not fields & taken - {"fits"}, (command, fields & taken)
