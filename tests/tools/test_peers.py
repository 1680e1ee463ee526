"""Whether peers.py reads rows as the table means them, gives Calculon the row's layout and compares on common rows only.

    python3 -m unittest discover tests/tools
"""

import contextlib
import csv
import io
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))

import by_calculon
import peers
import rows
import search

TABLE = pathlib.Path(__file__).parents[2] / "traces/published/training.csv"


def published(name, **changes):
    """The cells of a published row, some of them changed."""
    with open(TABLE, newline="") as table:
        cells = next(cells for cells in csv.DictReader(table) if cells["id"] == name)
    return {**cells, **changes}


def read(cells):
    return rows.row(cells, rows.measured(cells))


class Rows(unittest.TestCase):
    def test_a_rate_gives_the_time_of_a_step(self):
        # 96 sequences of 1,024 tokens at 4,096 tokens/s on each of 8 GPUs.
        self.assertEqual(rows.measured(published("zerobubble-6.2b-zb-1p-mb32")), 96 * 1024 / 4096 / 8)

    def test_what_no_peer_expresses_is_refused_by_name(self):
        cells = published("zerobubble-6.2b-1f1b-mb32")
        self.assertEqual(read(cells).pp, 8)
        for changes, reason in [
            ({"cp": "2"}, "context parallel"),
            ({"num_experts": "8"}, "mixture of experts"),
            ({"heads": ""}, "`heads` is blank"),
            ({"notes": "schedule ZB-1p"}, "another schedule than 1F1B"),
            ({"dp": "3"}, "ranks are not tp x pp x dp"),
        ]:
            with self.assertRaisesRegex(rows.NotExpressible, reason):
                read({**cells, **changes})


class Calculon(unittest.TestCase):
    def test_groups_are_on_the_network_that_they_fit(self):
        # 2 x 4 x 8 ranks on nodes of 8: tensor and data ranks share the node, pipeline ranks do not.
        cells = published("zerobubble-6.2b-1f1b-mb32", gpus="64", tp="2", pp="8", dp="4", micro_batch="1")
        execution = by_calculon.translated(read(cells))
        networks = [execution[f"{axis}_par_net"] for axis in ("tensor", "data", "pipeline")]
        self.assertEqual(networks, [0, 0, 1])
        self.assertEqual([execution[f"{axis}_par"] for axis in ("tensor", "data", "pipeline")], [2, 4, 8])

    def test_few_heads_of_keys_are_nearer_to_one_than_to_all(self):
        for kv_heads, attention in [("32", "multihead"), ("8", "multiquery"), ("1", "multiquery")]:
            cells = published("zerobubble-6.2b-1f1b-mb32", kv_heads=kv_heads)
            self.assertEqual(by_calculon.translated(read(cells))["attention_type"], attention)

    def test_sharded_weights_are_refused(self):
        cells = published("zerobubble-6.2b-1f1b-mb32", data_sharding="zero3")
        with self.assertRaisesRegex(rows.NotExpressible, "zero3"):
            by_calculon.translated(read(cells))


class Search(unittest.TestCase):
    def test_the_executions_are_those_of_the_command(self):
        # Two GPUs, two sequences, one network. Tensor 2: one microbatch of 1 or 2 sequences, 3 overlaps; with the three tensor
        # communications 3 + 3 + 3 recomputes, and twice for the two of `rs_ag` that can repeat a gather: 11 * 3 * 2 = 66.
        # Pipeline 2: 48 blocks have 10 divisors, 11 choices, microbatches of 1 or 2: 220. Data 2: sharded or not, overlapped
        # or not, one microbatch: 11 * 4 = 44.
        executions = list(search.executions(2, 2, 1))
        self.assertEqual(len(executions), 66 + 220 + 44)
        ranks = {(each["tensor_par"], each["pipeline_par"], each["data_par"]) for each in executions}
        self.assertEqual(ranks, {(2, 1, 1), (1, 2, 1), (1, 1, 2)})
        self.assertEqual(len({tuple(each.values()) for each in executions}), len(executions))

    def test_a_batch_is_rounded_down_to_a_multiple_of_data_ranks(self):
        batches = {each["data_par"]: each["batch_size"] for each in search.executions(4, 7, 1)}
        self.assertEqual(batches, {1: 7, 2: 6, 4: 4})


class Compare(unittest.TestCase):
    def test_only_common_rows_count(self):
        with tempfile.TemporaryDirectory() as folder:
            theirs, ours = pathlib.Path(folder, "peers.csv"), pathlib.Path(folder, "ours.csv")
            theirs.write_text("id,peer,version,date,seconds\na,other,1,2026-01-01,3\nz,other,1,2026-01-01,9\n")
            ours.write_text(
                "id,measured_step_time_s,measured_tokens_per_s_per_gpu,predicted_step_time_s\na,2,,2.5\nb,2,,9\n"
            )
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                peers.compare(types.SimpleNamespace(peers=theirs, forecasts=ours))
        self.assertEqual(
            out.getvalue(),
            "other 1: 1 common rows; median 50.0 %, mean 50.0 %; Trainwright: median 25.0 %, mean 25.0 %\n",
        )


if __name__ == "__main__":
    unittest.main()
