"""Tables in and out."""

import io

import pytest
import trainwright as tw

HEADER = (
    "id,quality,layers,hidden,heads,vocab,seq_len,gpu,gpus,tp,pp,micro_batch,global_batch,framework,"
    "measured_step_time_s,outcome"
)
RUNS = f"""{HEADER}
a-1,A,24,2048,16,51200,1024,a100-80gb-sxm,8,2,2,2,32,Megatron-LM,1.5,ok
a-2,A,24,2048,16,51200,1024,abacus,8,2,2,2,32,Megatron-LM,1.5,ok
b-1,A,24,2048,16,51200,1024,a100-80gb-sxm,8,4,2,2,32,Megatron-LM,1.7,ok
b-2,A,24,2048,16,51200,1024,a100-80gb-sxm,4,2,2,2,32,Megatron-LM,,ok
"""


@pytest.fixture
def runs():
    pandas = pytest.importorskip("pandas")
    return pandas.read_csv(io.StringIO(RUNS)).set_axis([10, 20, 30, 40])


def test_a_frame_comes_back_with_its_forecasts(runs, run, tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    ran = run("predict", "runs.csv", "--out=out.csv", "--json", cwd=tmp_path)
    out = tw.predict(runs)
    # As it was, with columns behind.
    assert out[runs.columns].equals(runs) and list(out.index) == [10, 20, 30, 40]
    assert list(out.status) == ["ok", "unsupported", "ok", "ok"]
    answer = tw.predict(tmp_path / "runs.csv")
    assert answer.json.encode() == ran.stdout
    assert answer.files["forecasts.csv"] == (tmp_path / "out.csv").read_bytes()
    assert list(answer.frame().predicted_step_time_s.dropna()) == list(out.predicted_step_time_s.dropna())
    assert out.attrs["errors"]["rows"] == 4 == answer["rows"]
    with pytest.raises(tw.InputError, match="is there already"):
        tw.predict(out)
    with pytest.raises(tw.InputError, match="the column `hidden` is missing"):
        tw.predict(runs.drop(columns="hidden"))
    with pytest.raises(tw.InputError, match="a table is missing"):
        tw.predict()


def test_arrow_comes_back_as_arrow(runs):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pandas(runs, preserve_index=False)
    out = tw.predict(table)
    assert out.select(table.column_names).equals(table)
    expected = list(tw.predict(runs).predicted_step_time_s.dropna())
    assert [each for each in out["predicted_step_time_s"].to_pylist() if each is not None] == expected


def test_a_fit_is_a_calibration(runs, tmp_path):
    fit = tw.fit(runs)
    path = tmp_path / "mine.toml"
    path.write_text(fit.toml)
    # The name of the file is that of the calibration: times are equal, whatever it is.
    by_path, by_fit = (tw.predict(runs, calibration=each).predicted_step_time_s for each in (path, fit))
    assert by_path.equals(by_fit)
    assert not by_fit.equals(tw.predict(runs).predicted_step_time_s)
    assert fit.sources and fit.version == 1


def test_every_answer_has_a_table(question):
    pytest.importorskip("pandas")
    planned = tw.plan(**question)
    assert list(planned.frame()["rank"]) == [each.rank for each in planned.plans]
    points = tw.what_if(**question, vary={"seq": [256, 512]}).frame()
    assert list(points.seq) == ["256", "512"] and (points.step_time_s > 0).all()
    assert len(tw.network(cluster="dgx-h100", collective="all_reduce", bytes="1M..4M").frame()) == 3
