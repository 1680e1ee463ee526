"""Tables of pandas and Arrow, as the CSV that commands read and write. Neither library is needed for anything else."""

import csv
import io
import sys


def is_frame(value):
    """Whether a value is a pandas.DataFrame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_arrow(value):
    """Whether a value is a pyarrow.Table."""
    pyarrow = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(value, pyarrow.Table)


def is_table(value):
    """Whether a value is a table."""
    return is_frame(value) or is_arrow(value)


def csv_of(table):
    """A table as CSV, without its index; missing values are empty."""
    if is_arrow(table):
        from pyarrow.csv import write_csv

        out = io.BytesIO()
        write_csv(table, out)
        return out.getvalue()
    return table.to_csv(index=False).encode()


def frame_of(rows):
    """Rows, dictionaries, as a pandas.DataFrame."""
    import pandas

    return pandas.DataFrame(rows)


def read_csv(text):
    """CSV as a pandas.DataFrame."""
    import pandas

    table = pandas.read_csv(io.BytesIO(text), skip_blank_lines=False)
    # As they are written: pandas numbers those that appear twice.
    table.columns = next(csv.reader(io.StringIO(text.decode())))
    return table


def with_columns(table, text):
    """A table with the columns that its CSV `text` has behind those of the table; index and types stay as they are."""
    if is_arrow(table):
        from pyarrow.csv import read_csv as read_arrow

        out = read_arrow(io.BytesIO(text))
        for index in range(table.num_columns, out.num_columns):
            table = table.append_column(out.field(index), out.column(index))
        return table
    out = read_csv(text)
    return table.join(out.iloc[:, table.shape[1]:].set_axis(table.index, axis=0))
