#!/usr/bin/env python3
"""Forecasts of other simulators for the rows of a table of runs, and their errors beside Trainwright's on the same rows.

    python3 tests/tools/peers/peers.py forecast llm-analysis --table traces/published/training.csv --out peers.csv
    trainwright predict traces/published/training.csv --out forecasts.csv
    python3 tests/tools/peers/peers.py compare peers.csv --forecasts forecasts.csv

`forecast` needs the peer as its authors publish it: llm-analysis installed in the Python that runs this, Calculon as a
checkout given by --checkout. It replaces the peer's rows in --out and keeps those of other peers. Each module `by_*.py`
says how rows become the peer's input and what it cannot express.
"""

import argparse
import collections
import csv
import datetime
import os
import statistics
import sys

import by_calculon
import by_llm_analysis
import rows

PEERS = {"calculon": by_calculon, "llm-analysis": by_llm_analysis}
COLUMNS = ["id", "peer", "version", "date", "seconds"]


def forecast(arguments):
    peer = PEERS[arguments.peer]
    seconds = peer.forecaster(arguments.checkout)
    version = arguments.version or peer.version(arguments.checkout)
    known = {"peer": arguments.peer, "version": version, "date": str(datetime.date.today())}
    kept = [row for row in recorded(arguments.out) if row["peer"] != arguments.peer]
    made, reasons = [], collections.Counter()
    for name, row in rows.read(arguments.table):
        try:
            if isinstance(row, rows.NotExpressible):
                raise row
            made.append({"id": name, **known, "seconds": f"{seconds(row):.6g}"})
        except rows.NotExpressible as reason:
            reasons[str(reason)] += 1
    with open(arguments.out, "w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept + made)
    print(f"{arguments.peer} {version}: {len(made)} rows, {sum(reasons.values())} not expressible")
    for reason, count in reasons.most_common():
        print(f"  {count:5} {reason}")


def recorded(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as table:
        return list(csv.DictReader(table))


def compare(arguments):
    with open(arguments.forecasts, newline="") as table:
        ours = {
            row["id"]: (float(row["predicted_step_time_s"]), seconds)
            for row in csv.DictReader(table)
            if row["predicted_step_time_s"] and (seconds := rows.measured(row))
        }
    peers = collections.defaultdict(list)
    for row in recorded(arguments.peers):
        if row["id"] in ours:
            peers[f"{row['peer']} {row['version']}"].append((float(row["seconds"]), *ours[row["id"]]))
    for peer, common in peers.items():
        theirs = [abs(seconds / measured - 1) for seconds, _, measured in common]
        mine = [abs(seconds / measured - 1) for _, seconds, measured in common]
        print(f"{peer}: {len(common)} common rows; {errors(theirs)}; Trainwright: {errors(mine)}")


def errors(sizes):
    return f"median {100 * statistics.median(sizes):.1f} %, mean {100 * statistics.mean(sizes):.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    forecasts = commands.add_parser("forecast", help="forecast the rows that a peer can express")
    forecasts.add_argument("peer", choices=PEERS)
    forecasts.add_argument("--table", required=True, help="table of runs, as `trainwright predict` reads it")
    forecasts.add_argument("--checkout", help="folder of the peer, if it is no installed package")
    forecasts.add_argument("--version", help="the version to write, if the peer does not know it")
    forecasts.add_argument("--out", required=True, help="CSV of forecasts: id, peer, version, date, seconds")
    forecasts.set_defaults(run=forecast)
    comparison = commands.add_parser("compare", help="print errors on the rows that a peer and Trainwright forecast")
    comparison.add_argument("peers", help="CSV that `forecast` wrote")
    comparison.add_argument("--forecasts", required=True, help="CSV that `trainwright predict --out` wrote")
    comparison.set_defaults(run=compare)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except (OSError, ImportError, KeyError, ValueError) as error:
        print(f"peers.py: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
