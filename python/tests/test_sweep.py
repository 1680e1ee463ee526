"""Sweeps over executors give the bytes of one process."""

import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import trainwright as tw

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def thousand():
    """Small questions of several commands."""
    questions = [
        {"command": "network", "cluster": f"dgx-{gpu}:{nodes}", "collective": collective, "bytes": f"{1 << size}K"}
        for gpu in ("h100", "a100")
        for nodes in (1, 2, 3, 4, 6, 8, 12, 16)
        for collective in COLLECTIVES
        for size in range(12)
    ]
    plans = [
        {"model": "gpt2", "cluster": "dgx-a100", "seq": 64 * seq, "global_batch": 8, "tensor": 1, "pipeline": 1, "top": 1}
        for seq in range(1, 11)
    ]
    kernels = [
        {"command": "kernel", "gpu": "h100-80gb-sxm", "gemm": [64 * (1 + index), 4096, 4096]} for index in range(30)
    ]
    return (plans + kernels + questions)[:1000]


def test_an_executor_of_any_kind_gives_the_same_answers(question):
    questions = [{**question, "seq": 128 * index} for index in range(1, 9)]
    expected = [tw.plan(**each).json for each in questions]
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2) as processes:
        for executor in (threads, processes, None):
            answers = tw.sweep(questions, executor, chunk=3)
            assert [each.json for each in answers] == expected
    rows = answers.table()
    assert [row["seq"] for row in rows] == [each["seq"] for each in questions]
    assert all(row["step_time_s"] > 0 for row in rows)


def test_bad_input_in_a_sweep_is_raised_or_kept(question):
    questions = [question, {**question, "model": "gpt9"}, question]
    with ThreadPoolExecutor(2) as threads:
        with pytest.raises(tw.InputError, match="gpt9"):
            tw.sweep(questions, threads)
        answers = tw.sweep(questions, threads, return_exceptions=True)
    assert isinstance(answers[1], tw.InputError) and answers[0].json == answers[2].json
    assert "gpt9" in answers.table()[1]["error"] and "gpt9" in answers._repr_html_()


def test_a_thousand_questions_over_two_dask_workers_have_the_bytes_of_one_process():
    distributed = pytest.importorskip("distributed")
    questions = thousand()
    assert len(questions) == 1000
    with ThreadPoolExecutor(1) as one:
        expected = [answer.json for answer in tw.sweep(questions, one)]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster, distributed.Client(cluster) as client:
        answers = tw.sweep(questions, client.get_executor())
        workers = client.run(lambda: None)
    assert len(workers) == 2
    assert [answer.json for answer in answers] == expected
    assert len(set(expected)) > 900


def test_ranks_of_mpi_are_workers(tmp_path):
    pytest.importorskip("mpi4py")
    launcher = shutil.which("mpirun") or shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("no mpirun")
    code = (
        "from mpi4py.futures import MPIPoolExecutor\n"
        "import trainwright as tw\n"
        "if __name__ == '__main__':\n"
        "    questions = [{'cluster': 'dgx-h100:2', 'collective': 'all_reduce', 'bytes': f'{size}M'} for size in range(1, 21)]\n"
        "    with MPIPoolExecutor() as executor:\n"
        "        answers = tw.sweep(questions, executor, command='network', chunk=2)\n"
        "    assert [each.json for each in answers] == [tw.network(**each).json for each in questions]\n"
        "    print('equal', len(answers))\n"
    )
    (tmp_path / "sweep.py").write_text(code)
    command = [launcher, "-n", "3", sys.executable, "-m", "mpi4py.futures", str(tmp_path / "sweep.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, "equal 20\n"), ran.stderr
